"""Devices held for a pod by reservations, victims and earlier decisions can be used by it."""

from __future__ import annotations

import pytest

from koord.api.resource_name import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA
from koord.policy.device.allocator import Allocation, allocate
from koord.policy.device.demand import Demand
from koord.policy.device.holding import Holdings, function_key
from koord.policy.device.ledger import DeviceLedger
from koord.policy.device.refusal import Refusal
from koord.policy.device.reservation import Placed, Reserved, Reusable, allocate_with
from koord.policy.device.view import FREE_TERMS, Terms
from tests.policy.device.machines import ANY_VF, GI, ask, busy, gpu, gpus, inventory, rdma, reference, whole_gpus

FLAT = DeviceLedger(inventory(*[gpu(m) for m in range(4)]))


def place_pod(ledger: DeviceLedger, demand: Demand, reusable: Reusable) -> tuple[tuple[int, ...], str] | str:
    def attempt(terms: Terms) -> Allocation | Refusal:
        return allocate(ledger, demand, terms=terms)

    placed = allocate_with(reusable, attempt, FREE_TERMS)
    if isinstance(placed, Refusal):
        return placed.message
    assert isinstance(placed, Placed)
    return placed.allocation.minors("gpu"), placed.reservation


def reserved(uid: str, *minors: int, **more: object) -> Reserved:
    return Reserved(uid=uid, devices=whole_gpus(*minors), **more)  # type: ignore[arg-type]


def test_the_reserved_card_is_preferred() -> None:
    ledger = FLAT.taken("r", whole_gpus(2))
    assert place_pod(ledger, gpus(1), Reusable(matched=[reserved("r", 2)])) == ((2,), "r")


def test_the_rest_comes_from_the_node() -> None:
    ledger = FLAT.taken("r", whole_gpus(2))
    assert place_pod(ledger, gpus(2), Reusable(matched=[reserved("r", 2)])) == ((2, 0), "r")


def test_a_restricted_reservation_gives_only_its_own() -> None:
    ledger = FLAT.taken("r", whole_gpus(2))
    only = Reusable(matched=[reserved("r", 2, restricted=True)], required=True)
    assert place_pod(ledger, gpus(1), only) == ((2,), "r")
    assert place_pod(ledger, gpus(2), only) == "Reservation(s) Insufficient gpu devices"
    loose = Reusable(matched=[reserved("r", 2, restricted=True)])
    assert place_pod(ledger, gpus(2), loose) == ((0, 1), "")


def test_a_used_up_restricted_reservation_gives_nothing() -> None:
    ledger = FLAT.taken("r", whole_gpus(2)).taken("owner", whole_gpus(2))
    entry = reserved("r", 2, restricted=True, allocated=whole_gpus(2))
    refused = place_pod(ledger, gpus(1), Reusable(matched=[entry], required=True))
    assert refused == "Reservation(s) Insufficient gpu devices"


def test_what_a_pod_inside_uses_is_not_given_again() -> None:
    half: Holdings = {"gpu": {2: {GPU_CORE: 50, GPU_MEMORY_RATIO: 50, GPU_MEMORY: 8 * GI}}}
    ledger = FLAT.taken("r", whole_gpus(2)).taken("owner", half)
    entry = reserved("r", 2, allocated=half, restricted=True)
    assert place_pod(ledger, ask({GPU: 50}), Reusable(matched=[entry], required=True)) == ((2,), "r")
    assert "Insufficient" in place_pod(ledger, ask({GPU: 60}), Reusable(matched=[entry], required=True))


def test_a_stranger_gets_no_reserved_card() -> None:
    ledger = FLAT.taken("r", whole_gpus(0)).taken("owner", whole_gpus(0))
    assert place_pod(ledger, gpus(1), Reusable(counted_twice=whole_gpus(0))) == ((1,), "")


def test_a_pod_that_ignores_reservations_may_take_them() -> None:
    ledger = busy(FLAT, 1, 2, 3).taken("r", whole_gpus(0))
    assert place_pod(ledger, gpus(1), Reusable(matched=[reserved("r", 0)], ignores_reservations=True)) == ((0,), "")


def test_reservations_are_tried_by_uid() -> None:
    ledger = FLAT.taken("b", whole_gpus(1)).taken("a", whole_gpus(3))
    assert place_pod(ledger, gpus(1), Reusable(matched=[reserved("b", 1), reserved("a", 3)])) == ((3,), "a")


