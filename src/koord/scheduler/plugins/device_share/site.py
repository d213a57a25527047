"""The devices of one node and who holds them, reservations included. A site never changes: each change gives another.

The ledger counts a reservation and the pods that live in it both. `counted_twice` is what that is too much, so that
what is really in use can be told; it is nothing on nodes without reservations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from koord.policy.device import holding
from koord.policy.device.holding import NO_AMOUNTS, NOTHING, Amounts, ByMinor, Holdings
from koord.policy.device.inventory import DeviceInventory
from koord.policy.device.ledger import DeviceLedger, left

T = TypeVar("T")

_KEPT = 64
_NOBODY: Mapping[str, str] = {}


class Site:
    """`tenants`: pods that live in a reservation, with its UID. `memo` is for whoever works something out from it."""

    __slots__ = ("_inside", "_situation", "_used", "kind", "ledger", "memo", "tenants")

    def __init__(self, ledger: DeviceLedger, kind: int, tenants: Mapping[str, str] = _NOBODY) -> None:
        self.ledger = ledger
        self.kind = kind  # sites of one kind have equal devices, whatever their names
        self.tenants = tenants
        self.memo: dict[Hashable, Any] = {}
        self._inside: dict[str, Holdings] | None = None
        self._used: Holdings | None = None
        self._situation: Hashable = None

    @property
    def inventory(self) -> DeviceInventory:
        return self.ledger.inventory

    def held(self, uid: str) -> Holdings | None:
        return self.ledger.allocations.get(uid)

    # Changes -----------------------------------------------------------------------------------------------------

    def taken(self, uid: str, holdings: Holdings, reservation: str = "") -> Site:
        tenants = {**self.tenants, uid: reservation} if reservation else self.tenants
        return Site(self.ledger.taken(uid, holdings), self.kind, tenants)

    def freed(self, uid: str) -> Site:
        tenants = self.tenants
        if uid in tenants:
            tenants = {other: reservation for other, reservation in tenants.items() if other != uid}
        return Site(self.ledger.freed(uid), self.kind, tenants)

    def over(self, inventory: DeviceInventory, kind: int) -> Site:
        return Site(self.ledger.over(inventory), kind, self.tenants)

    # Reading -----------------------------------------------------------------------------------------------------

    def inside(self) -> dict[str, Holdings]:
        """By reservation, the part of it that its pods have taken: never more than it holds."""
        if self._inside is None:
            self._inside = self._parts() if self.tenants else {}
        return self._inside

    def _parts(self) -> dict[str, Holdings]:
        sums: dict[str, Holdings] = {}
        for uid, reservation in self.tenants.items():
            sums[reservation] = holding.plus(sums.get(reservation, NOTHING), self.held(uid) or NOTHING)
        return {
            reservation: part
            for reservation, total in sums.items()
            if (part := holding.common(total, self.held(reservation) or NOTHING))
        }

    def counted_twice(self, but: frozenset[str] = frozenset()) -> Holdings:
        """Leaving out what is inside of some reservations."""
        total: Holdings = NOTHING
        for reservation, part in self.inside().items():
            if reservation not in but:
                total = holding.plus(total, part)
        return total

    @property
    def used(self) -> Holdings:
        if self._used is None:
            twice = self.counted_twice()
            self._used = holding.minus(self.ledger.used, twice) if twice else self.ledger.used
        return self._used

    def free_of(self, device_type: str) -> dict[int, Amounts]:
        """What is left on each device, never below zero."""
        used: ByMinor = self.used.get(device_type, holding.NO_MINORS)
        return {
            minor: left(card.total, used.get(minor, NO_AMOUNTS))
            for minor, card in self.inventory.of(device_type).items()
        }

    def once(self, key: Hashable, work: Callable[[], T]) -> T:
        """Worked out for the first who asks; not kept for long where nothing changes."""
        if key not in self.memo:
            if len(self.memo) >= _KEPT:
                self.memo.clear()
            self.memo[key] = work()
        found: T = self.memo[key]
        return found

    @property
    def situation(self) -> Hashable:
        """Sites with equal situations give equal devices to equal pods, wherever they are."""
        if self._situation is None:
            self._situation = (self.kind, _frozen(self.used))
        return self._situation


def _frozen(used: Holdings) -> Hashable:
    return frozenset(
        (kind, minor, frozenset(amounts.items())) for kind, minors in used.items() for minor, amounts in minors.items()
    )
