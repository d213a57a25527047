"""Devices held for a pod by reservations, victims and earlier decisions can be used by it."""

from __future__ import annotations

import pytest

from koord.api.koordinator.resource_name import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA
from koord.scheduler.plugins.device_share.allocator import AllocatedDevices, allocate_devices
from koord.scheduler.plugins.device_share.device_amounts import DeviceAmounts, vf_key
from koord.scheduler.plugins.device_share.node_devices import NO_CONSTRAINTS, DeviceConstraints, DeviceLedger
from koord.scheduler.plugins.device_share.node_evaluator import (
    DevicePlacement,
    ReservedDevices,
    ReusableDevices,
    allocate_with_reservations,
)
from koord.scheduler.plugins.device_share.refusal import DeviceRefusal
from koord.scheduler.plugins.device_share.request import DeviceDemand
from tests.scheduler.plugins.device_share.device_builders import (
    ANY_VF,
    GI,
    ask,
    busy,
    gpu,
    gpus,
    inventory,
    rdma,
    reference,
    whole_gpus,
)

FLAT = DeviceLedger(inventory(*[gpu(m) for m in range(4)]))


def place_pod(
    ledger: DeviceLedger, demand: DeviceDemand, reusable: ReusableDevices
) -> tuple[tuple[int, ...], str] | str:
    def attempt(terms: DeviceConstraints) -> AllocatedDevices | DeviceRefusal:
        return allocate_devices(ledger, demand, terms=terms)

    placed = allocate_with_reservations(reusable, attempt, NO_CONSTRAINTS)
    if isinstance(placed, DeviceRefusal):
        return placed.message
    assert isinstance(placed, DevicePlacement)
    return placed.allocation.minors("gpu"), placed.reservation


def reserved(uid: str, *minors: int, **more: object) -> ReservedDevices:
    return ReservedDevices(uid=uid, devices=whole_gpus(*minors), **more)  # type: ignore[arg-type]


def test_the_reserved_card_is_preferred() -> None:
    ledger = FLAT.with_allocation("r", whole_gpus(2))
    assert place_pod(ledger, gpus(1), ReusableDevices(matched=[reserved("r", 2)])) == ((2,), "r")


def test_the_rest_comes_from_the_node() -> None:
    ledger = FLAT.with_allocation("r", whole_gpus(2))
    assert place_pod(ledger, gpus(2), ReusableDevices(matched=[reserved("r", 2)])) == ((2, 0), "r")


def test_a_restricted_reservation_gives_only_its_own() -> None:
    ledger = FLAT.with_allocation("r", whole_gpus(2))
    only = ReusableDevices(matched=[reserved("r", 2, restricted=True)], required=True)
    assert place_pod(ledger, gpus(1), only) == ((2,), "r")
    assert place_pod(ledger, gpus(2), only) == "Reservation(s) Insufficient gpu devices"
    loose = ReusableDevices(matched=[reserved("r", 2, restricted=True)])
    assert place_pod(ledger, gpus(2), loose) == ((0, 1), "")


def test_a_used_up_restricted_reservation_gives_nothing() -> None:
    ledger = FLAT.with_allocation("r", whole_gpus(2)).with_allocation("owner", whole_gpus(2))
    entry = reserved("r", 2, restricted=True, allocated=whole_gpus(2))
    refused = place_pod(ledger, gpus(1), ReusableDevices(matched=[entry], required=True))
    assert refused == "Reservation(s) Insufficient gpu devices"


def test_what_a_pod_inside_uses_is_not_given_again() -> None:
    half: DeviceAmounts = {"gpu": {2: {GPU_CORE: 50, GPU_MEMORY_RATIO: 50, GPU_MEMORY: 8 * GI}}}
    ledger = FLAT.with_allocation("r", whole_gpus(2)).with_allocation("owner", half)
    entry = reserved("r", 2, allocated=half, restricted=True)
    assert place_pod(ledger, ask({GPU: 50}), ReusableDevices(matched=[entry], required=True)) == ((2,), "r")
    assert "Insufficient" in place_pod(ledger, ask({GPU: 60}), ReusableDevices(matched=[entry], required=True))


def test_a_stranger_gets_no_reserved_card() -> None:
    ledger = FLAT.with_allocation("r", whole_gpus(0)).with_allocation("owner", whole_gpus(0))
    assert place_pod(ledger, gpus(1), ReusableDevices(double_counted=whole_gpus(0))) == ((1,), "")


def test_a_pod_that_ignores_reservations_may_take_them() -> None:
    ledger = busy(FLAT, 1, 2, 3).with_allocation("r", whole_gpus(0))
    assert place_pod(ledger, gpus(1), ReusableDevices(matched=[reserved("r", 0)], ignores_reservations=True)) == (
        (0,),
        "",
    )


def test_reservations_are_tried_by_uid() -> None:
    ledger = FLAT.with_allocation("b", whole_gpus(1)).with_allocation("a", whole_gpus(3))
    assert place_pod(ledger, gpus(1), ReusableDevices(matched=[reserved("b", 1), reserved("a", 3)])) == ((3,), "a")


