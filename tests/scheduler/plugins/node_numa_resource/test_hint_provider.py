"""Hints of cpu and memory name the sets of NUMA nodes that could take a pod, which are preferred, and their scores."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.framework.reservation import NumaTopologyHint, NumaTopologyHints
from koord.scheduler.plugins.node_numa_resource.allocator import allocate_from_available, can_allocate
from koord.scheduler.plugins.node_numa_resource.available import available_resources
from koord.scheduler.plugins.node_numa_resource.cpu_binding import CpuBinding, NumaRequest
from koord.scheduler.plugins.node_numa_resource.cycle_state import NumaScorer
from koord.scheduler.plugins.node_numa_resource.ledger import NumaAllocation, NumaLedger
from koord.scheduler.plugins.node_numa_resource.placement import provide_numa_hints
from koord.scheduler.plugins.node_numa_resource.refusal import NumaRefusal
from koord.scheduler.plugins.node_numa_resource.topology_manager import (
    NumaAffinity,
    admit_pod,
    decide_affinity,
    numa_zones_of,
)
from koord.scheduler.plugins.node_numa_resource.topology_options import NumaZone
from koord.values.bitmask import BitMask
from koord.values.cpuset import CPUSet
from tests.scheduler.plugins.node_numa_resource.numa_builders import GI, LEAST, MOST, machine, node_of

FOUR = machine(1, 4, 4, 2)
TWO = machine(1, 2, 4, 2)


def masks(hints: NumaTopologyHints, name: str, *, preferred: bool) -> list[str]:
    return [str(h.mask) for h in hints[name] or () if h.preferred or not preferred]


def hints_of(
    ledger: NumaLedger, request: NumaRequest, policy: str = "SingleNUMANode", scorer: NumaScorer = LEAST
) -> NumaTopologyHints:
    found = provide_numa_hints(node_of(TWO), ledger, request, policy, scorer)
    assert not isinstance(found, NumaRefusal)
    return found


def test_smallest_sets_are_liked() -> None:
    hints = hints_of(NumaLedger.build(TWO), NumaRequest(amounts={"cpu": 4000, "memory": GI}))
    for name in ("cpu", "memory"):
        assert masks(hints, name, preferred=False) == ["01", "10", "11"]
        assert masks(hints, name, preferred=True) == ["01", "10"]


def test_too_big_for_one() -> None:
    hints = hints_of(NumaLedger.build(TWO), NumaRequest(amounts={"cpu": 10_000, "memory": GI}))
    assert masks(hints, "cpu", preferred=True) == masks(hints, "memory", preferred=False) == ["11"]


def test_restricted_likes_every_set() -> None:
    hints = hints_of(NumaLedger.build(TWO), NumaRequest(amounts={"cpu": 4000}), "Restricted")
    assert masks(hints, "cpu", preferred=True) == ["01", "10", "11"]


def test_too_big_for_all() -> None:
    assert hints_of(NumaLedger.build(TWO), NumaRequest(amounts={"cpu": 99_000, "memory": GI})) == {
        "cpu": [],
        "memory": [],
    }


def test_what_zones_do_not_have_gets_no_hint() -> None:
    hints = hints_of(NumaLedger.build(TWO), NumaRequest(amounts={"cpu": 1000, "nvidia.com/gpu": 1, "memory": 0}))
    assert list(hints) == ["cpu"]


def test_a_used_up_zone_is_in_no_set() -> None:
    ledger = NumaLedger.build(TWO, {"p": NumaAllocation(zones={0: {"cpu": 8000}})})
    hints = hints_of(ledger, NumaRequest(amounts={"cpu": 1000}))
    assert masks(hints, "cpu", preferred=False) == ["10"]


def test_node_without_zones() -> None:
    found = provide_numa_hints(
        node_of(TWO, zones=()), NumaLedger.build(TWO), NumaRequest(amounts={"cpu": 1000}), "Restricted", LEAST
    )
    assert found == NumaRefusal(("node(s) Insufficient NUMA Node resources",))


@pytest.mark.parametrize(
    ("scorer", "used", "chosen"),
    [
        pytest.param(LEAST, {0: {"cpu": 2000}}, 1, id="least-takes-the-emptier"),
        pytest.param(MOST, {1: {"cpu": 2000}}, 1, id="most-takes-the-fuller"),
        pytest.param(LEAST, {}, 0, id="even-takes-the-first"),
        pytest.param(MOST, {0: {"cpu": 6000}}, 1, id="the-only-one-that-fits"),
    ],
)
def test_score_chooses_the_zone(scorer: NumaScorer, used: dict[int, dict[str, int]], chosen: int) -> None:
    ledger = NumaLedger.build(TWO, {"p": NumaAllocation(zones=used)})
    hints = hints_of(ledger, NumaRequest(amounts={"cpu": 4000, "memory": GI}), scorer=scorer)
    zones = numa_zones_of(node_of(TWO), ledger, "")
    assert decide_affinity("SingleNUMANode", zones, [hints]) == NumaAffinity(BitMask.of(chosen))


def test_score_of_a_set() -> None:
    ledger = NumaLedger.build(TWO, {"p": NumaAllocation(zones={0: {"cpu": 2000}})})
    hints = hints_of(ledger, NumaRequest(amounts={"cpu": 2000}))
    # cpu: half of zone 0 is left, three quarters of zone 1 and of both; memory is all free.
    assert [h.score for h in hints["cpu"] or ()] == [75, 87, 87]


def test_own_trial_in_place_of_the_nodes() -> None:
    asked: list[str] = []

    def only_the_second(mask: BitMask) -> bool:
        asked.append(str(mask))
        return mask == BitMask.of(1)

    found = provide_numa_hints(
        node_of(TWO),
        NumaLedger.build(TWO),
        NumaRequest(amounts={"cpu": 1000}),
        "BestEffort",
        LEAST,
        feasible=only_the_second,
    )
    assert not isinstance(found, NumaRefusal)
    assert masks(found, "cpu", preferred=True) == ["10"]
    assert asked == ["01", "10", "11"]


def test_required_policy_narrows_the_sets() -> None:
    """Every core of zone 0 is broken, so whole cores are found in zone 1 only."""
    ledger = NumaLedger.build(TWO, {"p": NumaAllocation(cpus=CPUSet.parse("0,2,4,6"))})
    request = NumaRequest(amounts={"cpu": 4000}, binding=CpuBinding(count=4, policy="FullPCPUs", required=True))
    assert masks(hints_of(ledger, request), "cpu", preferred=False) == ["10"]


@st.composite
def placements(draw: st.DrawFn) -> tuple[NumaLedger, NumaRequest, str, str]:
    used = {
        n: {"cpu": 500 * draw(st.integers(0, 16)), "memory": GI * draw(st.sampled_from([0, 100, 128]))}
        for n in range(4)
    }
    bound = CPUSet.of(draw(st.sets(st.integers(0, 31), max_size=16)))
    ledger = NumaLedger.build(FOUR, {"share": NumaAllocation(zones=used), "bound": NumaAllocation(cpus=bound)})
    count = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 10, 20]))
    binding = None
    if draw(st.booleans()):
        policy = draw(st.sampled_from(["FullPCPUs", "SpreadByPCPUs"]))
        binding = CpuBinding(count=count, policy=policy, required=draw(st.booleans()))
    request = NumaRequest(amounts={"cpu": 1000 * count, "memory": GI * draw(st.integers(0, 60))}, binding=binding)
    policy = draw(st.sampled_from(["BestEffort", "Restricted", "SingleNUMANode"]))
    return ledger, request, policy, draw(st.sampled_from(["", "Required"]))


@settings(max_examples=60, deadline=None)
@given(placements())
def test_looking_at_single_zones_first_decides_the_same(case: tuple[NumaLedger, NumaRequest, str, str]) -> None:
    ledger, request, policy, exclusive = case
    node = node_of(FOUR)
    zones = numa_zones_of(node, ledger, exclusive)
    whole = provide_numa_hints(node, ledger, request, policy, LEAST)
    assert not isinstance(whole, NumaRefusal)
    early = admit_pod(
        policy, zones, [lambda width: provide_numa_hints(node, ledger, request, policy, LEAST, widest=width)]
    )
    assert early == decide_affinity(policy, zones, [whole])


@settings(max_examples=100, deadline=None)
@given(placements(), st.integers(1, 15), st.integers(0, 1 << 32))
def test_numbers_tell_whether_a_set_takes_the_pod(
    case: tuple[NumaLedger, NumaRequest, str, str], zones: int, kept: int
) -> None:
    ledger, request, _, _ = case
    node, mask = node_of(FOUR), BitMask(zones)
    for asked in (request, msgspec.structs.replace(request, preferred=kept & FOUR.cpus)):
        stock = available_resources(node, ledger, asked)
        assert can_allocate(node, stock, asked, mask) == isinstance(
            allocate_from_available(node, stock, asked, mask), NumaAllocation
        )


@settings(max_examples=60, deadline=None)
@given(placements())
def test_liked_sets_are_the_smallest_and_hold_the_pod(case: tuple[NumaLedger, NumaRequest, str, str]) -> None:
    ledger, request, _, _ = case
    found = provide_numa_hints(node_of(FOUR), ledger, request, "SingleNUMANode", LEAST)
    assert not isinstance(found, NumaRefusal)
    for name, hints in found.items():
        sizes = [(len(h.mask or ()), h.preferred) for h in hints or ()]
        if sizes:
            smallest = min(size for size, _ in sizes)
            assert all(preferred == (wide == smallest) for wide, preferred in sizes)
        size = 8000 if name == "cpu" else 128 * GI
        for h in hints or ():
            room = sum(size - ledger.zone_amounts.get(n, {}).get(name, 0) for n in h.mask or ())
            assert room >= request.amounts[name]


def test_four_zones_of_unlike_size() -> None:
    sizes = (2000, 8000, 4000, 8000)
    node = node_of(FOUR, zones=tuple(NumaZone(n, {"cpu": size}) for n, size in enumerate(sizes)))
    found = provide_numa_hints(node, NumaLedger.build(FOUR), NumaRequest(amounts={"cpu": 12_000}), "BestEffort", LEAST)
    assert not isinstance(found, NumaRefusal)
    assert masks(found, "cpu", preferred=True) == ["0110", "1010", "1100"]
    assert isinstance((found["cpu"] or [])[0], NumaTopologyHint)
