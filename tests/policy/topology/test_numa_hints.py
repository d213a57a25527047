"""Hints of cpu and memory name the sets of NUMA nodes that could take a pod, which are preferred, and their scores."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.policy.topology.admission import Affinity, admit, decide, zones_for
from koord.policy.topology.allocation import allocate_from, fits
from koord.policy.topology.binding import Binding
from koord.policy.topology.hint import Hint, Hints
from koord.policy.topology.hint_source import numa_hints
from koord.policy.topology.ledger import Allocation, Ledger
from koord.policy.topology.node import NumaZone
from koord.policy.topology.refusal import Short
from koord.policy.topology.request import Request
from koord.policy.topology.room import can_fit_one_zone, room
from koord.policy.topology.score import Scorer
from koord.policy.topology.stock import take_stock
from koord.values.bitmask import BitMask
from koord.values.cpuset import CPUSet
from tests.policy.topology.machine import GI, LEAST, MOST, machine, node_of

FOUR = machine(1, 4, 4, 2)
TWO = machine(1, 2, 4, 2)


def masks(hints: Hints, name: str, *, preferred: bool) -> list[str]:
    return [str(h.mask) for h in hints[name] or () if h.preferred or not preferred]


def hints_of(ledger: Ledger, request: Request, policy: str = "SingleNUMANode", scorer: Scorer = LEAST) -> Hints:
    found = numa_hints(node_of(TWO), ledger, request, policy, scorer)
    assert not isinstance(found, Short)
    return found


def test_smallest_sets_are_liked() -> None:
    hints = hints_of(Ledger.over(TWO), Request(amounts={"cpu": 4000, "memory": GI}))
    for name in ("cpu", "memory"):
        assert masks(hints, name, preferred=False) == ["01", "10", "11"]
        assert masks(hints, name, preferred=True) == ["01", "10"]


def test_too_big_for_one() -> None:
    hints = hints_of(Ledger.over(TWO), Request(amounts={"cpu": 10_000, "memory": GI}))
    assert masks(hints, "cpu", preferred=True) == masks(hints, "memory", preferred=False) == ["11"]


def test_restricted_likes_every_set() -> None:
    hints = hints_of(Ledger.over(TWO), Request(amounts={"cpu": 4000}), "Restricted")
    assert masks(hints, "cpu", preferred=True) == ["01", "10", "11"]


def test_too_big_for_all() -> None:
    assert hints_of(Ledger.over(TWO), Request(amounts={"cpu": 99_000, "memory": GI})) == {"cpu": [], "memory": []}


def test_what_zones_do_not_have_gets_no_hint() -> None:
    hints = hints_of(Ledger.over(TWO), Request(amounts={"cpu": 1000, "nvidia.com/gpu": 1, "memory": 0}))
    assert list(hints) == ["cpu"]


def test_a_used_up_zone_is_in_no_set() -> None:
    ledger = Ledger.over(TWO, {"p": Allocation(zones={0: {"cpu": 8000}})})
    hints = hints_of(ledger, Request(amounts={"cpu": 1000}))
    assert masks(hints, "cpu", preferred=False) == ["10"]


def test_node_without_zones() -> None:
    found = numa_hints(node_of(TWO, zones=()), Ledger.over(TWO), Request(amounts={"cpu": 1000}), "Restricted", LEAST)
    assert found == Short(("node(s) Insufficient NUMA Node resources",))


@pytest.mark.parametrize(
    ("scorer", "used", "chosen"),
    [
        pytest.param(LEAST, {0: {"cpu": 2000}}, 1, id="least-takes-the-emptier"),
        pytest.param(MOST, {1: {"cpu": 2000}}, 1, id="most-takes-the-fuller"),
        pytest.param(LEAST, {}, 0, id="even-takes-the-first"),
        pytest.param(MOST, {0: {"cpu": 6000}}, 1, id="the-only-one-that-fits"),
    ],
)
def test_score_chooses_the_zone(scorer: Scorer, used: dict[int, dict[str, int]], chosen: int) -> None:
    ledger = Ledger.over(TWO, {"p": Allocation(zones=used)})
    hints = hints_of(ledger, Request(amounts={"cpu": 4000, "memory": GI}), scorer=scorer)
    zones = zones_for(node_of(TWO), ledger, "")
    assert decide("SingleNUMANode", zones, [hints]) == Affinity(BitMask.of(chosen))


def test_score_of_a_set() -> None:
    ledger = Ledger.over(TWO, {"p": Allocation(zones={0: {"cpu": 2000}})})
    hints = hints_of(ledger, Request(amounts={"cpu": 2000}))
    # cpu: half of zone 0 is left, three quarters of zone 1 and of both; memory is all free.
    assert [h.score for h in hints["cpu"] or ()] == [75, 87, 87]


def test_own_trial_in_place_of_the_nodes() -> None:
    asked: list[str] = []

    def only_the_second(mask: BitMask) -> bool:
        asked.append(str(mask))
        return mask == BitMask.of(1)

    found = numa_hints(
        node_of(TWO), Ledger.over(TWO), Request(amounts={"cpu": 1000}), "BestEffort", LEAST, feasible=only_the_second
    )
    assert not isinstance(found, Short)
    assert masks(found, "cpu", preferred=True) == ["10"]
    assert asked == ["01", "10", "11"]


def test_required_policy_narrows_the_sets() -> None:
    """Every core of zone 0 is broken, so whole cores are found in zone 1 only."""
    ledger = Ledger.over(TWO, {"p": Allocation(cpus=CPUSet.parse("0,2,4,6"))})
    request = Request(amounts={"cpu": 4000}, binding=Binding(count=4, policy="FullPCPUs", required=True))
    assert masks(hints_of(ledger, request), "cpu", preferred=False) == ["10"]


@st.composite
def placements(draw: st.DrawFn) -> tuple[Ledger, Request, str, str]:
    used = {
        n: {"cpu": 500 * draw(st.integers(0, 16)), "memory": GI * draw(st.sampled_from([0, 100, 128]))}
        for n in range(4)
    }
    bound = CPUSet.of(draw(st.sets(st.integers(0, 31), max_size=16)))
    ledger = Ledger.over(FOUR, {"share": Allocation(zones=used), "bound": Allocation(cpus=bound)})
    count = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 10, 20]))
    binding = None
    if draw(st.booleans()):
        policy = draw(st.sampled_from(["FullPCPUs", "SpreadByPCPUs"]))
        binding = Binding(count=count, policy=policy, required=draw(st.booleans()))
    request = Request(amounts={"cpu": 1000 * count, "memory": GI * draw(st.integers(0, 60))}, binding=binding)
    policy = draw(st.sampled_from(["BestEffort", "Restricted", "SingleNUMANode"]))
    return ledger, request, policy, draw(st.sampled_from(["", "Required"]))


@settings(max_examples=60, deadline=None)
@given(placements())
def test_looking_at_single_zones_first_decides_the_same(case: tuple[Ledger, Request, str, str]) -> None:
    ledger, request, policy, exclusive = case
    node = node_of(FOUR)
    zones = zones_for(node, ledger, exclusive)
    whole = numa_hints(node, ledger, request, policy, LEAST)
    assert not isinstance(whole, Short)
    early = admit(policy, zones, [lambda width: numa_hints(node, ledger, request, policy, LEAST, widest=width)])
    assert early == decide(policy, zones, [whole])


@settings(max_examples=100, deadline=None)
@given(placements(), st.integers(1, 15), st.integers(0, 1 << 32))
def test_numbers_tell_whether_a_set_takes_the_pod(
    case: tuple[Ledger, Request, str, str], zones: int, kept: int
) -> None:
    ledger, request, _, _ = case
    node, mask = node_of(FOUR), BitMask(zones)
    for asked in (request, msgspec.structs.replace(request, preferred=kept & FOUR.cpus)):
        stock = take_stock(node, ledger, asked)
        assert fits(node, stock, asked, mask) == isinstance(allocate_from(node, stock, asked, mask), Allocation)


@settings(max_examples=100, deadline=None)
@given(placements())
def test_bound_tells_what_single_numa_node_admits(case: tuple[Ledger, Request, str, str]) -> None:
    ledger, request, _, exclusive = case
    node, policy = node_of(FOUR), "SingleNUMANode"
    hints = numa_hints(node, ledger, request, policy, LEAST)
    assert not isinstance(hints, Short)
    admitted = decide(policy, zones_for(node, ledger, exclusive), [hints])
    count = request.binding.count if request.binding else 0
    there = room(node, ledger)
    told = can_fit_one_zone(there, request.amounts, count=count, must=request.must, exclusive=exclusive)
    assert told == isinstance(admitted, Affinity)


@settings(max_examples=60, deadline=None)
@given(placements())
def test_liked_sets_are_the_smallest_and_hold_the_pod(case: tuple[Ledger, Request, str, str]) -> None:
    ledger, request, _, _ = case
    found = numa_hints(node_of(FOUR), ledger, request, "SingleNUMANode", LEAST)
    assert not isinstance(found, Short)
    for name, hints in found.items():
        sizes = [(len(h.mask or ()), h.preferred) for h in hints or ()]
        if sizes:
            smallest = min(size for size, _ in sizes)
            assert all(preferred == (wide == smallest) for wide, preferred in sizes)
        size = 8000 if name == "cpu" else 128 * GI
        for h in hints or ():
            room = sum(size - ledger.amounts.get(n, {}).get(name, 0) for n in h.mask or ())
            assert room >= request.amounts[name]


def test_four_zones_of_unlike_size() -> None:
    sizes = (2000, 8000, 4000, 8000)
    node = node_of(FOUR, zones=tuple(NumaZone(n, {"cpu": size}) for n, size in enumerate(sizes)))
    found = numa_hints(node, Ledger.over(FOUR), Request(amounts={"cpu": 12_000}), "BestEffort", LEAST)
    assert not isinstance(found, Short)
    assert masks(found, "cpu", preferred=True) == ["0110", "1010", "1100"]
    assert isinstance((found["cpu"] or [])[0], Hint)