@pytest.mark.parametrize("card", range(4), ids="card-{}".format)
@pytest.mark.parametrize("flat", [True, False], ids=["without-topology", "with-topology"])
def test_taking_over_a_pod_takes_its_card_whichever_it_is(card: int, flat: bool) -> None:
    ledger = (FLAT if flat else reference()).with_allocation("victim", whole_gpus(card))
    over = ReusableDevices(matched=[reserved("victim", card, taken_over=True)], required=True)
    assert place_pod(ledger, gpus(1), over) == ((card,), "victim")
    both = place_pod(ledger, gpus(2), over)
    assert isinstance(both, tuple)
    assert card in both[0]


def test_taking_over_more_than_is_asked_for_is_refused() -> None:
    ledger = FLAT.with_allocation("victim", whole_gpus(0, 1))
    over = ReusableDevices(matched=[reserved("victim", 0, 1, taken_over=True)], required=True)
    assert "Insufficient" in place_pod(ledger, gpus(1), over)


def test_victims_make_room() -> None:
    full = busy(FLAT, 0, 1, 2, 3)
    assert isinstance(allocate_devices(full, gpus(1)), DeviceRefusal)
    found = allocate_devices(full, gpus(1), terms=DeviceConstraints(reusable=whole_gpus(2)))
    assert isinstance(found, AllocatedDevices)
    assert found.minors("gpu") == (2,)


def test_a_victim_taken_back_leaves_no_room() -> None:
    negative = {
        "gpu": {m: {name: -amount for name, amount in held.items()} for m, held in whole_gpus(0)["gpu"].items()}
    }
    found = allocate_devices(FLAT, gpus(1), terms=DeviceConstraints(reusable=negative))
    assert isinstance(found, AllocatedDevices)
    assert found.minors("gpu") == (1,)


def test_a_victims_function_is_given_again() -> None:
    held: DeviceAmounts = {"rdma": {0: {RDMA: 1, vf_key("0000:10:00.2"): 1}}}
    ledger = DeviceLedger(inventory(rdma(0, vfs=1))).with_allocation("a", held)
    demand = ask({RDMA: 1}, hint=ANY_VF)
    assert isinstance(allocate_devices(ledger, demand), DeviceRefusal)
    assert isinstance(allocate_devices(ledger, demand, terms=DeviceConstraints(reusable=held)), AllocatedDevices)


def test_a_designated_allocation_gives_exactly_that() -> None:
    designated: DeviceAmounts = {
        "gpu": {3: {GPU_CORE: 100, GPU_MEMORY_RATIO: 100}},
        "rdma": {2: {RDMA: 1, vf_key("0000:20:00.4"): 1}},
    }
    found = allocate_devices(
        reference(), ask({GPU: 100, RDMA: 1}, hint=ANY_VF), terms=DeviceConstraints(required=designated)
    )
    assert isinstance(found, AllocatedDevices)
    assert found.minors("gpu") == (3,)
    (net,) = found.devices["rdma"]
    assert net.card.minor == 2
    assert net.virtual_function is not None
    assert net.virtual_function.bus_id == "0000:20:00.4"


def test_a_restricted_reservation_of_half_a_card_is_no_more_than_half() -> None:
    half: DeviceAmounts = {"gpu": {2: {GPU_CORE: 50, GPU_MEMORY_RATIO: 50, GPU_MEMORY: 8 * GI}}}
    ledger = FLAT.with_allocation("r", half)
    entry = ReservedDevices(uid="r", devices=half, restricted=True)
    assert place_pod(ledger, ask({GPU: 60}), ReusableDevices(matched=[entry], required=True)) == (
        "Reservation(s) Insufficient gpu devices"
    )
    assert place_pod(ledger, ask({GPU: 50}), ReusableDevices(matched=[entry], required=True)) == ((2,), "r")
    loose = ReservedDevices(uid="r", devices=half)
    assert place_pod(ledger, ask({GPU: 60}), ReusableDevices(matched=[loose], required=True)) == ((2,), "r")


def test_on_the_node_a_reservation_and_its_pods_count_once() -> None:
    """Card 0 is reserved and half of it used by an owner: the other half is all that the next owner can get there."""
    half: DeviceAmounts = {"gpu": {0: {GPU_CORE: 50, GPU_MEMORY_RATIO: 50, GPU_MEMORY: 8 * GI}}}
    ledger = busy(FLAT, 1, 2, 3).with_allocation("r", whole_gpus(0)).with_allocation("owner", half)
    reusable = ReusableDevices(matched=[reserved("r", 0, allocated=half)], ignores_reservations=True)
    assert place_pod(ledger, ask({GPU: 50}), reusable) == ((0,), "")
    assert place_pod(ledger, ask({GPU: 51}), reusable) == "Insufficient gpu devices"
