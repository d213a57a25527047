"""Builders of quotas, pods and quota managers for tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from koord.api.koordinator.protocol import ROOT_QUOTA
from koord.scheduler.plugins.elastic_quota.admission import ClusterTotalChanged, QuotaPodUpdated, QuotaUpdated
from koord.scheduler.plugins.elastic_quota.definition import QuotaDefinition, QuotaPod, QuotaRules
from koord.scheduler.plugins.elastic_quota.quota_manager import GroupQuotaManager
from koord.values.resources import Amounts

START = datetime(2026, 1, 1, tzinfo=UTC)
UNBOUNDED = {"cpu": 2**62, "memory": 2**62}


def two(cpu: int, memory: int | None = None) -> Amounts:
    """Whole cpus and plain bytes."""
    found = {"cpu": cpu * 1000}
    if memory is not None:
        found["memory"] = memory
    return found


def quota(name: str, min: int | Amounts = 0, max: int | Amounts = 1000, **other: Any) -> QuotaDefinition:
    most = two(max) if isinstance(max, int) else max
    return QuotaDefinition(
        name=name,
        namespace=other.pop("namespace", "quotas"),
        created=START + timedelta(seconds=other.pop("at", 0)),
        parent=other.pop("parent", ROOT_QUOTA),
        min=two(min) if isinstance(min, int) else min,
        max=most,
        weight=other.pop("weight", most),
        **other,
    )


def pod(name: str, quota: str = "", cpu: int | Amounts = 1, **other: Any) -> QuotaPod:
    return QuotaPod(
        uid=f"uid-{name}",
        name=name,
        namespace=other.pop("namespace", "default"),
        quota=quota,
        requests=two(cpu) if isinstance(cpu, int) else cpu,
        **other,
    )


def rules(**given: Any) -> QuotaRules:
    return QuotaRules(**{"default_max": UNBOUNDED, "system_max": UNBOUNDED, **given})


def quota_manager(
    total: int | Amounts, quotas: list[QuotaDefinition], pods: list[QuotaPod] | None = None, **given: Any
) -> GroupQuotaManager:
    made = GroupQuotaManager(rules(**given))
    made.handle(ClusterTotalChanged(two(total) if isinstance(total, int) else total))
    for one in quotas:
        made.handle(QuotaUpdated(one))
    for each in pods or []:
        made.handle(QuotaPodUpdated(each))
    return made


def cpus(made: GroupQuotaManager, *names: str) -> list[float]:
    """Return the runtime of these quotas, in cpus."""
    return [made.runtime(name).get("cpu", 0) / 1000 for name in names]
