"""Pods are allocated inside reservations: theirs first, only theirs, or beside them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.plugins.node_numa_resource.allocator import allocate_numa
from koord.scheduler.plugins.node_numa_resource.available import free_zone_amounts
from koord.scheduler.plugins.node_numa_resource.cpu_binding import CpuBinding, NumaRequest
from koord.scheduler.plugins.node_numa_resource.ledger import NumaAllocation, NumaLedger, total_zone_amounts
from koord.scheduler.plugins.node_numa_resource.refusal import NumaRefusal
from koord.scheduler.plugins.node_numa_resource.reserved_cpus import (
    NodeReservedCpus,
    ReservedCpus,
    allocate_reserved,
    allocate_within_reservation,
    request_beside_reservations,
    request_with_all,
    request_with_one,
)
from koord.values.bitmask import BitMask
from koord.values.cpuset import CPUSet
from tests.scheduler.plugins.node_numa_resource.numa_builders import bits, machine, node_of

TWO = machine(1, 2, 8, 2)
NODE = node_of(TWO)
NOT_ENOUGH = "not enough cpus available to satisfy request"


def cpus(text: str) -> NumaAllocation:
    return NumaAllocation(cpus=CPUSet.parse(text))


def reserved_cpus(
    uid: str, held: NumaAllocation, owners: Iterable[NumaAllocation], *, strict: bool = False
) -> ReservedCpus:
    cpus, zones = 0, []
    for owner in owners:
        cpus |= owner.cpus.bits
        zones.append(owner.zones)
    return ReservedCpus(uid=uid, held=held, owner_cpus=cpus, owner_zones=total_zone_amounts(zones), restricted=strict)


def four(policy: str = "FullPCPUs") -> NumaRequest:
    return NumaRequest(amounts={"cpu": 4000}, binding=CpuBinding(count=4, policy=policy, required=False))


def scene(held: str, owners: str = "", *, strict: bool = False) -> tuple[NumaLedger, NodeReservedCpus]:
    owner = cpus(owners)
    ledger = NumaLedger.build(TWO, {"r": cpus(held), "owner": owner})
    return ledger, NodeReservedCpus((reserved_cpus("r", cpus(held), [owner], strict=strict),))


@pytest.mark.parametrize("strict", [pytest.param(False, id="default"), pytest.param(True, id="restricted")])
def test_cpus_of_the_reservation_first(strict: bool) -> None:
    ledger, reserved = scene("0-10", "0-3", strict=strict)
    assert allocate_reserved(NODE, ledger, four(), reserved) == ("r", cpus("4-7"))


def test_beyond_the_reservation_when_it_may() -> None:
    ledger, reserved = scene("4-5")
    assert allocate_reserved(NODE, ledger, four(), reserved) == ("r", cpus("4-5,16-17"))


@pytest.mark.parametrize(
    ("needed", "outcome"),
    [
        pytest.param(True, NumaRefusal((f"Reservation(s) {NOT_ENOUGH}",)), id="needed"),
        pytest.param(False, None, id="the-node-is-tried-next"),
    ],
)
def test_not_beyond_a_restricted_one(needed: bool, outcome: NumaRefusal | None) -> None:
    ledger, reserved = scene("4-5", strict=True)
    assert allocate_reserved(NODE, ledger, four(), reserved, needed=needed) == outcome


def test_restricted_one_that_lost_a_cpu_to_the_node() -> None:
    ledger, reserved = scene("4-7", strict=True)
    node = node_of(TWO, reserved=bits("4"))
    found = allocate_reserved(node, ledger, four(), reserved, needed=True)
    assert found == NumaRefusal((f"Reservation(s) {NOT_ENOUGH}",))


def test_strangers_do_not_get_reserved_cpus() -> None:
    ledger = NumaLedger.build(TWO, {"r": cpus("0-29")})
    reserved = NodeReservedCpus((), (reserved_cpus("r", cpus("0-29"), []),))
    assert allocate_numa(NODE, ledger, request_beside_reservations(four(), reserved)) == NumaRefusal((NOT_ENOUGH,))


def test_recorded_owner_and_stranger() -> None:
    """Seen of Koordinator: the reservation has 0-7, the stranger goes to the other NUMA node, the owner inside."""
    small = machine(1, 2, 4, 2)
    ledger = NumaLedger.build(small, {"r": cpus("0-7")})
    holding = reserved_cpus("r", cpus("0-7"), [])
    stranger = allocate_numa(
        node_of(small), ledger, request_beside_reservations(four(), NodeReservedCpus((), (holding,)))
    )
    assert stranger == cpus("8-11")
    owner = allocate_reserved(node_of(small), ledger.add("s", cpus("8-11")), four(), NodeReservedCpus((holding,)))
    assert owner == ("r", cpus("0-3"))


def test_first_by_uid() -> None:
    ledger = NumaLedger.build(TWO, {"b": cpus("0-3"), "a": cpus("8-11")})
    reserved = NodeReservedCpus((reserved_cpus("b", cpus("0-3"), []), reserved_cpus("a", cpus("8-11"), [])))
    assert allocate_reserved(NODE, ledger, four(), reserved) == ("a", cpus("8-11"))


def test_other_matched_reservations_keep_their_cpus() -> None:
    ledger = NumaLedger.build(TWO, {"a": cpus("0-1"), "b": cpus("2-31")})
    a, b = reserved_cpus("a", cpus("0-1"), []), reserved_cpus("b", cpus("2-31"), [])
    assert allocate_within_reservation(NODE, ledger, four(), NodeReservedCpus((a, b)), a) == NumaRefusal((NOT_ENOUGH,))


def test_cpus_of_owners_beyond_their_reservation_stay_theirs() -> None:
    ledger, reserved = scene("0-3", "0-31")
    assert allocate_reserved(NODE, ledger, four(), reserved, needed=True) == NumaRefusal(
        (f"Reservation(s) {NOT_ENOUGH}",)
    )


def test_pod_that_minds_no_reservation_has_all_of_them() -> None:
    ledger = NumaLedger.build(TWO, {"a": cpus("0-15"), "b": cpus("16-31")})
    reserved = NodeReservedCpus((reserved_cpus("a", cpus("0-15"), []), reserved_cpus("b", cpus("16-31"), [])))
    assert isinstance(allocate_numa(NODE, ledger, request_with_all(four(), reserved)), NumaAllocation)
    assert isinstance(allocate_numa(NODE, ledger, request_beside_reservations(four(), reserved)), NumaRefusal)


def test_cpus_of_owners_that_would_leave() -> None:
    ledger, reserved = scene("0-3", "0-3", strict=True)
    assert allocate_reserved(NODE, ledger, four(), reserved) is None
    holding = reserved_cpus("r", cpus("0-3"), [], strict=True)
    assert allocate_within_reservation(
        NODE, ledger.remove("owner"), four(), NodeReservedCpus((holding,)), holding
    ) == cpus("0-3")


@pytest.mark.parametrize(
    ("taken", "outcome"),
    [
        pytest.param("4-5", cpus("4-5,16-17"), id="and-more"),
        pytest.param("4-9", NumaRefusal((NOT_ENOUGH,)), id="too-small-for-all-of-them"),
    ],
)
def test_taking_over_a_pod_means_all_its_cpus(taken: str, outcome: NumaAllocation | NumaRefusal) -> None:
    holding = ReservedCpus(uid="p", held=cpus(taken), takes_over=True)
    ledger = NumaLedger.build(TWO, {"p": cpus(taken)})
    assert allocate_within_reservation(NODE, ledger, four(), NodeReservedCpus((holding,)), holding) == outcome


def zones(cpu: int) -> NumaAllocation:
    return NumaAllocation(zones={0: {"cpu": cpu}})


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 8), st.lists(st.integers(0, 6), max_size=3), st.booleans())
def test_amounts_are_counted_once(held: int, owners: list[int], matched: bool) -> None:
    """A node of 16 has a reservation and its owners; the owners may have more than it."""
    pods = {f"o{n}": zones(1000 * cpu) for n, cpu in enumerate(owners)}
    ledger = NumaLedger.build(TWO, {"r": zones(1000 * held), **pods})
    holding = reserved_cpus("r", zones(1000 * held), pods.values())
    reserved = NodeReservedCpus((holding,)) if matched else NodeReservedCpus((), (holding,))
    used = sum(owners)
    beside = free_zone_amounts(NODE, ledger, request_beside_reservations(NumaRequest(amounts={}), reserved).reusable)
    assert beside[0]["cpu"] == max(16_000 - 1000 * max(held, used), 0)
    inside = free_zone_amounts(NODE, ledger, request_with_one(NumaRequest(amounts={}), reserved, holding).reusable)
    assert inside[0]["cpu"] == max(16_000 - 1000 * used, 0)


def test_restricted_amounts() -> None:
    ledger = NumaLedger.build(TWO, {"r": zones(4000), "o": zones(3000)})
    holding = reserved_cpus("r", zones(4000), [zones(3000)], strict=True)
    reserved = NodeReservedCpus((holding,))
    one, two = NumaRequest(amounts={"cpu": 1000}), NumaRequest(amounts={"cpu": 2000})
    assert allocate_reserved(NODE, ledger, one, reserved, BitMask.of(0)) == ("r", zones(1000))
    refused = NumaRefusal(("Reservation(s) Insufficient NUMA cpu",))
    assert allocate_reserved(NODE, ledger, two, reserved, BitMask.of(0), needed=True) == refused
