"""Report the NodeMetric status of simulated nodes from what their pods use, as often as each NodeMetric's
spec asks for.

It stands in for koordlet's measuring, not for its predictions: it expects the highest usage of prod
pods in its window and a tenth on top. There is nothing to do while no program creates NodeMetrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koord.api.qos_class import PROD
from koord.embedded.kubelet.host import NodeUsage, Tenant
from koord.embedded.kubelet.machine import seconds
from koord.embedded.kubelet.usage import NOTHING, Usage
from koord.values.duration import parse_seconds
from koord.values.quantity import Format, Quantity
from koord.values.resources import CPU, MEMORY

PEAK_PERCENT = 110  # of the highest use seen is expected of prod pods
AGGREGATES = (("avg", None), ("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99))


class Sample(msgspec.Struct, frozen=True, gc=False):
    """A sample of the usage of a host at one moment."""

    at: float
    total: Usage
    prod: Usage


def sample_of(at: float, tenants: Mapping[str, Tenant], usage: NodeUsage) -> Sample:
    return Sample(at, usage.total, _sum(usage.pods[uid] for uid, tenant in tenants.items() if _is_prod(tenant)))


def status_of(
    tenants: Mapping[str, Tenant], usage: NodeUsage, history: Sequence[Sample], windows: Sequence[str]
) -> dict[str, Any]:
    """Build the status of a NodeMetric. `history` is not empty, oldest first, and ends with `usage`; `windows`
    are durations.

    A pod that does not run is left out: its usage is not known yet, which is not the same as zero.
    """
    last = history[-1]
    running = {uid: tenant for uid, tenant in sorted(tenants.items()) if tenant.runs}
    return {
        "updateTime": seconds(last.at),
        "nodeMetric": {
            "nodeUsage": _amount(usage.total),
            "systemUsage": _amount(usage.system),
            "aggregatedNodeUsages": [_aggregated(history, last.at, window) for window in windows],
        },
        "podsMetric": [
            {
                "namespace": tenant.view.metadata.namespace,
                "name": tenant.view.metadata.name,
                "podUsage": _amount(usage.pods[uid]),
                "priority": tenant.view.priority_class,
                "qos": tenant.view.qos,
            }
            for uid, tenant in running.items()
        ],
        "prodReclaimableMetric": {"resource": _amount(_reclaimable(running.values(), history))},
    }


def _reclaimable(running: Iterable[Tenant], history: Sequence[Sample]) -> Usage:
    asked = [tenant.template.requests for tenant in running if _is_prod(tenant)]
    cpu, memory = (sum(request.get(name, 0) for request in asked) for name in (CPU, MEMORY))
    return Usage(
        max(0, cpu - max(sample.prod.cpu_milli for sample in history) * PEAK_PERCENT // 100),
        max(0, memory - max(sample.prod.memory_bytes for sample in history) * PEAK_PERCENT // 100),
    )


def _aggregated(history: Sequence[Sample], now: float, window: str) -> dict[str, Any]:
    since = now - parse_seconds(window)
    seen = [sample.total for sample in history if sample.at > since] or [history[-1].total]
    cpu = sorted(usage.cpu_milli for usage in seen)
    memory = sorted(usage.memory_bytes for usage in seen)
    usages = {name: _amount(Usage(_aggregate(cpu, rank), _aggregate(memory, rank))) for name, rank in AGGREGATES}
    return {"usage": usages, "duration": window}


def _aggregate(ordered: Sequence[int], percentile: int | None) -> int:
    """Return the nearest-rank percentile, or the mean for None."""
    if percentile is None:
        return sum(ordered) // len(ordered)
    return ordered[-(-len(ordered) * percentile // 100) - 1]


def _is_prod(tenant: Tenant) -> bool:
    return tenant.view.priority_class == PROD


def _sum(usages: Iterable[Usage]) -> Usage:
    total = NOTHING
    for usage in usages:
        total = total.plus(usage)
    return total


def _amount(usage: Usage) -> dict[str, Any]:
    cpu, memory = Quantity.from_milli(usage.cpu_milli), Quantity.from_value(usage.memory_bytes, Format.BINARY_SI)
    return {"resources": {CPU: str(cpu), MEMORY: str(memory)}}
