"""CPU eviction: when pods must go, and which ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.koordinator.protocol import (
    A_EVICTION_POLICY,
    A_EVICTION_PRIORITY,
    BE,
    L_EVICTION_ENABLED,
    L_PRIORITY,
    LS,
)
from koord.api.koordinator.resource_name import BATCH_CPU, CPU, MID_CPU
from koord.api.koordinator.slo import ResourceThresholdStrategy
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies.cpu_evict import (
    BeCpuUsage,
    CpuEvictView,
    decide_cpu_evict,
    evict_window_s,
    satisfaction_task,
    usage_release,
    usage_task,
)
from koord.koordlet.strategies.eviction_tracker import EvictionRequest
from koord.koordlet.strategies.victim_selection import (
    BE_CPU_EVICT,
    CPU_ALLOCATABLE_EVICT,
    CPU_EVICT,
    REQUESTED,
    USED,
    EvictionTask,
    IdleRule,
    excess_requests,
    requested_by_tier,
)
from tests.koordlet.strategies.builders import pod, victims

STRATEGY = ResourceThresholdStrategy(
    enable=True,
    cpu_evict_be_satisfaction_lower_percent=30,
    cpu_evict_be_satisfaction_upper_percent=40,
    cpu_evict_time_window_seconds=60,
)
BOTH = {L_EVICTION_ENABLED: "true"}


def batch(name: str, milli: int, *, priority: int = 5500, **changes: Any) -> PodMeta:
    return pod(name, BE, priority=priority, requests={BATCH_CPU: milli}, **changes)


def be(limit: int, used: int, request: int, count: int = 60) -> BeCpuUsage:
    return BeCpuUsage(used=used, request=request, limit=limit, count=count)


def view(average: BeCpuUsage | None, last: BeCpuUsage | None = None, **changes: Any) -> CpuEvictView:
    config = {name: changes.pop(name) for name in ResourceThresholdStrategy.__struct_fields__ if name in changes}
    seen = CpuEvictView(
        enabled=True,
        features=frozenset({BE_CPU_EVICT}),
        since_last_s=60.0,
        strategy=msgspec.structs.replace(STRATEGY, **config),
        capacity_milli=100_000,
        be_average=average,
        be_last=last or average,
    )
    return msgspec.structs.replace(seen, **changes)


@pytest.mark.parametrize(
    ("seen", "milli"),
    [
        pytest.param(view(be(10_000, 9_500, 50_000, count=10)), None, id="too-few-samples"),
        pytest.param(view(be(0, 9_500, 50_000)), None, id="no-limit"),
        pytest.param(view(be(20_000, 10_000, 50_000)), None, id="limit-not-used-up"),
        pytest.param(view(be(10_000, 9_500, 0)), None, id="nothing-asked-for"),
        pytest.param(view(be(20_000, 19_000, 40_000)), None, id="half-satisfied"),
        pytest.param(view(be(10_000, 9_500, 50_000)), 10_000, id="starving"),
        pytest.param(view(be(10_000, 9_500, 50_000), be(14_000, 13_000, 50_000)), 6_000, id="getting-better"),
        pytest.param(view(be(13_000, 12_000, 50_000), be(11_000, 10_000, 50_000)), 7_000, id="getting-worse"),
        pytest.param(view(be(10_000, 9_500, 50_000), be(10_000, 5_000, 50_000)), None, id="over-just-now"),
        pytest.param(view(be(10_000, 9_500, 50_000), be(40_000, 39_000, 50_000)), None, id="satisfied-just-now"),
        pytest.param(view(be(900, 0, 50_000)), 19_100, id="hardly-any-limit-is-always-used"),
        pytest.param(view(None), None, id="not-measured"),
        pytest.param(
            view(
                be(99_000, 6_000, 50_000),
                be(99_000, 4_000, 50_000),
                cpu_evict_policy="evictByAllocatable",
                cpu_evict_be_usage_threshold_percent=50,
                allocatable={BATCH_CPU: 8_000},
            ),
            12_000,
            id="by-what-is-lent",
        ),
        pytest.param(
            view(be(99_000, 6_000, 50_000), cpu_evict_policy="evictByAllocatable"), None, id="nothing-lent-at-all"
        ),
        pytest.param(
            view(be(9_000, 6_000, 50_000), cpu_evict_policy="evictByAllocatable", allocatable={BATCH_CPU: 0}),
            19_999,
            id="zero-is-lent",
        ),
        pytest.param(view(be(10_000, 9_500, 50_000), cpu_evict_be_satisfaction_lower_percent=61), None, id="lower-61"),
        pytest.param(
            view(be(10_000, 9_500, 50_000), cpu_evict_be_satisfaction_upper_percent=100), None, id="upper-100"
        ),
        pytest.param(view(be(10_000, 9_500, 50_000), cpu_evict_be_satisfaction_upper_percent=20), None, id="crossed"),
        pytest.param(
            view(be(10_000, 9_500, 50_000), cpu_evict_be_satisfaction_lower_percent=None), None, id="half-set"
        ),
    ],
)
def test_satisfaction(seen: CpuEvictView, milli: int | None) -> None:
    found = satisfaction_task(seen)
    if milli is None:
        assert isinstance(found, IdleRule)
        assert found.why
    else:
        assert isinstance(found, EvictionTask)
        assert found.release.amounts == {REQUESTED + BATCH_CPU: milli}


def test_window_is_at_least_one_interval() -> None:
    assert evict_window_s(ResourceThresholdStrategy(), 1.0) == 1.0
    assert evict_window_s(STRATEGY, 1.0) == 60


@pytest.mark.parametrize(
    ("used", "lower", "milli"),
    [
        pytest.param(81_000, 78, 3_000, id="default-lower"),
        pytest.param(81_000, 80, 1_000, id="to-the-threshold"),
        pytest.param(11_000, 78, 0, id="calm"),
        pytest.param(80_000, 78, 2_000, id="exactly-at"),
        pytest.param(79_999, 78, 0, id="just-under"),
    ],
)
def test_usage_release_of_100_cores(used: int, lower: int, milli: int) -> None:
    assert usage_release(used, 100_000, 80, lower) == milli


@pytest.mark.parametrize(
    ("requests", "allocatable", "percent", "lower", "released"),
    [
        pytest.param(85_000, 100_000, 80, 70, 15_000, id="over"),
        pytest.param(80_000, 100_000, 80, 70, 0, id="exactly-at"),
        pytest.param(85_000, None, 80, 70, 85_000, id="nothing-lent"),
        pytest.param(85_000, 0, 80, 70, 85_000, id="zero-lent"),
        pytest.param(85_000, 100_000, 0, 0, 85_000, id="zero-threshold"),
    ],
)
def test_excess(requests: int, allocatable: int | None, percent: int, lower: int, released: int) -> None:
    lent = {} if allocatable is None else {BATCH_CPU: allocatable}
    assert excess_requests({BATCH_CPU: requests}, lent, percent, lower) == {BATCH_CPU: released}


def test_pods_count_by_tier_up_to_a_priority() -> None:
    pods = (
        batch("b", 3_000),
        pod("m", LS, priority=7500, requests={MID_CPU: 2_000, CPU: 1}),
        pod("p", LS, priority=9500, requests={CPU: 4_000}),
        pod("f", LS, priority=3500, requests={CPU: 4_000}),
        batch("over", 9_000, phase="Failed"),
    )
    assert requested_by_tier(pods, CPU, 5999) == {BATCH_CPU: 3_000}
    assert requested_by_tier(pods, CPU, 7999) == {BATCH_CPU: 3_000, MID_CPU: 2_000}


def starving(*pods: PodMeta, **changes: Any) -> CpuEvictView:
    """Ten cores of requests must go."""
    return view(be(10_000, 9_500, 50_000), pods=pods, **changes)


def test_be_pods_go_by_priority_then_by_how_much_they_use_of_what_they_asked_for() -> None:
    seen = starving(
        batch("high", 20_000, priority=5900),
        batch("calm", 6_000),
        batch("busy", 6_000),
        pod("ls", LS),
        used_milli={"calm": 100, "busy": 5_000, "high": 20_000},
    )
    plan = decide_cpu_evict(seen)
    assert victims(plan) == ["busy", "calm"]
    first = plan.effects[0]
    assert isinstance(first, EvictionRequest)
    assert first.message == "trigger by koordlet feature BECPUEvict, kill pod: busy"
    assert (first.reason, first.record.actor, first.record.rule) == ("evicted", "koordlet", BE_CPU_EVICT)
    assert first.record.release == {REQUESTED + BATCH_CPU: 10_000}
    assert first.record.frees == {REQUESTED + BATCH_CPU: 6_000}
    assert "10000m of 50000m" in first.record.measured
    assert "0.83" in first.record.why_this_pod


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        pytest.param({A_EVICTION_POLICY: '["BECPUEvict"]'}, ["a"], id="named"),
        pytest.param({A_EVICTION_POLICY: '["MemoryEvict"]'}, [], id="another-named"),
        pytest.param({A_EVICTION_POLICY: "bad"}, [], id="unreadable"),
        pytest.param({}, ["a"], id="not-said"),
    ],
)
def test_pods_say_who_may_evict_them(annotations: dict[str, str], expected: list[str]) -> None:
    assert victims(decide_cpu_evict(starving(batch("a", 10_000, annotations=annotations)))) == expected


@pytest.mark.parametrize("how", ["ours", "deleted"])
def test_a_victim_that_hangs_does_not_drag_others_along(how: str) -> None:
    stuck = batch("stuck", 10_000, terminating=how == "deleted")
    leaving = frozenset({"stuck"} if how == "ours" else ())
    seen = starving(stuck, batch("next", 10_000), leaving=leaving)
    for _ in range(5):
        assert victims(decide_cpu_evict(seen)) == []


def test_what_is_still_missing_after_the_credit_is_taken() -> None:
    seen = starving(batch("stuck", 4_000), batch("next", 7_000), batch("last", 7_000), leaving=frozenset({"stuck"}))
    plan = decide_cpu_evict(seen)
    assert victims(plan) == ["last"]
    assert isinstance(plan.effects[0], EvictionRequest)
    assert plan.effects[0].record.credited == {REQUESTED + BATCH_CPU: 4_000}


def test_nobody_goes_who_frees_nothing() -> None:
    assert victims(decide_cpu_evict(starving(batch("empty", 0, priority=5000), batch("full", 10_000)))) == ["full"]


def test_a_pod_that_must_stay_is_passed_over() -> None:
    seen = starving(batch("kept", 10_000), batch("other", 10_000, priority=5600), barred={"kept": "budget"})
    assert victims(decide_cpu_evict(seen)) == ["other"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        pytest.param({"since_last_s": 19.0}, "19s ago", id="too-soon"),
        pytest.param({"enabled": False}, "off", id="off"),
        pytest.param({"enabled": None}, "NodeSLO", id="no-node-slo"),
        pytest.param({"capacity_milli": 0}, "capacity", id="no-capacity"),
        pytest.param({"features": frozenset()}, "", id="no-feature"),
    ],
)
def test_nothing_happens(changes: dict[str, Any], word: str) -> None:
    plan = decide_cpu_evict(msgspec.structs.replace(starving(batch("a", 10_000)), **changes))
    assert plan.effects == ()
    assert word in plan.why


def hot(*pods: PodMeta, **changes: Any) -> CpuEvictView:
    """Three cores of use must go, from pods up to priority 5999."""
    return view(
        None,
        features=frozenset({CPU_EVICT}),
        node_used_milli=81_000,
        cpu_evict_threshold_percent=80,
        evict_enabled_priority_threshold=5999,
        pods=pods,
        **changes,
    )


def test_hot_nodes_lose_consenting_pods_in_order() -> None:
    seen = hot(
        batch("mute", 1),
        batch("own-word", 1, labels=BOTH, annotations={A_EVICTION_PRIORITY: "-1"}, priority=5900),
        batch("late", 1, labels=BOTH, annotations={A_EVICTION_PRIORITY: "5"}, priority=5000),
        batch("small", 1, labels=BOTH),
        batch("large", 1, labels=BOTH),
        batch("sub", 1, labels={**BOTH, L_PRIORITY: "10"}),
        pod("prod", LS, priority=9500, labels=BOTH),
        batch("unmeasured", 1, labels=BOTH, priority=5000),
        used_milli={"mute": 9_000, "own-word": 500, "late": 500, "small": 100, "large": 900, "sub": 500, "prod": 9_000},
    )
    found = usage_task(seen, 100_000)
    assert isinstance(found, EvictionTask)
    assert [one.name for one, _ in found.ranked] == ["own-word", "sub", "large", "small", "late"]
    assert found.release.amounts == {USED + CPU: 3_000}
    assert victims(decide_cpu_evict(seen)) == ["own-word", "sub", "large", "small", "late"]


def test_an_average_of_the_past_is_not_paid_for_twice() -> None:
    seen = hot(batch("a", 1, labels=BOTH), used_milli={"a": 5_000}, node_last_milli=70_000)
    assert victims(decide_cpu_evict(seen)) == []
    assert victims(decide_cpu_evict(msgspec.structs.replace(seen, node_last_milli=90_000))) == ["a"]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"cpu_evict_lower_percent": 80}, id="lower-not-below"),
        pytest.param({"cpu_evict_threshold_percent": None}, id="no-threshold"),
        pytest.param({"cpu_evict_threshold_percent": -1}, id="negative"),
        pytest.param({"evict_enabled_priority_threshold": None}, id="no-priority"),
    ],
)
def test_a_rule_that_can_never_fire_says_so(changes: dict[str, Any]) -> None:
    seen = hot(batch("a", 1, labels=BOTH), used_milli={"a": 5_000})
    broken = msgspec.structs.replace(seen, strategy=msgspec.structs.replace(seen.strategy, **changes))
    plan = decide_cpu_evict(broken)
    assert plan.effects == ()
    assert plan.why.startswith("CPUEvict: ")


def lent(*pods: PodMeta, **changes: Any) -> CpuEvictView:
    return view(
        None,
        features=frozenset({CPU_ALLOCATABLE_EVICT}),
        cpu_allocatable_evict_threshold_percent=80,
        cpu_allocatable_evict_lower_percent=70,
        allocatable_evict_priority_threshold=7999,
        allocatable={BATCH_CPU: 100_000, MID_CPU: 100_000},
        pods=pods,
        used_milli={one.uid: 1 for one in pods},
        **changes,
    )


def test_only_the_tier_that_holds_too_much_pays() -> None:
    mid = pod("mid", LS, priority=7000, labels=BOTH, requests={MID_CPU: 50_000})
    free = pod("free", LS, priority=3500, labels=BOTH, requests={CPU: 99_000})
    small, large = batch("small", 40_000, labels=BOTH), batch("large", 45_000, labels=BOTH)
    assert victims(decide_cpu_evict(lent(mid, free, small, large))) == ["large"]


@pytest.mark.parametrize(
    ("since_s", "expected"),
    [
        pytest.param(5.0, [], id="a-node-that-has-just-registered"),
        pytest.param(60.0, ["b", "a"], id="lending-has-ended"),
    ],
)
def test_pods_outlive_a_moment_without_lending(since_s: float, expected: list[str]) -> None:
    seen = lent(batch("a", 10_000, labels=BOTH), batch("b", 20_000, labels=BOTH), lent_for_s=since_s)
    assert victims(decide_cpu_evict(msgspec.structs.replace(seen, allocatable={BATCH_CPU: 0}))) == expected


def test_rules_share_what_their_victims_free() -> None:
    """The release of one rule covers the other's."""
    seen = lent(batch("a", 50_000, labels=BOTH), batch("b", 40_000, labels=BOTH))
    both = msgspec.structs.replace(
        seen,
        features=frozenset({BE_CPU_EVICT, CPU_ALLOCATABLE_EVICT}),
        be_average=be(10_000, 9_500, 50_000),
        be_last=be(10_000, 9_500, 50_000),
        used_milli={"a": 50_000, "b": 1},
    )
    assert victims(decide_cpu_evict(both)) == ["a"]


