"""NodeDevices is the immutable state of one node's devices and who holds them, reservations included.

The ledger counts both a reservation and the pods in it. `counted_twice_amounts` is that surplus, so that
real use can be computed; it is empty on nodes without reservations.

The device allocations of one node, and the devices of one type that a pod may use now, with what is free on each.

The ledger is an immutable value: allocating and freeing return a new one, so a dry run is free. Pods are identified by
UID: a new pod of an old name is another pod and never inherits the old allocation. The view narrows the ledger by NUMA
nodes, labels and a reservation's own devices, and widens it by what others will release.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import msgspec

from koord.scheduler.plugins.device_share import device_amounts
from koord.scheduler.plugins.device_share.device_amounts import (
    NO_AMOUNTS,
    NO_DEVICE_AMOUNTS,
    Amounts,
    DeviceAmounts,
    MinorAmounts,
)
from koord.scheduler.plugins.device_share.inventory import Card, CardVirtualFunction, DeviceInventory
from koord.scheduler.plugins.device_share.request import DeviceTypeHint
from koord.values.bitmask import BitMask


class DeviceOvercommit(msgspec.Struct, frozen=True):
    """More is held than the device has: cards were replaced, or two writers allocated the same one."""

    device_type: str
    minor: int
    resource: str
    held: int
    total: int


class DeviceLedger(msgspec.Struct, frozen=True):
    inventory: DeviceInventory
    used: device_amounts.DeviceAmounts = {}
    allocations: Mapping[str, device_amounts.DeviceAmounts] = {}  # by pod UID

    def with_allocation(self, uid: str, holdings: device_amounts.DeviceAmounts) -> DeviceLedger:
        """Return a ledger with the allocation of one more pod; a pod that is known already keeps its allocation."""
        if uid in self.allocations:
            return self
        return DeviceLedger(
            self.inventory, device_amounts.add(self.used, holdings), {**self.allocations, uid: holdings}
        )

    def without_allocation(self, uid: str) -> DeviceLedger:
        held = self.allocations.get(uid)
        if held is None:
            return self
        rest = {other: holdings for other, holdings in self.allocations.items() if other != uid}
        return DeviceLedger(self.inventory, device_amounts.subtract(self.used, held), rest)

    def with_inventory(self, inventory: DeviceInventory) -> DeviceLedger:
        """Return the same allocations over a changed Device object."""
        return DeviceLedger(inventory, self.used, self.allocations)

    def used_by_type(self, device_type: str) -> device_amounts.MinorAmounts:
        return self.used.get(device_type, device_amounts.NO_MINORS)

    def free_by_type(self, device_type: str) -> dict[int, device_amounts.Amounts]:
        """Return the free amounts of each device of the type, never below zero."""
        used = self.used_by_type(device_type)
        return {
            minor: remaining_amounts(card.total, used.get(minor, device_amounts.NO_AMOUNTS))
            for minor, card in self.inventory.of_type(device_type).items()
        }

    def overcommits(self) -> list[DeviceOvercommit]:
        """List devices of which more is held than they have.

        Devices that are gone or unhealthy are not listed: their pods simply still run there.
        """
        found = []
        for device_type, minors in sorted(self.used.items()):
            cards = self.inventory.of_type(device_type)
            for minor, amounts in sorted(minors.items()):
                card = cards.get(minor)
                if card is None or not card.healthy:
                    continue
                found += [
                    DeviceOvercommit(device_type, minor, name, held, card.total[name])
                    for name, held in sorted(amounts.items())
                    if name in card.total and held > card.total[name]
                ]
        return found

    def unlisted_devices(self) -> list[tuple[str, int]]:
        """List devices that pods hold and the Device object does not list."""
        return [
            (device_type, minor)
            for device_type, minors in sorted(self.used.items())
            for minor in sorted(minors)
            if minor not in self.inventory.of_type(device_type)
        ]


def remaining_amounts(total: device_amounts.Amounts, used: device_amounts.Amounts) -> device_amounts.Amounts:
    if not used:
        return total
    return {name: max(amount - used.get(name, 0), 0) for name, amount in total.items()}


class DeviceConstraints(msgspec.Struct, frozen=True, kw_only=True):
    """Constraints under which devices are selected.

    `reusable` amounts will be released by others. `required`, for the types that it names, is all that may be
    used. `preferred` devices come first where only order decides. `included` devices must all be among the
    selected ones.
    """

    zones: BitMask | None = None
    reusable: device_amounts.DeviceAmounts = device_amounts.NO_DEVICE_AMOUNTS
    required: device_amounts.DeviceAmounts | None = None
    preferred: Mapping[str, frozenset[int]] = {}
    included: Mapping[str, frozenset[int]] = {}


NO_CONSTRAINTS = DeviceConstraints()


class UsableDevices(msgspec.Struct, frozen=True):
    type: str
    cards: Mapping[int, Card]  # that may be used, by minor ascending
    free: Mapping[int, device_amounts.Amounts]
    held: Mapping[int, device_amounts.Amounts]  # what stays in use on them, virtual functions included
    used_mask: int  # minors in use, also of devices outside the view
    healthy_mask: int
    reserved_only: Mapping[int, device_amounts.Amounts] | None  # what a required map leaves of each

    def free_virtual_function(self, minor: int, hint: DeviceTypeHint) -> CardVirtualFunction | None:
        """Return the first free virtual function, by bus id, that the pod's selector matches."""
        taken = self.held.get(minor, device_amounts.NO_AMOUNTS)
        only = None if self.reserved_only is None else self.reserved_only.get(minor, device_amounts.NO_AMOUNTS)
        for function in self.cards[minor].virtual_functions:
            key = device_amounts.vf_key(function.bus_id)
            if taken.get(key, 0) > 0 or (only is not None and key not in only):
                continue
            if hint.vf_selector is None or hint.vf_selector.matches(function.labels):
                return function
        return None


