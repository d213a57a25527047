"""Serve the numbers of every quota as metrics, read when they are served: a quota that is gone has no series."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from koord.api.koordinator import protocol
from koord.scheduler.metrics import KoordinatorMetrics
from koord.scheduler.plugins.elastic_quota.cache import ElasticQuotaCache
from koord.scheduler.plugins.elastic_quota.report import quota_figures
from koord.telemetry.clock import Clock
from koord.telemetry.metrics import Histogram, MetricDeclaration, MetricFamily, MetricReading, MetricRegistry
from koord.values.resources import Counts

QUOTA_LABELS = ("name", "resource", "tree", "is_parent", "parent", "field")
QUOTA_SPEC = MetricDeclaration(
    "scheduler_elastic_quota_spec",
    "Min, max and sharedWeight of a quota, by field; cpu in thousandths of a core.",
    "gauge",
    QUOTA_LABELS,
)
QUOTA_STATUS = MetricDeclaration(
    "scheduler_elastic_quota_status",
    "Figures of a quota by field: runtime, used, request, min, max and others; cpu in thousandths of a core.",
    "gauge",
    QUOTA_LABELS,
)
_SPEC_FIELDS = frozenset({"min", "max", "sharedWeight"})
_FIELDS = {
    protocol.A_QUOTA_RUNTIME: "runtime",
    protocol.A_QUOTA_REQUEST: "request",
    protocol.A_QUOTA_CHILD_REQUEST: "child-request",
    protocol.A_QUOTA_GUARANTEED: "guaranteed",
    protocol.A_QUOTA_ALLOCATED: "allocated",
    protocol.A_QUOTA_NON_PREEMPTIBLE_REQUEST: "non-preemptible-request",
    protocol.A_QUOTA_NON_PREEMPTIBLE_USED: "non-preemptible-used",
}


def register_quota_metrics(
    registry: MetricRegistry,
    metrics: KoordinatorMetrics,
    quota_cache: ElasticQuotaCache,
    clock: Clock,
    leads: Callable[[], bool],
) -> None:
    """Time the cache's operations and register the quota metrics, which the leader alone serves."""
    quota_cache.timer = QuotaCacheTimer(clock, metrics.quota_s)

    def read() -> Iterator[MetricReading]:
        values = [] if not leads() else list(_values(quota_cache))
        yield QUOTA_STATUS.reading(values)
        yield QUOTA_SPEC.reading([one for one in values if one[0][-1] in _SPEC_FIELDS])

    registry.source(read)


class QuotaCacheTimer:
    """Time the operations on the quota cache under their names in Koordinator's metrics."""

    def __init__(self, clock: Clock, family: MetricFamily[Histogram]) -> None:
        self.now = clock.monotonic
        self._family = family
        self._known: dict[str, Histogram] = {}

    def took(self, operation: str, since: float) -> None:
        known = self._known.get(operation)
        if known is None:
            known = self._known[operation] = self._family.labels(operation)
        known.observe(self.now() - since)


def _values(quota_cache: ElasticQuotaCache) -> Iterator[tuple[tuple[str, ...], float]]:
    manager = quota_cache.manager
    for quota_node in manager.trees.all_nodes():
        quota, found = quota_node.definition, quota_figures(manager, quota_node.name)
        assert found is not None
        annotations, used = found
        fields: dict[str, Counts] = {field: annotations[key] for key, field in _FIELDS.items()}
        fields |= {"used": used, "min": quota.min, "max": quota.max, "sharedWeight": quota.weight}
        for field, amounts in fields.items():
            for resource, amount in amounts.items():
                labels = (quota_node.name, resource, quota.tree, str(quota.is_parent).lower(), quota.parent, field)
                yield labels, float(amount)
