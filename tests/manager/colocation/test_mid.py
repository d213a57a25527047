"""Mid resources of known nodes are right in both modes."""

from __future__ import annotations

from typing import Any

import pytest

from koord.manager.colocation.models import ColocationNodeMetric
from tests.manager.colocation.colocation_builders import colocation, decided, metric, node, pod, used

NODE = node({"cpu": "100", "memory": "210G"}, {"cpu": "100", "memory": "200G"})
PODS = (
    pod("prod", "LS", {"cpu": 20, "memory": "40G"}, priority=9500),
    pod("batch", "BE", {"cpu": 15, "memory": "30G"}, priority=5500),
    pod("mid", "LS", {"cpu": 5, "memory": "5G"}, priority=7500),
)
SMALL = {"mid_cpu_threshold_percent": 10, "mid_memory_threshold_percent": 20}
STATIC = {"mid_reclaim_mode": "static", **SMALL}


def report(reclaimable: dict[str, Any] | None, usage: dict[str, Any], **more: Any) -> ColocationNodeMetric:
    return metric(usage=usage, reclaimable=reclaimable, **{"system": used(0, 0), **more})


@pytest.mark.parametrize(
    ("strategy", "seen", "cpu", "memory"),
    [
        pytest.param({}, report(used(10, "15G"), used(20, "45G")), 10_000, 15_000_000_000, id="reclaimable"),
        pytest.param(
            {**SMALL, "mid_unallocated_percent": 10},
            report(used(15, "30G"), used(20, "45G")),
            10_000,
            42_000_000_000,
            id="below-the-threshold",
        ),
        pytest.param(
            {"mid_unallocated_percent": 10},
            report(used(15, "30G"), used(20, "45G")),
            23_000,
            46_000_000_000,
            id="and-a-part-of-the-unallocated",
        ),
        pytest.param({}, report(None, used(20, "45G")), 0, 0, id="nothing-predicted"),
        pytest.param({}, report(used(20, "20G"), {"resources": {"cpu": 1}}), 0, 0, id="usage-not-complete"),
        pytest.param({}, report(used(20, "20G"), used(90, "200G")), 10_000, 10_000_000_000, id="no-more-than-unused"),
        pytest.param({}, report(used(20, "20G"), used(190, "900G")), 0, 0, id="overloaded"),
        pytest.param(
            {**STATIC, "mid_static_cpu_reserved_percent": 10, "mid_static_memory_reserved_percent": 10},
            report(None, used(20, "45G")),
            10_000,
            21_000_000_000,
            id="static",
        ),
        pytest.param(
            {**STATIC, "mid_static_cpu_reserved_percent": 100, "mid_static_memory_reserved_percent": 100},
            report(None, used(20, "45G")),
            10_000,
            42_000_000_000,
            id="static-below-the-threshold",
        ),
    ],
)
def test_amounts(strategy: dict[str, Any], seen: ColocationNodeMetric, cpu: int, memory: int) -> None:
    mid = decided(colocation(**strategy), NODE, seen, PODS).mid
    assert mid is not None
    assert mid.cpu is not None
    assert mid.memory is not None
    assert (mid.cpu.result, mid.memory.result) == (cpu, memory)


@pytest.mark.parametrize(
    ("priority", "cpu", "memory"),
    [
        pytest.param("koord-prod", 75_000, 155_000_000_000, id="prod-holds-its-usage"),
        pytest.param("koord-mid", 80_000, 160_000_000_000, id="mid-does-not"),
        pytest.param("koord-batch", 80_000, 160_000_000_000, id="batch-does-not"),
    ],
)
def test_applications_outside_kubernetes(priority: str, cpu: int, memory: int) -> None:
    application = {"name": "h", "usage": used(5, "15G"), "priority": priority}
    seen = report(None, used(20, "45G"), applications=[application])
    mid = decided(colocation(mid_unallocated_percent=10), NODE, seen, PODS).mid
    assert mid is not None
    assert mid.cpu is not None
    assert mid.memory is not None
    assert (mid.cpu.unallocated, mid.memory.unallocated) == (cpu, memory)


@pytest.mark.parametrize(
    ("strategy", "seen", "bound"),
    [
        pytest.param({}, report(used(10, "1G"), used(20, "1G")), "reclaimable", id="reclaimable"),
        pytest.param({}, report(used(10, "1G"), used(95, "1G")), "unused", id="unused"),
        pytest.param(SMALL, report(used(50, "1G"), used(1, "1G")), "threshold", id="threshold"),
        pytest.param(
            {**STATIC, "mid_static_cpu_reserved_percent": 5}, report(None, used(1, "1G")), "static", id="static"
        ),
    ],
)
def test_the_binding_term_is_named(strategy: dict[str, Any], seen: ColocationNodeMetric, bound: str) -> None:
    mid = decided(colocation(**strategy), NODE, seen, ()).mid
    assert mid is not None
    assert mid.cpu is not None
    assert mid.cpu.bound_by == bound


def test_the_sum_can_be_read() -> None:
    seen = report(used(10, "15G"), used(20, "45G"))
    mid = decided(colocation(mid_unallocated_percent=10), NODE, seen, PODS).mid
    assert mid is not None
    assert mid.message.startswith(
        "midAllocatable[CPU(Milli-Core)]:18000 = min(threshold:100000, max(0, min(prodReclaimable:10000,"
        " nodeUnused:80000)) + unallocatedShare:8000)"
    )
