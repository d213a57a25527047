"""NodeDevices is the immutable state of one node's devices and who holds them, reservations included.

The ledger counts both a reservation and the pods in it. `counted_twice_amounts` is that surplus, so that
real use can be computed; it is empty on nodes without reservations.
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
    """The devices of one node. `reservation_of_owner`: reservation uid by owner pod. `memo` caches what callers
    compute from it.
    """

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
        """Return, by reservation, what its owners use of it: never more than it holds."""
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
        """Return what is counted twice, leaving out some reservations."""
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
        """Return what is left on each device of a type, never below zero."""
        used: ByMinor = self.used.get(device_type, holding.NO_MINORS)
        return {
            minor: left(card.total, used.get(minor, NO_AMOUNTS))
            for minor, card in self.inventory.of(device_type).items()
        }

    def once(self, key: Hashable, work: Callable[[], T]) -> T:
        """Return the memoized result, computing it for the first caller."""
        if key not in self.memo:
            if len(self.memo) >= _KEPT:
                self.memo.clear()
            self.memo[key] = work()
        found: T = self.memo[key]
        return found

    @property
    def situation(self) -> Hashable:
        """Return a key: nodes with equal keys give equal devices to equal pods."""
        if self._situation is None:
            self._situation = (self.kind, _frozen(self.used))
        return self._situation


def _frozen(used: Holdings) -> Hashable:
    return frozenset(
        (kind, minor, frozenset(amounts.items())) for kind, minors in used.items() for minor, amounts in minors.items()
    )
