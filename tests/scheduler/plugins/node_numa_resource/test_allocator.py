"""CPUs and NUMA amounts are allocated together as upstream does, on two sockets of 26 cores with a NUMA node each."""

from __future__ import annotations

import pytest

from koord.scheduler.plugins.node_numa_resource.allocator import allocate_designated, allocate_numa
from koord.scheduler.plugins.node_numa_resource.available import free_cpu_pool
from koord.scheduler.plugins.node_numa_resource.cpu_binding import CpuBinding, NumaRequest
from koord.scheduler.plugins.node_numa_resource.cpu_topology import InvalidCpuTopology
from koord.scheduler.plugins.node_numa_resource.ledger import NumaAllocation, NumaLedger
from koord.scheduler.plugins.node_numa_resource.refusal import NumaRefusal
from koord.scheduler.plugins.node_numa_resource.topology_options import NumaZone, TopologyOptions
from koord.values.bitmask import BitMask
from koord.values.cpuset import CPUSet
from tests.scheduler.plugins.node_numa_resource.numa_builders import GI, bits, holding, machine, node_of

FULL, SPREAD = "FullPCPUs", "SpreadByPCPUs"
BIG = machine(2, 1, 26, 2)
NODE = node_of(BIG)


def bound(count: int, policy: str, *, required: bool = False, exclusive: str = "") -> CpuBinding:
    return CpuBinding(count=count, policy=policy, required=required, exclusive=exclusive)


def asked(cpu: float, binding: CpuBinding | None = None) -> NumaRequest:
    return NumaRequest(amounts={"cpu": int(1000 * cpu), "memory": 4 * GI}, binding=binding)


@pytest.mark.parametrize(
    ("held", "zones", "count", "policy", "required", "chosen", "per_zone"),
    [
        pytest.param("", (0,), 4, FULL, False, "0-3", {0: 4}, id="full-on-one"),
        pytest.param("", (0,), 4, SPREAD, False, "0,2,4,6", {0: 4}, id="spread-on-one"),
        pytest.param("", (0, 1), 4, FULL, False, "0-1,52-53", {0: 2, 1: 2}, id="full-on-both"),
        pytest.param("1,3,5,7-104", (0,), 4, SPREAD, True, "0,2,4,6", {0: 4}, id="required-spread-fits"),
        pytest.param("4-101", (0, 1), 4, FULL, True, "0-1,102-103", {0: 2, 1: 2}, id="required-full-on-both"),
        pytest.param("4-101", (0, 1), 4, FULL, False, "0-1,102-103", {0: 2, 1: 2}, id="full-what-is-left-of-both"),
        pytest.param("1,3,5,7-101,103", (0, 1), 4, SPREAD, True, "0,2,4,102", {0: 3, 1: 1}, id="tighter-zone-first"),
        pytest.param("1,3,5,7-97,103", (0, 1), 5, SPREAD, True, "0,2,4,98,100", {0: 3, 1: 2}, id="uneven-halves"),
    ],
)
def test_bound_on_zones(
    held: str, zones: tuple[int, ...], count: int, policy: str, required: bool, chosen: str, per_zone: dict[int, int]
) -> None:
    request = asked(count, bound(count, policy, required=required))
    given = allocate_numa(NODE, holding(BIG, held), request, BitMask.of(*zones))
    assert isinstance(given, NumaAllocation), given
    assert str(given.cpus) == chosen
    assert {zone: amounts["cpu"] for zone, amounts in given.zones.items()} == {z: 1000 * n for z, n in per_zone.items()}
    assert sum(amounts["memory"] for amounts in given.zones.values()) == 4 * GI


@pytest.mark.parametrize(
    ("held", "zones", "count", "policy", "required", "refusal"),
    [
        pytest.param("1,3,5,7-104", (0,), 4, FULL, True, "Insufficient NUMA cpu", id="no-whole-core-is-free"),
        pytest.param("4-104", (0,), 4, SPREAD, True, "Insufficient NUMA cpu", id="too-few-cores-to-spread"),
        pytest.param("", (0,), 54, FULL, False, "Insufficient NUMA cpu", id="larger-than-the-zone"),
        pytest.param(
            "4-51", (0,), 6, FULL, False, "not enough cpus available to satisfy request", id="cpus-bound-without-zones"
        ),
        pytest.param(
            "2-103", None, 4, FULL, False, "not enough cpus available to satisfy request", id="not-enough-anywhere"
        ),
    ],
)
def test_refused(
    held: str, zones: tuple[int, ...] | None, count: int, policy: str, required: bool, refusal: str
) -> None:
    mask = None if zones is None else BitMask.of(*zones)
    found = allocate_numa(NODE, holding(BIG, held), asked(count, bound(count, policy, required=required)), mask)
    assert found == NumaRefusal((refusal,))