def usable_devices(
    ledger: DeviceLedger,
    device_type: str,
    hint: DeviceTypeHint,
    terms: DeviceConstraints,
    *,
    keep_switches_apart: bool = False,
) -> UsableDevices:
    """Build the view of one device type. `keep_switches_apart` enforces the PCIeLevel exclusive policy."""
    used = ledger.used_by_type(device_type)
    reusable = terms.reusable.get(device_type, device_amounts.NO_MINORS)
    only = None if terms.required is None else terms.required.get(device_type)
    zones, selector = terms.zones, hint.selector
    cards: dict[int, Card] = {}
    free: dict[int, device_amounts.Amounts] = {}
    taken: dict[int, device_amounts.Amounts] = {}
    used_mask = healthy_mask = 0
    for minor, card in ledger.inventory.of_type(device_type).items():
        held = used.get(minor, device_amounts.NO_AMOUNTS)
        if (
            (only is not None and minor not in only)
            or (zones is not None and not (card.placed and (card.numa is None or card.numa in zones)))
            or (selector is not None and not selector.matches(card.labels))
        ):
            if held:
                used_mask |= 1 << minor
            continue
        if minor in reusable:
            held = _still_held(held, reusable[minor])
        room = remaining_amounts(card.total, held)
        if only is not None:
            cap = card.with_both_memory_units(only[minor])
            room = {name: min(amount, cap.get(name, 0)) for name, amount in room.items()}
        cards[minor] = card
        free[minor] = room
        if held:
            taken[minor] = held
        if card.healthy:
            healthy_mask |= 1 << minor
        elif held:  # it has no amounts to be missing, and its pods still run there
            used_mask |= 1 << minor
        if room is not card.total and any(room[name] < amount for name, amount in card.total.items()):
            used_mask |= 1 << minor
    if keep_switches_apart and hint.exclusive_switch:
        busy = {card.pcie for minor, card in ledger.inventory.of_type(device_type).items() if used_mask >> minor & 1}
        cards = {minor: card for minor, card in cards.items() if card.pcie is not None and card.pcie not in busy}
        free = {minor: free[minor] for minor in cards}
        healthy_mask &= sum(1 << minor for minor in cards)
    return UsableDevices(device_type, cards, free, taken, used_mask, healthy_mask, only)


def _still_held(held: device_amounts.Amounts, given_up: device_amounts.Amounts) -> dict[str, int]:
    """Return what stays in use. A released amount may be negative when a pod was counted in beforehand."""
    names = {*held, *given_up}
    return {name: rest for name in names if (rest := held.get(name, 0) - given_up.get(name, 0)) > 0}


T = TypeVar("T")

_ANSWERS_KEPT = 64
_NO_OWNERS: Mapping[str, str] = {}


