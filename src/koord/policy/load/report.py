"""One NodeMetric as vectors. Aggregated usage is parsed on demand: most clusters do not use it."""

from __future__ import annotations

from typing import TypeAlias

from koord.api.part import ResourceList
from koord.api.qos_class import PROD
from koord.policy.load.axes import Axes, Vector
from koord.policy.load.wire import NodeMetric, PodUsage
from koord.values import duration
from koord.values.quantity import QuantityError

DEFAULT_INTERVAL_S = 60.0

# What a pod uses, None if that was not reported; and whether it was reported as prod.
PodReport: TypeAlias = tuple[Vector | None, bool]


class Report:
    """The load report of one node. Missing is not zero: what was not reported, or cannot be parsed, is None."""

    __slots__ = ("_aggregated", "_axes", "_metric", "interval_s", "pods", "update_time", "usage")

    def __init__(self, metric: NodeMetric, axes: Axes) -> None:
        self._metric = metric
        self._axes = axes
        self._aggregated: dict[tuple[str, int], Vector] | None = None
        status, policy = metric.status, metric.spec.metric_collect_policy
        self.update_time = status.update_time.timestamp() if status.update_time is not None else None
        stated = policy.report_interval_seconds if policy is not None else None
        self.interval_s = DEFAULT_INTERVAL_S if stated is None else float(stated)
        self.usage: Vector | None = None
        if status.node_metric is not None:
            self.usage = self._read(status.node_metric.node_usage.resources)
        self.pods: dict[str, PodReport] = {f"{pod.namespace}/{pod.name}": self._pod(pod) for pod in status.pods_metric}

    @property
    def system(self) -> Vector:
        """Return the usage of what runs beside the pods."""
        found = self._metric.status.node_metric
        return (self._read(found.system_usage.resources) if found is not None else None) or self._axes.zero

    def aggregated(self, kind: str, window: int) -> Vector | None:
        """Return usage by aggregation over a window in nanoseconds; 0 is the longest that was reported.

        With 0 and nothing of that kind the plain usage is returned; a missing window that was asked for stays
        missing.
        """
        if self._aggregated is None:
            self._aggregated = self._windows()
        found = self._aggregated.get((kind, window))
        return self.usage if found is None and not window else found

    def _windows(self) -> dict[tuple[str, int], Vector]:
        found: dict[tuple[str, int], Vector] = {}
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

    def _pod(self, pod: PodUsage) -> PodReport:
        resources = pod.pod_usage.resources
        return self._read(resources) if resources else None, pod.priority == PROD

    def _read(self, resources: ResourceList) -> Vector | None:
        try:
            return self._axes.read(resources)
        except QuantityError:
            return None

    def expires_at(self, seconds: int) -> float:
        """Return when the report becomes too old to use; one without a time always is."""
        return float("-inf") if self.update_time is None else self.update_time + seconds
