"""Who holds which devices of a node. A ledger never changes: taking and freeing give another one, so a what-if is free.

Pods are known by UID: a new pod of an old name is another pod, and its allocation is never taken for the old one's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.policy.device import holding
from koord.policy.device.holding import NO_AMOUNTS, NO_MINORS, Amounts, ByMinor, Holdings
from koord.policy.device.inventory import DeviceInventory


class Excess(msgspec.Struct, frozen=True):
    """More is held than the device has: cards were replaced, or two writers gave the same one away."""

    device_type: str
    minor: int
    resource: str
    held: int
    total: int


class DeviceLedger(msgspec.Struct, frozen=True):
    inventory: DeviceInventory
    used: Holdings = {}
    allocations: Mapping[str, Holdings] = {}  # by pod UID

    def taken(self, uid: str, holdings: Holdings) -> DeviceLedger:
        """With the holdings of one more pod; a pod already known stays as it is."""
        if uid in self.allocations:
            return self
        return DeviceLedger(self.inventory, holding.plus(self.used, holdings), {**self.allocations, uid: holdings})

    def freed(self, uid: str) -> DeviceLedger:
        held = self.allocations.get(uid)
        if held is None:
            return self
        rest = {other: holdings for other, holdings in self.allocations.items() if other != uid}
        return DeviceLedger(self.inventory, holding.minus(self.used, held), rest)

    def over(self, inventory: DeviceInventory) -> DeviceLedger:
        """The same holdings after the Device object changed."""
        return DeviceLedger(inventory, self.used, self.allocations)

    def used_of(self, device_type: str) -> ByMinor:
        return self.used.get(device_type, NO_MINORS)

    def free_of(self, device_type: str) -> dict[int, Amounts]:
        """What is left on each device, never below zero."""
        used = self.used_of(device_type)
        return {
            minor: left(card.total, used.get(minor, NO_AMOUNTS))
            for minor, card in self.inventory.of(device_type).items()
        }

    def excesses(self) -> list[Excess]:
        """Devices that are gone or unhealthy are not excesses: their pods simply still run there."""
        found = []
        for device_type, minors in sorted(self.used.items()):
            cards = self.inventory.of(device_type)
            for minor, amounts in sorted(minors.items()):
                card = cards.get(minor)
                if card is None or not card.healthy:
                    continue
                found += [
                    Excess(device_type, minor, name, held, card.total[name])
                    for name, held in sorted(amounts.items())
                    if name in card.total and held > card.total[name]
                ]
        return found

    def strangers(self) -> list[tuple[str, int]]:
        """Devices that pods hold and the Device object does not list."""
        return [
            (device_type, minor)
            for device_type, minors in sorted(self.used.items())
            for minor in sorted(minors)
            if minor not in self.inventory.of(device_type)
        ]


def left(total: Amounts, used: Amounts) -> Amounts:
    if not used:
        return total
    return {name: max(amount - used.get(name, 0), 0) for name, amount in total.items()}


def rebuilt(inventory: DeviceInventory, held: Iterable[tuple[str, Holdings]]) -> DeviceLedger:
    """The ledger that the live pods add up to."""
    ledger = DeviceLedger(inventory)
    for uid, holdings in held:
        ledger = ledger.taken(uid, holdings)
    return ledger