def test_booked_amounts_and_bound_cpus_count_both() -> None:
    before = {0: {"cpu": 48_000}, 1: {"cpu": 48_000}}
    ledger = holding(BIG, "0-43,53-96", zones=before)
    given = allocate_numa(NODE, ledger, asked(8, bound(8, FULL)), BitMask.of(0, 1))
    assert isinstance(given, NumaAllocation)
    assert str(given.cpus) == "44-47,98-101"


def test_what_zones_do_not_know_is_not_theirs_to_refuse() -> None:
    request = NumaRequest(amounts={"cpu": 1000, "memory": 4 * GI, "koordinator.sh/gpu-memory": 80 * GI})
    given = allocate_numa(NODE, NumaLedger.build(BIG), request, BitMask.of(0))
    assert given == NumaAllocation(zones={0: {"cpu": 1000, "memory": 4 * GI}})


def test_every_short_resource_is_told_in_order() -> None:
    request = NumaRequest(amounts={"memory": 999 * GI, "cpu": 99_000})
    found = allocate_numa(NODE, NumaLedger.build(BIG), request, BitMask.of(0))
    assert found == NumaRefusal(("Insufficient NUMA cpu", "Insufficient NUMA memory"))


@pytest.mark.parametrize(
    ("cpu", "zones", "given"),
    [
        pytest.param(4.0, (0,), None, id="three-left-is-not-four"),
        pytest.param(3.0, (0,), {0: 3000}, id="three-left"),
        pytest.param(3.5, (0, 1), {0: 1750, 1: 1750}, id="over-both"),
    ],
)
def test_bound_cpus_of_an_amplified_node_stand_for_more(
    cpu: float, zones: tuple[int, ...], given: dict[int, int] | None
) -> None:
    big = tuple(NumaZone(z.number, {**z.amounts, "cpu": 78_000}) for z in NODE.zones)
    node = node_of(BIG, zones=big, ratio=1.5, node_ratio=1.5)
    ledger = holding(BIG, "0-49,52-101", zones={0: {"cpu": 50_000}, 1: {"cpu": 50_000}})
    found = allocate_numa(node, ledger, asked(cpu), BitMask.of(*zones))
    if given is None:
        assert found == NumaRefusal(("Insufficient NUMA cpu",))
    else:
        assert isinstance(found, NumaAllocation)
        assert {zone: amounts["cpu"] for zone, amounts in found.zones.items()} == given


def test_half_a_cpu_taken_does_not_break_a_whole_one() -> None:
    """The zone has 3.5 left: three whole CPUs come from it, not three and a half."""
    ledger = NumaLedger.build(BIG, {"share": NumaAllocation(zones={0: {"cpu": 48_500}})})
    given = allocate_numa(NODE, ledger, asked(8, bound(8, SPREAD)), BitMask.of(0, 1))
    assert isinstance(given, NumaAllocation)
    assert {zone: amounts["cpu"] for zone, amounts in given.zones.items()} == {0: 3000, 1: 5000}


def test_three_zones_are_filled_from_the_tightest() -> None:
    """Apart from upstream, whose order goes wrong where the mask is not the first NUMA nodes in a row."""
    four = machine(1, 4, 4, 2)
    ledger = NumaLedger.build(four, {"p": NumaAllocation(zones={3: {"cpu": 7000}, 1: {"cpu": 2000}})})
    given = allocate_numa(node_of(four), ledger, NumaRequest(amounts={"cpu": 9000}), BitMask.of(1, 2, 3))
    assert given == NumaAllocation(zones={1: {"cpu": 4000}, 2: {"cpu": 4000}, 3: {"cpu": 1000}})


def test_without_mask_nothing_is_booked_on_zones() -> None:
    given = allocate_numa(NODE, NumaLedger.build(BIG), asked(4, bound(4, FULL)))
    assert given == NumaAllocation(cpus=CPUSet.parse("0-3"))


