"""NodeDevices is the immutable state of one node's devices and who holds them, reservations included.

The ledger counts both a reservation and the pods in it. `counted_twice_amounts` is that surplus, so that
real use can be computed; it is empty on nodes without reservations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from koord.scheduler.plugins.device_share import device_amounts
from koord.scheduler.plugins.device_share.device_amounts import (
    NO_AMOUNTS,
    NO_DEVICE_AMOUNTS,
    Amounts,
    DeviceAmounts,
    MinorAmounts,
)
from koord.scheduler.plugins.device_share.inventory import DeviceInventory
from koord.scheduler.plugins.device_share.usable_devices import DeviceLedger, remaining_amounts

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
