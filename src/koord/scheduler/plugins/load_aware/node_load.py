"""NodeLoadEstimate is the load of one node: the last NodeMetric, and what pods add that it does not show yet.

    used by all     node usage of the report + node_delta
    used by prod    usage of its prod pods in the report + prod_delta
    estimated       the estimates of all pods here, for when the report lacks what is needed

A pod's estimate counts in full while the report does not show the pod. Once it does, only what the estimate
exceeds it by counts, and only as long as the report may be older than the pod's start. Every part that a
pod adds is kept with it, so that it is subtracted exactly as it was added.

LoadNodeMetric has the parts of a NodeMetric that load decisions read; reports are kept as vectors.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from koord.api.koordinator import custom_kinds
from koord.api.koordinator.protocol import PROD
from koord.api.koordinator.slo import ReportedPodUsage, ReportedUsage
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.api.model import ResourceList, Submodel
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.plugins.load_aware.estimator import AggregationWindow, PodEstimate, ResourceAxes, ResourceVector
from koord.values import duration, timestamp
from koord.values.quantity import QuantityError


class ReportedAggregatedUsage(Submodel, frozen=True, kw_only=True):
    """One window: usage by the name of its aggregation (avg, p50 ... p99)."""

    usage: dict[str, ReportedUsage] = {}
    duration: str = ""


class ReportedNodeUsage(Submodel, frozen=True, kw_only=True):
    node_usage: ReportedUsage = ReportedUsage()
    aggregated_node_usages: tuple[ReportedAggregatedUsage, ...] = ()
    system_usage: ReportedUsage = ReportedUsage()


class ReportedCollectPolicy(Submodel, frozen=True, kw_only=True):
    report_interval_seconds: int | None = None


class LoadMetricSpec(Submodel, frozen=True, kw_only=True):
    metric_collect_policy: ReportedCollectPolicy | None = None


class LoadMetricStatus(Submodel, frozen=True, kw_only=True):
    update_time: datetime | None = None
    node_metric: ReportedNodeUsage | None = None
    pods_metric: tuple[ReportedPodUsage, ...] = ()


class LoadNodeMetric(Object, frozen=True, kw_only=True):
    spec: LoadMetricSpec = LoadMetricSpec()
    status: LoadMetricStatus = LoadMetricStatus()


NODE_METRICS: Resource[LoadNodeMetric] = custom_kinds.NODE_METRICS.with_model(LoadNodeMetric)


DEFAULT_INTERVAL_S = 60.0

# What a pod uses, None if that was not reported; and whether it was reported as prod.
PodLoadReport: TypeAlias = tuple[ResourceVector | None, bool]


class LoadReport:
    """The load report of one node. Missing is not zero: what was not reported, or cannot be parsed, is None."""

    __slots__ = ("_aggregated", "_axes", "_metric", "interval_s", "pods", "update_time", "usage")

    def __init__(self, metric: LoadNodeMetric, axes: ResourceAxes) -> None:
        self._metric = metric
        self._axes = axes
        self._aggregated: dict[tuple[str, int], ResourceVector] | None = None
        status, policy = metric.status, metric.spec.metric_collect_policy
        self.update_time = status.update_time.timestamp() if status.update_time is not None else None
        stated = policy.report_interval_seconds if policy is not None else None
        self.interval_s = DEFAULT_INTERVAL_S if stated is None else float(stated)
        self.usage: ResourceVector | None = None
        if status.node_metric is not None:
            self.usage = self._read(status.node_metric.node_usage.resources)
        self.pods: dict[str, PodLoadReport] = {
            f"{pod.namespace}/{pod.name}": self._pod(pod) for pod in status.pods_metric
        }

    @property
    def system(self) -> ResourceVector:
        """Return the usage of what runs beside the pods."""
        found = self._metric.status.node_metric
        return (self._read(found.system_usage.resources) if found is not None else None) or self._axes.zero

    def aggregated(self, kind: str, window: int) -> ResourceVector | None:
        """Return usage by aggregation over a window in nanoseconds; 0 is the longest that was reported.

        With 0 and nothing of that kind the plain usage is returned; a missing window that was asked for stays
        missing.
        """
        if self._aggregated is None:
            self._aggregated = self._windows()
        found = self._aggregated.get((kind, window))
        return self.usage if found is None and not window else found

    def _windows(self) -> dict[tuple[str, int], ResourceVector]:
        found: dict[tuple[str, int], ResourceVector] = {}
        longest: dict[str, int] = {}
        node = self._metric.status.node_metric
        for entry in node.aggregated_node_usages if node is not None else ():
            try:
                window = duration.parse(entry.duration) if entry.duration else 0
            except duration.DurationError:
                continue
            for kind, usage in entry.usage.items():
                vector = self._read(usage.resources) if usage.resources else None
                if vector is None:
                    continue
                found[kind, window] = vector
                longest[kind] = max(window, longest.get(kind, window))
        return found | {(kind, 0): found[kind, window] for kind, window in longest.items()}

    def _pod(self, pod: ReportedPodUsage) -> PodLoadReport:
        resources = pod.pod_usage.resources
        return self._read(resources) if resources else None, pod.priority == PROD

    def _read(self, resources: ResourceList) -> ResourceVector | None:
        try:
            return self._axes.parse(resources)
        except QuantityError:
            return None

    def expires_at(self, seconds: int) -> float:
        """Return when the report becomes too old to use; one without a time always is."""
        return float("-inf") if self.update_time is None else self.update_time + seconds


NEVER = float("inf")  # what is not there does not grow old


class AssignedPod(msgspec.Struct, frozen=True, gc=False):
    """A pod on the node, with the parts that it adds to the sums; None adds nothing."""

    pod: PodInfo
    estimate: PodEstimate
    assigned_at: float
    estimate_until: float | None
    node_part: ResourceVector | None
    prod_part: ResourceVector | None
    prod_usage: ResourceVector | None


class NodeLoadEstimate:
    """The load of one node. `deltas` has what pods add to the node by resource, then the same for prod, in one
    list.

    Every placement changes the sums in place: copy them to keep them.
    """

    __slots__ = ("_reported", "_width", "deltas", "expires_at", "pods", "prod_usage", "report", "usage")

    def __init__(self, report: LoadReport | None, base: ResourceVector, expires_at: float) -> None:
        """Start without pods; `base` is what counts as used by prod before any pod."""
        self.report = report
        # Of the report, what is asked for all the time.
        self.usage: ResourceVector | None = None if report is None else report.usage
        self._reported: Container[str] = () if report is None else report.pods
        self.expires_at = expires_at
        self.pods: dict[str, AssignedPod] = {}  # by uid
        self.prod_usage = list(base)
        self._width = len(base)
        self.deltas = [0] * (2 * len(base))

    def copy(self) -> NodeLoadEstimate:
        """Copy the load for a dry run, which adds and removes pods on the copy alone."""
        other = NodeLoadEstimate(self.report, tuple(self.prod_usage), self.expires_at)
        other.pods = dict(self.pods)
        other.deltas = self.deltas[:]
        return other

    @property
    def node_delta(self) -> list[int]:
        return self.deltas[: self._width]

    @property
    def prod_delta(self) -> list[int]:
        return self.deltas[self._width :]

    @property
    def estimated(self) -> list[int]:
        """Return the sum of all estimates, computed when read, which is seldom."""
        total = [0] * self._width
        for entry in self.pods.values():
            if entry.estimate.unreported_usage is not None:
                _add(total, entry.estimate.usage)
        return total

    def add(self, pod: PodInfo, estimate: PodEstimate, assigned_at: float, estimate_until: float | None) -> AssignedPod:
        if pod.key in self._reported:
            entry = self._add_reported(pod, estimate, assigned_at, estimate_until)
        else:
            part, deltas = estimate.unreported_usage, self.deltas
            for place, amount in enumerate(estimate.deltas):
                deltas[place] += amount
            entry = AssignedPod(pod, estimate, assigned_at, estimate_until, part, part if estimate.prod else None, None)
        self.pods[pod.uid] = entry
        return entry

    def _add_reported(
        self, pod: PodInfo, estimate: PodEstimate, assigned_at: float, estimate_until: float | None
    ) -> AssignedPod:
        report = self.report
        assert report is not None
        usage, reported_prod = report.pods[pod.key]
        prod_usage = node_part = prod_part = None
        active = reported_prod and estimate.prod
        if active and usage is not None:
            prod_usage = usage
            _add(self.prod_usage, usage)
        if estimate.unreported_usage is not None:
            due = usage is None or _is_estimate_in_force(assigned_at, estimate_until, report)
            if due:
                node_part = _beyond_usage(estimate, usage)
                _add(self.deltas, node_part)
            if estimate.prod:
                if not active:  # what it uses is not among what prod is known to use
                    usage, due = None, True
                if due:
                    prod_part = _beyond_usage(estimate, usage)
                    _add(self.deltas, prod_part, self._width)
        return AssignedPod(pod, estimate, assigned_at, estimate_until, node_part, prod_part, prod_usage)

    def remove(self, uid: str) -> AssignedPod | None:
        entry = self.pods.pop(uid, None)
        if entry is None:
            return None
        if entry.prod_usage is not None:
            _subtract(self.prod_usage, entry.prod_usage)
        if entry.node_part is not None:
            _subtract(self.deltas, entry.node_part)
        if entry.prod_part is not None:
            _subtract(self.deltas, entry.prod_part, self._width)
        return entry

    def used(self, window: AggregationWindow | None, *, prod: bool) -> tuple[Sequence[int], Sequence[int]]:
        """Return what is measured and what pending pods add, to be summed by resource. Only valid with a report.

        The second may be longer than the number of resources.
        """
        if prod:
            return self.prod_usage, self.prod_delta
        report = self.report
        assert report is not None
        usage = self.usage if window is None else report.aggregated(window.kind, window.nanoseconds)
        return (self.estimated, (0,) * self._width) if usage is None else (usage, self.deltas)


def _is_estimate_in_force(assigned_at: float, estimate_until: float | None, report: LoadReport) -> bool:
    """Return whether the estimate still counts beside the measurement: the report may not cover all of its life."""
    at = report.update_time
    if at is None or at - report.interval_s < assigned_at:
        return True
    return estimate_until is not None and estimate_until > at


def _beyond_usage(estimate: PodEstimate, usage: ResourceVector | None) -> ResourceVector:
    if usage is None:
        assert estimate.unreported_usage is not None
        return estimate.unreported_usage
    return tuple([own - seen if own > seen else 0 for own, seen in zip(estimate.usage, usage, strict=True)])


def _add(total: list[int], part: ResourceVector, first: int = 0) -> None:
    for place, amount in enumerate(part, first):
        total[place] += amount


def _subtract(total: list[int], part: ResourceVector, first: int = 0) -> None:
    for place, amount in enumerate(part, first):
        total[place] -= amount


def load_summary(node_load: NodeLoadEstimate | None, axes: ResourceAxes) -> dict[str, Any]:
    """Return the summary; empty for a node without known load."""
    if node_load is None:
        return {}
    entries = sorted(node_load.pods.values(), key=lambda entry: (entry.assigned_at, entry.pod.key))
    return {
        "pods": [{"timestamp": timestamp.unix_text(entry.assigned_at), "pod": _pod(entry)} for entry in entries],
        "prodUsage": axes.to_resource_list(node_load.prod_usage),
        "nodeDelta": axes.to_resource_list(node_load.node_delta),
        "prodDelta": axes.to_resource_list(node_load.prod_delta),
        "nodeEstimated": axes.to_resource_list(node_load.estimated),
        "nodeDeltaPods": _keys(entry for entry in entries if entry.node_part is not None),
        "prodDeltaPods": _keys(entry for entry in entries if entry.prod_part is not None),
        "nodeEstimatedPods": _keys(entry for entry in entries if entry.estimate.unreported_usage is not None),
    }


def _pod(entry: AssignedPod) -> dict[str, Any]:
    """Return the pod's identity: the scheduler holds no more of a pod's metadata than it reads."""
    pod = entry.pod
    meta = {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "labels": dict(pod.labels)}
    return {"metadata": meta, "spec": {"nodeName": pod.node_name}}


def _keys(entries: Iterable[AssignedPod]) -> list[str]:
    return sorted(entry.pod.key for entry in entries)