def test_mask_on_a_node_without_zones() -> None:
    found = allocate_numa(node_of(BIG, zones=()), NumaLedger.build(BIG), asked(1), BitMask.of(0))
    assert found == NumaRefusal(("insufficient resources on NUMA Node",), is_unresolvable=True)


def test_binding_without_topology() -> None:
    node = TopologyOptions(cpu=InvalidCpuTopology("gone"))
    found = allocate_numa(node, NumaLedger.build(None), asked(1, bound(1, FULL)))
    assert found == NumaRefusal(("node(s) invalid CPU Topology",), is_unresolvable=True)


def test_required_policy_is_verified_on_what_reservations_offer() -> None:
    """Three CPUs are kept for the pod, so no choice of four that begins with them has whole cores only."""
    ledger = holding(BIG, "0-1,4")
    request = NumaRequest(amounts={"cpu": 4000}, binding=bound(4, FULL, required=True), preferred=bits("0-1,4"))
    refused = NumaRefusal(("insufficient CPUs to satisfy required cpu bind policy FullPCPUs",))
    assert allocate_numa(NODE, ledger, request) == refused
    tried = NumaRequest(amounts={"cpu": 4000}, binding=bound(4, FULL), preferred=bits("0-1,4"))
    given = allocate_numa(NODE, ledger, tried)
    assert isinstance(given, NumaAllocation)
    assert given.cpus == CPUSet.parse("0-1,4,52")  # beyond the kept ones, a CPU is chosen as if for itself


def test_reserved_cpus_are_never_given() -> None:
    node = node_of(BIG, reserved=bits("0-51"))
    given = allocate_numa(node, NumaLedger.build(BIG), asked(4, bound(4, FULL)))
    assert isinstance(given, NumaAllocation)
    assert str(given.cpus) == "52-55"


@pytest.mark.parametrize(
    ("held", "outcome"),
    [
        pytest.param("", "4-7", id="still-free"),
        pytest.param("5", "not enough cpus available to satisfy request", id="taken-by-another"),
    ],
)
def test_designated_cpus_are_had_again_or_not_at_all(held: str, outcome: str) -> None:
    promised = NumaAllocation(cpus=CPUSet.parse("4-7"), zones={0: {"cpu": 4000, "memory": 4 * GI}})
    found = allocate_designated(NODE, holding(BIG, held), asked(4, bound(4, FULL)), promised)
    assert (str(found.cpus) if isinstance(found, NumaAllocation) else str(found)) == outcome


def test_confined_to_what_a_reservation_has_left() -> None:
    request = NumaRequest(amounts={"cpu": 4000, "memory": GI}, confined_to={0: {"cpu": 2000, "memory": 8 * GI}})
    assert allocate_numa(NODE, NumaLedger.build(BIG), request, BitMask.of(0)) == NumaRefusal(("Insufficient NUMA cpu",))


def test_more_reusable_than_used_does_not_enlarge_a_zone() -> None:
    request = NumaRequest(amounts={"cpu": 53_000}, reusable={0: {"cpu": 10_000}})
    assert allocate_numa(NODE, NumaLedger.build(BIG), request, BitMask.of(0)) == NumaRefusal(("Insufficient NUMA cpu",))


def test_cpus_given_up_for_the_pod_are_nobodys() -> None:
    ledger = holding(BIG, "0,2", exclusive="PCPULevel")
    assert free_cpu_pool(NODE, ledger).pcpu_exclusive == bits("0,2")
    pool = free_cpu_pool(NODE, ledger, bits("2"))
    assert pool.pcpu_exclusive == bits("0")
    assert pool.available == BIG.cpus & ~bits("0")


def test_what_is_reusable_counts_as_free() -> None:
    ledger = NumaLedger.build(BIG, {"reservation": NumaAllocation(zones={0: {"cpu": 50_000}})})
    assert isinstance(allocate_numa(NODE, ledger, asked(4), BitMask.of(0)), NumaRefusal)
    request = NumaRequest(amounts={"cpu": 4000}, reusable={0: {"cpu": 50_000}})
    assert allocate_numa(NODE, ledger, request, BitMask.of(0)) == NumaAllocation(zones={0: {"cpu": 4000}})