@pytest.mark.parametrize("card", range(4), ids="card-{}".format)
@pytest.mark.parametrize("flat", [True, False], ids=["without-topology", "with-topology"])
def test_taking_over_a_pod_takes_its_card_whichever_it_is(card: int, flat: bool) -> None:
    ledger = (FLAT if flat else reference()).taken("victim", whole_gpus(card))
    over = Reusable(matched=[reserved("victim", card, taken_over=True)], required=True)
    assert place_pod(ledger, gpus(1), over) == ((card,), "victim")
    both = place_pod(ledger, gpus(2), over)
    assert isinstance(both, tuple)
    assert card in both[0]


def test_taking_over_more_than_is_asked_for_is_refused() -> None:
    ledger = FLAT.taken("victim", whole_gpus(0, 1))
    over = Reusable(matched=[reserved("victim", 0, 1, taken_over=True)], required=True)
    assert "Insufficient" in place_pod(ledger, gpus(1), over)


def test_victims_make_room() -> None:
    full = busy(FLAT, 0, 1, 2, 3)
    assert isinstance(allocate(full, gpus(1)), Refusal)
    found = allocate(full, gpus(1), terms=Terms(reusable=whole_gpus(2)))
    assert isinstance(found, Allocation)
    assert found.minors("gpu") == (2,)


def test_a_victim_taken_back_leaves_no_room() -> None:
    negative = {
        "gpu": {m: {name: -amount for name, amount in held.items()} for m, held in whole_gpus(0)["gpu"].items()}
    }
    found = allocate(FLAT, gpus(1), terms=Terms(reusable=negative))
    assert isinstance(found, Allocation)
    assert found.minors("gpu") == (1,)


def test_a_victims_function_is_given_again() -> None:
    held: Holdings = {"rdma": {0: {RDMA: 1, function_key("0000:10:00.2"): 1}}}
    ledger = DeviceLedger(inventory(rdma(0, vfs=1))).taken("a", held)
    demand = ask({RDMA: 1}, hint=ANY_VF)
    assert isinstance(allocate(ledger, demand), Refusal)
    assert isinstance(allocate(ledger, demand, terms=Terms(reusable=held)), Allocation)


def test_a_designated_allocation_gives_exactly_that() -> None:
    designated: Holdings = {
        "gpu": {3: {GPU_CORE: 100, GPU_MEMORY_RATIO: 100}},
        "rdma": {2: {RDMA: 1, function_key("0000:20:00.4"): 1}},
    }
    found = allocate(reference(), ask({GPU: 100, RDMA: 1}, hint=ANY_VF), terms=Terms(required=designated))
    assert isinstance(found, Allocation)
    assert found.minors("gpu") == (3,)
    (net,) = found.devices["rdma"]
    assert net.card.minor == 2
    assert net.function is not None
    assert net.function.bus_id == "0000:20:00.4"


def test_a_restricted_reservation_of_half_a_card_is_no_more_than_half() -> None:
    half: Holdings = {"gpu": {2: {GPU_CORE: 50, GPU_MEMORY_RATIO: 50, GPU_MEMORY: 8 * GI}}}
    ledger = FLAT.taken("r", half)
    entry = Reserved(uid="r", devices=half, restricted=True)
    assert place_pod(ledger, ask({GPU: 60}), Reusable(matched=[entry], required=True)) == (
        "Reservation(s) Insufficient gpu devices"
    )
    assert place_pod(ledger, ask({GPU: 50}), Reusable(matched=[entry], required=True)) == ((2,), "r")
    loose = Reserved(uid="r", devices=half)
    assert place_pod(ledger, ask({GPU: 60}), Reusable(matched=[loose], required=True)) == ((2,), "r")


def test_what_was_taken_in_all() -> None:
    found = allocate(FLAT, gpus(2))
    assert isinstance(found, Allocation)
    assert found.sums == {GPU_CORE: 200, GPU_MEMORY_RATIO: 200, GPU_MEMORY: 32 * GI}


def test_on_the_node_a_reservation_and_its_pods_count_once() -> None:
    """Card 0 is reserved and half of it used by an owner: the other half is all that the next owner can get there."""
    half: Holdings = {"gpu": {0: {GPU_CORE: 50, GPU_MEMORY_RATIO: 50, GPU_MEMORY: 8 * GI}}}
    ledger = busy(FLAT, 1, 2, 3).taken("r", whole_gpus(0)).taken("owner", half)
    reusable = Reusable(matched=[reserved("r", 0, allocated=half)], ignores_reservations=True)
    assert place_pod(ledger, ask({GPU: 50}), reusable) == ((0,), "")
    assert place_pod(ledger, ask({GPU: 51}), reusable) == "Insufficient gpu devices"
