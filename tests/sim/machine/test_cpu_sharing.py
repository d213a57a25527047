"""CPU is shared by weight along the hierarchy, within quotas, CPU sets and ranks; none is lost and none invented."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.sim.machine import cfs
from koord.sim.machine.cfs import UNBOUNDED, CfsGroup, divide_cpu

FOUR = 0b1111


def machine(mask: int = FOUR) -> CfsGroup:
    return CfsGroup("/", mask=mask)


def test_everybody_gets_what_they_want_while_there_is_enough() -> None:
    root = machine()
    CfsGroup("a", root, weight=2)
    CfsGroup("b", root, weight=2048)
    assert divide_cpu(root, {"a": 3000, "b": 1000}) == {"a": 3000, "b": 1000}


def test_weights_settle_what_is_short() -> None:
    root = machine()
    CfsGroup("a", root, weight=1024)
    CfsGroup("b", root, weight=3072)
    assert divide_cpu(root, {"a": 4000, "b": 4000}) == pytest.approx({"a": 1000, "b": 3000})


def test_what_one_leaves_the_others_of_its_group_share_first() -> None:
    root = machine()
    services = CfsGroup("services", root, weight=1024)
    CfsGroup("web", services, weight=1024)
    CfsGroup("db", services, weight=1024)
    CfsGroup("other", root, weight=1024)
    got = divide_cpu(root, {"web": 100, "db": 4000, "other": 4000})
    assert got == pytest.approx({"web": 100, "db": 1900, "other": 2000})


def test_a_group_quota_holds_all_below_it() -> None:
    root = machine()
    jobs = CfsGroup("jobs", root, weight=1024, bound_milli=1500)
    CfsGroup("one", jobs)
    CfsGroup("two", jobs, bound_milli=500)
    assert divide_cpu(root, {"one": 4000, "two": 4000}) == pytest.approx({"one": 1000, "two": 500})


def test_a_cpu_set_leaves_the_rest_to_others() -> None:
    root = machine()
    CfsGroup("service", root, weight=2)
    CfsGroup("job", root, weight=1 << 18, mask=0b0001)
    assert divide_cpu(root, {"service": 3000, "job": 4000}) == pytest.approx({"service": 3000, "job": 1000})


def test_work_that_can_go_elsewhere_makes_room() -> None:
    root = machine(0b11)
    CfsGroup("left", root, mask=0b01)
    CfsGroup("anywhere", root)
    assert divide_cpu(root, {"left": 1000, "anywhere": 1000}) == pytest.approx({"left": 1000, "anywhere": 1000})


def test_a_higher_rank_is_served_first_whatever_the_weights() -> None:
    root = machine()
    CfsGroup("job", root, weight=1 << 18, rank=-1)
    CfsGroup("service", root, weight=2, rank=2)
    assert divide_cpu(root, {"job": 9000, "service": 3500}) == pytest.approx({"job": 500, "service": 3500})


def test_a_rank_holds_below_its_group() -> None:
    root = machine()
    CfsGroup("job", CfsGroup("jobs", root, weight=1 << 18, rank=-1))
    CfsGroup("service", root)
    assert divide_cpu(root, {"job": 4000, "service": 4000}) == pytest.approx({"job": 0, "service": 4000})


masks = st.integers(1, 0b11111111)
bounds = st.one_of(st.just(UNBOUNDED), st.integers(0, 6000).map(float))


@st.composite
def trees(draw: st.DrawFn) -> tuple[CfsGroup, dict[str, float], dict[str, int]]:
    """A machine of eight CPUs, up to four groups of up to four containers; wishes and the CPUs that each may use."""
    every = 0b11111111
    root = CfsGroup("/", mask=every)
    demands: dict[str, float] = {}
    reach: dict[str, int] = {}
    for outer in range(draw(st.integers(1, 4))):
        mask = draw(st.one_of(st.none(), masks))
        group = CfsGroup(
            f"g{outer}",
            root,
            weight=draw(st.integers(2, 9000)),
            bound_milli=draw(bounds),
            mask=mask,
            rank=draw(st.one_of(st.none(), st.integers(-1, 2))),
        )
        for inner in range(draw(st.integers(1, 4))):
            own = draw(st.one_of(st.none(), masks))
            name = f"g{outer}/c{inner}"
            CfsGroup(name, group, weight=draw(st.integers(2, 9000)), bound_milli=draw(bounds), mask=own)
            demands[name] = float(draw(st.integers(0, 9000)))
            reach[name] = every & (every if mask is None else mask) & (every if own is None else own)
    return root, demands, reach


def fits(reach: dict[str, int], got: dict[str, float]) -> bool:
    """Whether no CPUs have more work than they can do, looked at over all sets of CPUs that anybody may use."""
    unions = {0}
    for mask in set(reach.values()):
        unions |= {union | mask for union in unions}
    return all(
        sum(amount for name, amount in got.items() if reach[name] & ~union == 0) <= union.bit_count() * 1000 + 0.01
        for union in unions
    )


@settings(max_examples=300, deadline=None)
@given(trees())
def test_nobody_gets_more_than_they_want_or_may_have(tree: tuple[CfsGroup, dict[str, float], dict[str, int]]) -> None:
    root, demands, reach = tree
    got = divide_cpu(root, demands)
    assert got.keys() == demands.keys()
    for group in root.walk():
        below = [leaf.name for leaf in group.walk() if not leaf.children]
        assert sum(got[name] for name in below) <= min(group.bound_milli, UNBOUNDED) + 0.01
    for name, wanted in demands.items():
        assert -1e-9 <= got[name] <= wanted + 1e-9
    assert fits(reach, got)


@settings(max_examples=300, deadline=None)
@given(trees())
def test_nothing_idle_is_kept_from_those_who_want_it(tree: tuple[CfsGroup, dict[str, float], dict[str, int]]) -> None:
    root, demands, reach = tree
    got = divide_cpu(root, demands)
    for group in root.walk():
        if group.name not in demands or got[group.name] >= min(demands[group.name], group.bound_milli) - 0.01:
            continue
        above = group.parent
        held = False
        while above is not None:
            held |= sum(got[leaf.name] for leaf in above.walk() if leaf.name in got) >= above.bound_milli - 0.02
            above = above.parent
        more = got | {group.name: got[group.name] + 0.05}
        assert held or not reach[group.name] or not fits(reach, more)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(masks, st.integers(0, 800), st.integers(0, 50)), min_size=1, max_size=7))
def test_looking_at_all_sets_and_searching_for_cuts_agree(kinds: list[tuple[int, int, int]]) -> None:
    kept = list({mask: (mask, float(load), float(rate)) for mask, load, rate in kinds}.values())
    shapes, loads, rates = (list(column) for column in zip(*kept, strict=True))
    if cfs._by_all_sets(tuple(shapes), loads, [1e-6] * len(shapes))[0] <= 0:
        return  # does not fit to begin with
    one, _ = cfs._by_all_sets(tuple(shapes), loads, rates)
    other, _ = cfs._by_cuts(shapes, loads, rates)
    assert one == pytest.approx(other, abs=1e-3)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 4000), st.integers(0, 4000), st.integers(0, 4000))
def test_more_service_load_never_costs_the_service_anything(load: int, more: int, job: int) -> None:
    root = machine()
    CfsGroup("service", CfsGroup("burstable", root, weight=2048), weight=2048)
    CfsGroup("job", CfsGroup("besteffort", root, weight=2))
    low = divide_cpu(root, {"service": load, "job": job})["service"]
    high = divide_cpu(root, {"service": min(load + more, 4000), "job": job})["service"]
    assert high >= low - 1e-6
