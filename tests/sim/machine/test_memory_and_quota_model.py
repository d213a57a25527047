"""Memory is protected and killed for as the kernel would; quotas throttle bursty work unless a buffer helps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.sim.machine.cfs import CfsQuota, max_milli_in_step, saved_after, throttled_share
from koord.sim.machine.cpu_contention import compute_contention, queueing_delay
from koord.sim.machine.memory import MemoryDemand, MemoryGroup, settle_memory

TREE = (MemoryGroup(name=""), MemoryGroup(name="a", parent=""), MemoryGroup(name="b", parent=""))


def test_page_cache_goes_before_anybody_dies() -> None:
    held = settle_memory(
        1000, 0, TREE, [MemoryDemand(group="a", allocated=600), MemoryDemand(group="b", allocated=300, cache=300)]
    )
    assert held.kills == ()
    assert held.cache["b"] == 80
    assert held.stalled["b"] == pytest.approx(220 / 600)


def test_protected_memory_is_taken_last() -> None:
    kept = (MemoryGroup(name=""), MemoryGroup(name="a", parent="", low=400), MemoryGroup(name="b", parent=""))
    holders = [MemoryDemand(group="a", allocated=100, cache=300), MemoryDemand(group="b", allocated=100, cache=600)]
    held = settle_memory(1000, 0, kept, holders)
    assert (held.cache["a"], held.cache["b"]) == (300, 480)


def test_a_promise_counts_only_as_far_as_the_parent_makes_it_too() -> None:
    def cache(parent_keeps: int) -> int:
        spaces = (
            MemoryGroup(name=""),
            MemoryGroup(name="class", parent="", least=parent_keeps),
            MemoryGroup(name="class/pod", parent="class", least=400),
            MemoryGroup(name="b", parent=""),
        )
        holders = [MemoryDemand(group="class/pod", allocated=0, cache=400), MemoryDemand(group="b", allocated=900)]
        return settle_memory(1000, 0, spaces, holders).cache["class/pod"]

    assert cache(0) == 80
    assert cache(400) == 400


def test_above_high_growth_is_slow() -> None:
    spaces = (MemoryGroup(name=""), MemoryGroup(name="a", parent="", high=500))
    held = settle_memory(10_000, 0, spaces, [MemoryDemand(group="a", allocated=1500, cache=100)])
    assert held.kills == ()
    assert (held.allocated["a"], held.cache["a"]) == (600, 0)


def test_a_group_may_die_as_one() -> None:
    spaces = (
        MemoryGroup(name=""),
        MemoryGroup(name="p", parent="", limit=100, kill_together=True),
        MemoryGroup(name="p/x", parent="p"),
        MemoryGroup(name="p/y", parent="p"),
    )
    held = settle_memory(
        10_000, 0, spaces, [MemoryDemand(group="p/x", allocated=90), MemoryDemand(group="p/y", allocated=20)]
    )
    assert {kill.group for kill in held.kills} == {"p/x", "p/y"}


def test_priority_beats_size_where_the_kernel_is_told_so() -> None:
    def victim(by_priority: bool) -> str:
        spaces = (MemoryGroup(name="", oom_by_priority=by_priority), *TREE[1:])
        holders = [
            MemoryDemand(group="a", allocated=700, priority=5),
            MemoryDemand(group="b", allocated=400, priority=0),
        ]
        return settle_memory(1000, 0, spaces, holders).kills[0].group

    assert (victim(False), victim(True)) == ("a", "b")


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(0, 900), st.integers(-997, 1000)), max_size=6))
def test_a_machine_never_holds_more_than_it_has(demands: list[tuple[int, int, int]]) -> None:
    names = [f"c{index}" for index in range(len(demands))]
    spaces = (MemoryGroup(name=""), *(MemoryGroup(name=name, parent="") for name in names))
    holders = [
        MemoryDemand(group=name, allocated=allocated, cache=cache, score_adj=adj)
        for name, (allocated, cache, adj) in zip(names, demands, strict=True)
    ]
    held = settle_memory(1000, 100, spaces, holders)
    assert held.total + 100 <= 1000
    for holder in holders:
        assert 0 <= held.allocated.get(holder.group, 0) <= holder.allocated
        assert 0 <= held.cache.get(holder.group, 0) <= holder.cache
    if sum(holder.allocated for holder in holders) <= 900:
        assert held.kills == ()


@pytest.mark.parametrize(
    ("quota", "wanted", "gust", "share"),
    [
        pytest.param(CfsQuota(milli=1000), 900.0, 1.0, 0.0, id="even-flow-within-the-quota"),
        pytest.param(CfsQuota(milli=1000), 1100.0, 1.0, 1.0, id="even-flow-above-the-quota"),
        pytest.param(CfsQuota(milli=1000), 500.0, 4.0, 0.25, id="gusts-without-a-buffer"),
        pytest.param(CfsQuota(milli=1000, burst_milli_s=50.0), 500.0, 4.0, 0.125, id="half-a-gust-is-saved"),
        pytest.param(CfsQuota(milli=1000, burst_milli_s=1000.0), 500.0, 4.0, 0.0, id="a-large-buffer"),
        pytest.param(CfsQuota(), 9000.0, 4.0, 0.0, id="no-quota"),
        pytest.param(CfsQuota(milli=10), 0.0, 4.0, 0.0, id="idle"),
    ],
)
def test_throttled_share(quota: CfsQuota, wanted: float, gust: float, share: float) -> None:
    assert throttled_share(quota, wanted, gust) == pytest.approx(share)


@given(st.floats(1, 5000), st.floats(0, 5000), st.lists(st.floats(0, 9000), max_size=20), st.floats(0.1, 60))
def test_no_more_runs_than_quota_and_buffer_give(
    milli: float, burst: float, demands: list[float], step_s: float
) -> None:
    quota, saved, used = CfsQuota(milli=milli, burst_milli_s=burst), 0.0, 0.0
    for demand in demands:
        ran = min(demand, max_milli_in_step(quota, saved, step_s))
        saved = saved_after(quota, saved, ran, step_s)
        used += ran * step_s
        assert 0 <= saved <= burst
    assert used <= milli * step_s * len(demands) + 1e-3


@given(st.integers(1, 128), st.floats(0, 0.9), st.floats(0, 0.09))
def test_a_busier_machine_is_never_faster(cpus: int, busy: float, more: float) -> None:
    assert queueing_delay(busy + more, cpus) >= queueing_delay(busy, cpus)
    room = cpus * 1000.0

    def latency(load: float) -> float:
        return compute_contention(
            wanted_milli=1, allowed_milli=1, got_milli=1, cpus=cpus, ahead_milli=load * room, behind_milli=0
        ).latency_factor

    assert latency(busy + more) >= latency(busy) >= 1
