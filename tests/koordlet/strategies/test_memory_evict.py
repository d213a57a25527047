"""Memory eviction: when pods must go, and which ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from koord.api.koordinator.protocol import BE, L_EVICTION_ENABLED, LS
from koord.api.koordinator.resource_name import BATCH_MEMORY, MEMORY
from koord.api.koordinator.slo import ResourceThresholdStrategy
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.koordlet.strategies.memory_evict import MemoryEvictView, decide_memory_evict
from koord.koordlet.strategies.victim_selection import (
    BE_MEMORY_EVICT,
    MEMORY_ALLOCATABLE_EVICT,
    MEMORY_EVICT,
    REQUESTED,
    USED,
)
from tests.koordlet.strategies.builders import pod, victims

G = 10**9
GI = 2**30


def be(name: str, priority: int | None, **changes: Any) -> PodMeta:
    return pod(name, BE, priority=priority, **changes)


def view(threshold: int | None = 82, **changes: Any) -> MemoryEvictView:
    config = {name: changes.pop(name) for name in ResourceThresholdStrategy.__struct_fields__ if name in changes}
    seen = MemoryEvictView(
        enabled=True,
        features=frozenset({BE_MEMORY_EVICT}),
        since_last_s=10.0,
        strategy=ResourceThresholdStrategy(memory_evict_threshold_percent=threshold, **config),
        capacity_bytes=120 * G,
        node_used_bytes=115 * G,
        pods=(be("small", 100), be("large", 100), be("later", 120), pod("ls", LS)),
        used_bytes={"small": 5 * G, "large": 20 * G, "later": 10 * G, "ls": 30 * G},
    )
    return msgspec.structs.replace(seen, **changes)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        pytest.param(view(82), ["large"], id="one-is-enough"),
        pytest.param(view(80), ["large", "small"], id="two-are-needed"),
        pytest.param(view(80, node_used_bytes=80 * G), [], id="under-the-threshold"),
        pytest.param(view(-1), [], id="negative"),
        pytest.param(view(None), [], id="no-threshold"),
        pytest.param(view(capacity_bytes=None), [], id="no-node"),
        pytest.param(view(capacity_bytes=0), [], id="no-capacity"),
        pytest.param(view(node_used_bytes=None), [], id="not-measured"),
        pytest.param(view(82, memory_evict_lower_percent=82), [], id="lower-not-below"),
        pytest.param(view(82, memory_evict_lower_percent=94), [], id="lower-above"),
        pytest.param(view(82, memory_evict_lower_percent=70), ["large", "small", "later"], id="down-to-70"),
        pytest.param(view(since_last_s=3.9), [], id="too-soon"),
        pytest.param(view(enabled=False), [], id="off"),
        pytest.param(view(enabled=None), [], id="no-node-slo"),
        pytest.param(view(leaving=frozenset({"large"})), [], id="on-its-way-out"),
    ],
)
def test_best_effort_victims(seen: MemoryEvictView, expected: list[str]) -> None:
    assert victims(decide_memory_evict(seen)) == expected


def test_what_was_not_measured_goes_last_and_one_at_a_time() -> None:
    seen = view(pods=(be("b", 100), be("a", 100), be("known", 100)), used_bytes={"known": 1 * G})
    assert victims(decide_memory_evict(seen)) == ["known", "a"]


def test_the_ledger_tells_the_numbers() -> None:
    record = decide_memory_evict(view(82)).effects[0]
    assert isinstance(record, EvictionRequest)
    assert record.record.threshold == "82%, down to 80%"
    assert record.record.release == {USED + MEMORY: 18 * G}
    assert record.record.frees == {USED + MEMORY: 20 * G}


def test_memory_is_counted_in_bytes() -> None:
    """Thousandths of bytes would make any one pod look large enough."""
    consent = {L_EVICTION_ENABLED: "true"}
    seen = view(
        82,
        features=frozenset({MEMORY_EVICT}),
        evict_enabled_priority_threshold=5999,
        pods=(be("a", 5500, labels=consent), be("b", 5500, labels=consent), be("mute", 5500)),
        used_bytes={"a": 9 * G, "b": 10 * G, "mute": 50 * G},
    )
    assert victims(decide_memory_evict(seen)) == ["b", "a"]


def test_by_priority_needs_a_priority() -> None:
    plan = decide_memory_evict(view(features=frozenset({MEMORY_EVICT})))
    assert plan.effects == ()
    assert "priority" in plan.why


def test_batch_memory_beyond_what_is_lent() -> None:
    consent = {L_EVICTION_ENABLED: "true"}
    pods = tuple(be(f"p{n}", 5500, labels=consent, requests={BATCH_MEMORY: n * GI}) for n in (5, 30, 50))
    seen = view(
        features=frozenset({MEMORY_ALLOCATABLE_EVICT}),
        memory_allocatable_evict_threshold_percent=80,
        memory_allocatable_evict_lower_percent=70,
        allocatable_evict_priority_threshold=5999,
        allocatable={BATCH_MEMORY: 100 * GI},
        pods=pods,
        used_bytes=dict.fromkeys(("p5", "p30", "p50"), 1),
    )
    plan = decide_memory_evict(seen)
    assert victims(plan) == ["p50"]
    assert isinstance(plan.effects[0], EvictionRequest)
    assert plan.effects[0].record.release == {REQUESTED + BATCH_MEMORY: 16_106_127_360}
