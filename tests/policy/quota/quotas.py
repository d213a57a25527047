"""Builders of quotas, pods and quota managers for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from koord.api.protocol import ROOT_QUOTA
from koord.policy.quota.amount import Amounts
from koord.policy.quota.book import Book
from koord.policy.quota.claimant import Claimant
from koord.policy.quota.definition import Quota, Rules
from koord.policy.quota.event import QuotaSeen, Requested, TotalChanged

START = datetime(2026, 1, 1, tzinfo=UTC)
UNBOUNDED = {"cpu": 2**62, "memory": 2**62}


def two(cpu: int, memory: int | None = None) -> Amounts:
    """Whole cpus and plain bytes."""
    found = {"cpu": cpu * 1000}
    if memory is not None:
        found["memory"] = memory
    return found


def quota(name: str, min: int | Amounts = 0, max: int | Amounts = 1000, **other: Any) -> Quota:
    most = two(max) if isinstance(max, int) else max
    return Quota(
        name=name,
        namespace=other.pop("namespace", "quotas"),
        created=START + timedelta(seconds=other.pop("at", 0)),
        parent=other.pop("parent", ROOT_QUOTA),
        min=two(min) if isinstance(min, int) else min,
        max=most,
        weight=other.pop("weight", most),
        **other,
    )


def pod(name: str, quota: str = "", cpu: int | Amounts = 1, **other: Any) -> Claimant:
    return Claimant(
        uid=f"uid-{name}",
        name=name,
        namespace=other.pop("namespace", "default"),
        quota=quota,
        requests=two(cpu) if isinstance(cpu, int) else cpu,
        **other,
    )


def rules(**given: Any) -> Rules:
    return Rules(**{"default_max": UNBOUNDED, "system_max": UNBOUNDED, **given})


def book(total: int | Amounts, quotas: list[Quota], pods: list[Claimant] | None = None, **given: Any) -> Book:
    made = Book(rules(**given))
    made.handle(TotalChanged(two(total) if isinstance(total, int) else total))
    for one in quotas:
        made.handle(QuotaSeen(one))
    for each in pods or []:
        made.handle(Requested(each))
    return made


def cpus(made: Book, *names: str) -> list[float]:
    """Return the runtime of these quotas, in cpus."""
    return [made.runtime(name).get("cpu", 0) / 1000 for name in names]
