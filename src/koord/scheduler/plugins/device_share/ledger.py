"""The device allocations of one node, as an immutable value: allocating and freeing return a new ledger, so
a dry run is free.

Pods are identified by UID: a new pod of an old name is another pod and never inherits the old allocation.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.scheduler.plugins.device_share import device_amounts
from koord.scheduler.plugins.device_share.device_amounts import (
    NO_AMOUNTS,
    NO_MINORS,
    Amounts,
    DeviceAmounts,
    MinorAmounts,
)
from koord.scheduler.plugins.device_share.inventory import DeviceInventory


class DeviceOvercommit(msgspec.Struct, frozen=True):
    """More is held than the device has: cards were replaced, or two writers allocated the same one."""

    device_type: str
    minor: int
    resource: str
    held: int
    total: int


class DeviceLedger(msgspec.Struct, frozen=True):
    inventory: DeviceInventory
    used: DeviceAmounts = {}
    allocations: Mapping[str, DeviceAmounts] = {}  # by pod UID

    def with_allocation(self, uid: str, holdings: DeviceAmounts) -> DeviceLedger:
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

    def used_by_type(self, device_type: str) -> MinorAmounts:
        return self.used.get(device_type, NO_MINORS)

    def free_by_type(self, device_type: str) -> dict[int, Amounts]:
        """Return the free amounts of each device of the type, never below zero."""
        used = self.used_by_type(device_type)
        return {
            minor: remaining_amounts(card.total, used.get(minor, NO_AMOUNTS))
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


def remaining_amounts(total: Amounts, used: Amounts) -> Amounts:
    if not used:
        return total
    return {name: max(amount - used.get(name, 0), 0) for name, amount in total.items()}