class NodeDevices:
    """The devices of one node. `reservation_of_owner`: reservation uid by pod. `memo` caches what callers compute."""

    __slots__ = (
        "_situation",
        "_used",
        "_used_in_reservations",
        "inventory_id",
        "ledger",
        "memo",
        "reservation_of_owner",
    )

    def __init__(self, ledger: DeviceLedger, kind: int, reservation_of_owner: Mapping[str, str] = _NO_OWNERS) -> None:
        self.ledger = ledger
        self.inventory_id = kind  # sites of one kind have equal devices, whatever their names
        self.reservation_of_owner = reservation_of_owner
        self.memo: dict[Hashable, Any] = {}
        self._used_in_reservations: dict[str, DeviceAmounts] | None = None
        self._used: DeviceAmounts | None = None
        self._situation: Hashable = None

    @property
    def inventory(self) -> DeviceInventory:
        return self.ledger.inventory

    def allocated_to(self, uid: str) -> DeviceAmounts | None:
        return self.ledger.allocations.get(uid)

    # Changes -----------------------------------------------------------------------------------------------------

    def with_allocation(self, uid: str, holdings: DeviceAmounts, reservation: str = "") -> NodeDevices:
        reservation_of_owner = (
            {**self.reservation_of_owner, uid: reservation} if reservation else self.reservation_of_owner
        )
        return NodeDevices(self.ledger.with_allocation(uid, holdings), self.inventory_id, reservation_of_owner)

    def without_allocation(self, uid: str) -> NodeDevices:
        reservation_of_owner = self.reservation_of_owner
        if uid in reservation_of_owner:
            reservation_of_owner = {
                other: reservation for other, reservation in reservation_of_owner.items() if other != uid
            }
        return NodeDevices(self.ledger.without_allocation(uid), self.inventory_id, reservation_of_owner)

    def with_inventory(self, inventory: DeviceInventory, kind: int) -> NodeDevices:
        return NodeDevices(self.ledger.with_inventory(inventory), kind, self.reservation_of_owner)

    # Reading -----------------------------------------------------------------------------------------------------

    def used_in_reservations(self) -> dict[str, DeviceAmounts]:
        """Return, by reservation, what its owners use of it: never more than it holds."""
        if self._used_in_reservations is None:
            self._used_in_reservations = self._sum_owners() if self.reservation_of_owner else {}
        return self._used_in_reservations

    def _sum_owners(self) -> dict[str, DeviceAmounts]:
        sums: dict[str, DeviceAmounts] = {}
        for uid, reservation in self.reservation_of_owner.items():
            sums[reservation] = device_amounts.add(
                sums.get(reservation, NO_DEVICE_AMOUNTS), self.allocated_to(uid) or NO_DEVICE_AMOUNTS
            )
        return {
            reservation: part
            for reservation, total in sums.items()
            if (part := device_amounts.intersection(total, self.allocated_to(reservation) or NO_DEVICE_AMOUNTS))
        }

    def counted_twice_amounts(self, but: frozenset[str] = frozenset()) -> DeviceAmounts:
        """Return what is counted twice, leaving out some reservations."""
        total: DeviceAmounts = NO_DEVICE_AMOUNTS
        for reservation, part in self.used_in_reservations().items():
            if reservation not in but:
                total = device_amounts.add(total, part)
        return total

    @property
    def used(self) -> DeviceAmounts:
        if self._used is None:
            twice = self.counted_twice_amounts()
            self._used = device_amounts.subtract(self.ledger.used, twice) if twice else self.ledger.used
        return self._used

    def free_by_minor(self, device_type: str) -> dict[int, Amounts]:
        """Return what is left on each device of a type, never below zero."""
        used: MinorAmounts = self.used.get(device_type, device_amounts.NO_MINORS)
        return {
            minor: remaining_amounts(card.total, used.get(minor, NO_AMOUNTS))
            for minor, card in self.inventory.of_type(device_type).items()
        }

    def memoized(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return the memoized result, computing it for the first caller."""
        if key not in self.memo:
            if len(self.memo) >= _ANSWERS_KEPT:
                self.memo.clear()
            self.memo[key] = work()
        found: T = self.memo[key]
        return found

    @property
    def situation(self) -> Hashable:
        """Return a key: nodes with equal keys give equal devices to equal pods."""
        if self._situation is None:
            self._situation = (self.inventory_id, _frozen(self.used))
        return self._situation


def _frozen(used: DeviceAmounts) -> Hashable:
    return frozenset(
        (kind, minor, frozenset(amounts.items())) for kind, minors in used.items() for minor, amounts in minors.items()
    )
