"""How a node is shared between prod, mid and batch pods."""

from __future__ import annotations

from typing import Any

from koord.api.model import convert
from koord.manager.colocation.models import ColocationPod
from koord.manager.explain.tier_usage import TierUsage, node_tier_usage, total_tier_usage
from tests.manager.colocation.colocation_builders import metric, node, sample

CPU, BATCH_CPU, MID_CPU = "cpu", "kubernetes.io/batch-cpu", "kubernetes.io/mid-cpu"


def placed(name: str, priority: int, phase: str = "Running", **requests: str) -> ColocationPod:
    asked = {{"batch_cpu": BATCH_CPU, "mid_cpu": MID_CPU}.get(key, key): value for key, value in requests.items()}
    plain: dict[str, Any] = {
        "metadata": {"namespace": "default", "name": name},
        "spec": {"nodeName": "n1", "priority": priority, "containers": [{"resources": {"requests": asked}}]},
        "status": {"phase": phase, "qosClass": "Burstable"},
    }
    return convert(plain, ColocationPod)


NODE = node(allocatable={"cpu": "96", "memory": "110G", BATCH_CPU: "25k", MID_CPU: "8000"})
PODS = [
    placed("prod", 9500, cpu="20", memory="20G"),
    placed("mid", 7500, mid_cpu="3000"),
    placed("batch", 5500, batch_cpu="4000"),
    placed("free", 3500),
    placed("over", 9500, "Succeeded", cpu="50"),
]
REPORT = metric(
    sample("prod", "11", "11G"),
    sample("mid", "2", "1G"),
    sample("batch", "3500m", "1G"),
    sample("free", "500m", "1G"),
    sample("gone", "1", "1G", "koord-prod"),
)


def test_each_tier_has_its_room_requests_and_use() -> None:
    found = node_tier_usage(NODE, PODS, REPORT)
    assert found.cpu.capacity == 100_000
    assert found.cpu.prod == TierUsage(room=96_000, requested=20_000, used=12_000)
    assert found.cpu.mid == TierUsage(room=8_000, requested=3_000, used=2_000)
    assert found.cpu.batch == TierUsage(room=25_000, requested=4_000, used=4_000)
    assert found.cpu.used == 50_000
    assert found.memory.prod.requested == 20_000_000_000


def test_pods_that_are_gone_do_not_become_the_system() -> None:
    """The node's average still has what they used; the report says by itself what the system uses."""
    application = {"name": "yarn", "usage": {"resources": {"cpu": "2", "memory": "3G"}}, "priority": "koord-batch"}
    for report, milli in ((metric(), 7_000), (metric(applications=[application]), 9_000)):
        found = node_tier_usage(NODE, [], report)
        assert (found.cpu.used, found.cpu.system) == (50_000, milli)
        assert (found.cpu.prod.used, found.cpu.mid.used, found.cpu.batch.used) == (0, 0, 0)


def test_without_a_report_use_is_not_known() -> None:
    found = node_tier_usage(NODE, PODS, None)
    assert found.reported is None
    assert found.cpu.prod == TierUsage(room=96_000, requested=20_000)


def test_totals_are_sums() -> None:
    one = node_tier_usage(NODE, PODS, REPORT)
    both = total_tier_usage([one, one])
    assert both.cpu.batch == one.cpu.batch + one.cpu.batch
    assert both.memory.used == 2 * one.memory.used
    assert both.memory.system == 2 * one.memory.system