def test_nobody_is_evicted_twice() -> None:
    seen = hot(batch("a", 1_000, labels=BOTH), used_milli={"a": 100})
    both = msgspec.structs.replace(
        seen,
        features=frozenset({BE_CPU_EVICT, CPU_EVICT}),
        be_average=be(10_000, 9_500, 50_000),
        be_last=be(10_000, 9_500, 50_000),
    )
    assert victims(decide_cpu_evict(both)) == ["a"]


def test_a_victim_of_one_rule_counts_for_the_use_of_another() -> None:
    seen = hot(batch("a", 20_000, labels=BOTH), batch("b", 20_000, labels=BOTH), used_milli={"a": 5_000, "b": 4_000})
    both = msgspec.structs.replace(
        seen,
        features=frozenset({BE_CPU_EVICT, CPU_EVICT}),
        be_average=be(10_000, 9_500, 50_000),
        be_last=be(10_000, 9_500, 50_000),
    )
    assert victims(decide_cpu_evict(both)) == ["a"]


@settings(max_examples=80)
@given(
    sizes=st.lists(st.integers(0, 20_000), max_size=8),
    used=st.integers(0, 100_000),
    more=st.integers(0, 10_000),
    turn=st.integers(0, 7),
)
def test_a_hotter_node_never_loses_fewer_pods_and_order_does_not_matter(
    sizes: list[int], used: int, more: int, turn: int
) -> None:
    pods = tuple(batch(f"p{place}", 1, labels=BOTH) for place in range(len(sizes)))
    measured = {f"p{place}": size for place, size in enumerate(sizes)}
    seen = hot(*pods, used_milli=measured)
    cool, warm = (
        victims(decide_cpu_evict(msgspec.structs.replace(seen, node_used_milli=n))) for n in (used, used + more)
    )
    assert warm[: len(cool)] == cool
    turned = msgspec.structs.replace(seen, pods=pods[turn:] + pods[:turn], node_used_milli=used)
    assert victims(decide_cpu_evict(turned)) == cool
