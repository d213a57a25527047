"""Pods are allocated inside reservations: theirs first, only theirs, or beside them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.policy.topology.allocation import allocate
from koord.policy.topology.binding import Binding
from koord.policy.topology.ledger import Allocation, Ledger
from koord.policy.topology.refusal import Short
from koord.policy.topology.request import Request
from koord.policy.topology.reserved import (
    Holding,
    Reserved,
    allocate_reserved,
    allocate_within,
    in_all,
    in_one,
    on_node,
)
from koord.policy.topology.stock import free_amounts
from koord.values.bitmask import BitMask
from koord.values.cpuset import CPUSet
from tests.policy.topology.machine import bits, machine, node_of

TWO = machine(1, 2, 8, 2)
NODE = node_of(TWO)
NOT_ENOUGH = "not enough cpus available to satisfy request"


def cpus(text: str) -> Allocation:
    return Allocation(cpus=CPUSet.parse(text))


def four(policy: str = "FullPCPUs") -> Request:
    return Request(amounts={"cpu": 4000}, binding=Binding(count=4, policy=policy, required=False))


def scene(held: str, owners: str = "", *, strict: bool = False) -> tuple[Ledger, Reserved]:
    owner = cpus(owners)
    ledger = Ledger.over(TWO, {"r": cpus(held), "owner": owner})
    return ledger, Reserved((Holding.of("r", cpus(held), [owner], strict=strict),))


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
        pytest.param(True, Short((f"Reservation(s) {NOT_ENOUGH}",)), id="needed"),
        pytest.param(False, None, id="the-node-is-tried-next"),
    ],
)
def test_not_beyond_a_restricted_one(needed: bool, outcome: Short | None) -> None:
    ledger, reserved = scene("4-5", strict=True)
    assert allocate_reserved(NODE, ledger, four(), reserved, needed=needed) == outcome


def test_restricted_one_that_lost_a_cpu_to_the_node() -> None:
    ledger, reserved = scene("4-7", strict=True)
    node = node_of(TWO, reserved=bits("4"))
    found = allocate_reserved(node, ledger, four(), reserved, needed=True)
    assert found == Short((f"Reservation(s) {NOT_ENOUGH}",))


def test_strangers_do_not_get_reserved_cpus() -> None:
    ledger = Ledger.over(TWO, {"r": cpus("0-29")})
    reserved = Reserved((), (Holding.of("r", cpus("0-29"), []),))
    assert allocate(NODE, ledger, on_node(four(), reserved)) == Short((NOT_ENOUGH,))


def test_recorded_owner_and_stranger() -> None:
    """Seen of Koordinator: the reservation has 0-7, the stranger goes to the other NUMA node, the owner inside."""
    small = machine(1, 2, 4, 2)
    ledger = Ledger.over(small, {"r": cpus("0-7")})
    holding = Holding.of("r", cpus("0-7"), [])
    stranger = allocate(node_of(small), ledger, on_node(four(), Reserved((), (holding,))))
    assert stranger == cpus("8-11")
    owner = allocate_reserved(node_of(small), ledger.add("s", cpus("8-11")), four(), Reserved((holding,)))
    assert owner == ("r", cpus("0-3"))


def test_first_by_uid() -> None:
    ledger = Ledger.over(TWO, {"b": cpus("0-3"), "a": cpus("8-11")})
    reserved = Reserved((Holding.of("b", cpus("0-3"), []), Holding.of("a", cpus("8-11"), [])))
    assert allocate_reserved(NODE, ledger, four(), reserved) == ("a", cpus("8-11"))


def test_other_matched_reservations_keep_their_cpus() -> None:
    ledger = Ledger.over(TWO, {"a": cpus("0-1"), "b": cpus("2-31")})
    a, b = Holding.of("a", cpus("0-1"), []), Holding.of("b", cpus("2-31"), [])
    assert allocate_within(NODE, ledger, four(), Reserved((a, b)), a) == Short((NOT_ENOUGH,))


def test_cpus_of_owners_beyond_their_reservation_stay_theirs() -> None:
    ledger, reserved = scene("0-3", "0-31")
    assert allocate_reserved(NODE, ledger, four(), reserved, needed=True) == Short((f"Reservation(s) {NOT_ENOUGH}",))


def test_pod_that_minds_no_reservation_has_all_of_them() -> None:
    ledger = Ledger.over(TWO, {"a": cpus("0-15"), "b": cpus("16-31")})
    reserved = Reserved((Holding.of("a", cpus("0-15"), []), Holding.of("b", cpus("16-31"), [])))
    assert isinstance(allocate(NODE, ledger, in_all(four(), reserved)), Allocation)
    assert isinstance(allocate(NODE, ledger, on_node(four(), reserved)), Short)


def test_cpus_of_owners_that_would_leave() -> None:
    ledger, reserved = scene("0-3", "0-3", strict=True)
    assert allocate_reserved(NODE, ledger, four(), reserved) is None
    holding = Holding.of("r", cpus("0-3"), [], strict=True)
    assert allocate_within(NODE, ledger.remove("owner"), four(), Reserved((holding,)), holding) == cpus("0-3")


@pytest.mark.parametrize(
    ("taken", "outcome"),
    [
        pytest.param("4-5", cpus("4-5,16-17"), id="and-more"),
        pytest.param("4-9", Short((NOT_ENOUGH,)), id="too-small-for-all-of-them"),
    ],
)
def test_taking_over_a_pod_means_all_its_cpus(taken: str, outcome: Allocation | Short) -> None:
    holding = Holding(uid="p", held=cpus(taken), takes_over=True)
    ledger = Ledger.over(TWO, {"p": cpus(taken)})
    assert allocate_within(NODE, ledger, four(), Reserved((holding,)), holding) == outcome


def zones(cpu: int) -> Allocation:
    return Allocation(zones={0: {"cpu": cpu}})


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 8), st.lists(st.integers(0, 6), max_size=3), st.booleans())
def test_amounts_are_counted_once(held: int, owners: list[int], matched: bool) -> None:
    """A node of 16 has a reservation and its owners; the owners may have more than it."""
    pods = {f"o{n}": zones(1000 * cpu) for n, cpu in enumerate(owners)}
    ledger = Ledger.over(TWO, {"r": zones(1000 * held), **pods})
    holding = Holding.of("r", zones(1000 * held), pods.values())
    reserved = Reserved((holding,)) if matched else Reserved((), (holding,))
    used = sum(owners)
    beside = free_amounts(NODE, ledger, on_node(Request(amounts={}), reserved).reusable)
    assert beside[0]["cpu"] == max(16_000 - 1000 * max(held, used), 0)
    inside = free_amounts(NODE, ledger, in_one(Request(amounts={}), reserved, holding).reusable)
    assert inside[0]["cpu"] == max(16_000 - 1000 * used, 0)


def test_restricted_amounts() -> None:
    ledger = Ledger.over(TWO, {"r": zones(4000), "o": zones(3000)})
    holding = Holding.of("r", zones(4000), [zones(3000)], strict=True)
    reserved = Reserved((holding,))
    one, two = Request(amounts={"cpu": 1000}), Request(amounts={"cpu": 2000})
    assert allocate_reserved(NODE, ledger, one, reserved, BitMask.of(0)) == ("r", zones(1000))
    refused = Short(("Reservation(s) Insufficient NUMA cpu",))
    assert allocate_reserved(NODE, ledger, two, reserved, BitMask.of(0), needed=True) == refused
