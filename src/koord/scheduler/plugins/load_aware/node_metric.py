"""The parts of a NodeMetric that load decisions read, and their reports as vectors."""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

from koord.api.koordinator import custom_kinds
from koord.api.koordinator.protocol import PROD
from koord.api.koordinator.slo import ReportedPodUsage, ReportedUsage
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.api.model import ResourceList, Submodel
from koord.scheduler.plugins.load_aware.thresholds import ResourceAxes, ResourceVector
from koord.values import duration
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
