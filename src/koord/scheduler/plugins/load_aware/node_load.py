"""NodeLoadEstimate is the load of one node: the last NodeMetric, and what pods add that it does not show yet.

    used by all     node usage of the report + node_delta
    used by prod    usage of its prod pods in the report + prod_delta
    estimated       the estimates of all pods here, for when the report lacks what is needed

A pod's estimate counts in full while the report does not show the pod. Once it does, only what the estimate
exceeds it by counts, and only as long as the report may be older than the pod's start. Every part that a
pod adds is kept with it, so that it is subtracted exactly as it was added.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Any

import msgspec

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.plugins.load_aware.estimator import PodEstimate
from koord.scheduler.plugins.load_aware.node_metric import LoadReport
from koord.scheduler.plugins.load_aware.thresholds import AggregationWindow, ResourceAxes, ResourceVector
from koord.values import timestamp

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
