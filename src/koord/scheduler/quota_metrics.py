"""Serve the numbers of every quota as metrics, read when they are served: a quota that is gone has no series."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from koord.api.protocol import (
    A_QUOTA_ALLOCATED,
    A_QUOTA_CHILD_REQUEST,
    A_QUOTA_GUARANTEED,
    A_QUOTA_NON_PREEMPTIBLE_REQUEST,
    A_QUOTA_NON_PREEMPTIBLE_USED,
    A_QUOTA_REQUEST,
    A_QUOTA_RUNTIME,
)
from koord.policy.quota.amount import Counts
from koord.policy.quota.publication import figures
from koord.scheduler.plugins.elastic_quota.ledger import Ledger
from koord.telemetry.clock import Clock
from koord.telemetry.metrics.family import Family, Histogram
from koord.telemetry.metrics.registry import Reading, Registry

NAME = "scheduler_elastic_quota_status"
LABELS = ("name", "resource", "tree", "is_parent", "parent", "field")
_FIELDS = {
    A_QUOTA_RUNTIME: "runtime",
    A_QUOTA_REQUEST: "request",
    A_QUOTA_CHILD_REQUEST: "child-request",
    A_QUOTA_GUARANTEED: "guaranteed",
    A_QUOTA_ALLOCATED: "allocated",
    A_QUOTA_NON_PREEMPTIBLE_REQUEST: "non-preemptible-request",
    A_QUOTA_NON_PREEMPTIBLE_USED: "non-preemptible-used",
}


def watch_quotas(registry: Registry, ledger: Ledger, leads: Callable[[], bool]) -> None:
    """Register the quota metrics; only the leader serves values, so that a sum over replicas counts each quota once."""

    def read() -> Iterator[Reading]:
        values = [] if not leads() else list(_values(ledger))
        yield Reading(NAME, "What a quota has: cpu in thousandths.", "gauge", LABELS, values)

    registry.source(read)


class LedgerMeter:
    """Time the operations on the quota cache under their names in Koordinator's metrics."""

    def __init__(self, clock: Clock, family: Family[Histogram]) -> None:
        self.now = clock.monotonic
        self._family = family
        self._known: dict[str, Histogram] = {}

    def took(self, operation: str, since: float) -> None:
        known = self._known.get(operation)
        if known is None:
            known = self._known[operation] = self._family.labels(operation)
        known.observe(self.now() - since)


def _values(ledger: Ledger) -> Iterator[tuple[tuple[str, ...], float]]:
    book = ledger.book
    for account in book.forest.accounts():
        quota, found = account.quota, figures(book, account.name)
        assert found is not None
        annotations, used = found
        fields: dict[str, Counts] = {field: annotations[key] for key, field in _FIELDS.items()}
        fields |= {"used": used, "min": quota.min, "max": quota.max, "sharedWeight": quota.weight}
        for field, amounts in fields.items():
            for resource, amount in amounts.items():
                labels = (account.name, resource, quota.tree, str(quota.is_parent).lower(), quota.parent, field)
                yield labels, float(amount)
