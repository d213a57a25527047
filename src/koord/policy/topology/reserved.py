"""CPUs and NUMA amounts that reservations hold: what of them a pod may use, and allocating inside them.

Which reservations match a pod, and which one is nominated, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from koord.policy.topology.allocation import allocate
from koord.policy.topology.ledger import Allocation, Ledger, ZoneAmounts, sum_of, summed
from koord.policy.topology.node import NodeTopology
from koord.policy.topology.refusal import NOT_ENOUGH_CPUS, Short
from koord.policy.topology.request import Request
from koord.values.bitmask import BitMask


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs and amounts of one reservation, and what its owners have of them. Both are in the ledger.

    A restricted reservation allows nothing beyond it. `takes_over`: it is a pod that a reservation being
    placed would take over, and all its CPUs must be in the result. An owner that would be preempted is left
    out, here as in the ledger.
    """

    uid: str
    held: Allocation
    owned_cpus: int = 0
    owned_zones: ZoneAmounts = {}
    strict: bool = False
    takes_over: bool = False

    @staticmethod
    def of(uid: str, held: Allocation, owners: Iterable[Allocation], *, strict: bool = False) -> Holding:
        cpus, zones = 0, []
        for owner in owners:
            cpus |= owner.cpus.bits
            zones.append(owner.zones)
        return Holding(uid=uid, held=held, owned_cpus=cpus, owned_zones=sum_of(zones), strict=strict)

    @property
    def left_cpus(self) -> int:
        return self.held.cpus.bits & ~self.owned_cpus

    @property
    def left_zones(self) -> ZoneAmounts:
        """Return what owners have not taken; nothing, where they have as much as the reservation or more."""
        return summed(self.held.zones, self.twice_zones, -1)

    # What owners have of it is in the ledger under their own name and under that of the reservation.

    @property
    def twice_cpus(self) -> int:
        return self.held.cpus.bits & self.owned_cpus

    @property
    def twice_zones(self) -> ZoneAmounts:
        return {
            number: {name: min(amount, held.get(name, 0)) for name, amount in owned.items()}
            for number, owned in self.owned_zones.items()
            if (held := self.held.zones.get(number))
        }


class Reserved(msgspec.Struct, frozen=True):
    """The reservations of one node as one pod sees them."""

    matched: tuple[Holding, ...] = ()
    unmatched: tuple[Holding, ...] = ()

    @property
    def twice_zones(self) -> ZoneAmounts:
        return sum_of(holding.twice_zones for holding in (*self.matched, *self.unmatched))

    @property
    def twice_cpus(self) -> int:
        return _union(holding.twice_cpus for holding in self.matched)


def on_node(request: Request, reserved: Reserved) -> Request:
    """Extend the request for an allocation beside all reservations, whose unused part stays theirs."""
    return _with(request, zones=[reserved.twice_zones])


def in_all(request: Request, reserved: Reserved) -> Request:
    """Extend the request of a pod that ignores reservations: all that they have unused is as good as free."""
    left = _union(holding.left_cpus for holding in reserved.matched)
    zones = [reserved.twice_zones, *(holding.left_zones for holding in reserved.matched)]
    return _with(request, zones=zones, preferred=reserved.twice_cpus | left)


def in_one(request: Request, reserved: Reserved, holding: Holding) -> Request:
    """Extend the request for an allocation with one reservation, and beyond it with what is free."""
    return _with(
        request,
        zones=[reserved.twice_zones, holding.left_zones],
        preferred=reserved.twice_cpus | holding.left_cpus,
    )


def allocate_reserved(
    node: NodeTopology,
    ledger: Ledger,
    request: Request,
    reserved: Reserved,
    mask: BitMask | None = None,
    *,
    needed: bool = False,
) -> tuple[str, Allocation] | Short | None:
    """Allocate from the first matched reservation, by UID, that the pod fits in; None when none does and none is
    `needed`.
    """
    reasons: list[str] = []
    for holding in sorted(reserved.matched, key=lambda one: one.uid):
        found = allocate_within(node, ledger, request, reserved, holding, mask)
        if not isinstance(found, Short):
            return holding.uid, found
        reasons.extend(found.of_reservations().reasons)
    return Short(tuple(reasons)) if needed and reasons else None


def allocate_within(
    node: NodeTopology,
    ledger: Ledger,
    request: Request,
    reserved: Reserved,
    holding: Holding,
    mask: BitMask | None = None,
) -> Allocation | Short:
    found = allocate(node, ledger, in_one(request, reserved, holding), mask)
    if isinstance(found, Short) or not (holding.strict or holding.takes_over):
        return found
    # What would do at large must now do with the reservation's own, or have all of it.
    own = holding.left_cpus
    count = 0 if request.binding is None else request.binding.count
    if holding.strict and count > own.bit_count():
        return Short.of(NOT_ENOUGH_CPUS)
    within = Request(
        amounts=request.amounts,
        binding=request.binding,
        preferred=own,
        reusable=in_one(request, reserved, holding).reusable,
        confined={} if holding.takes_over else holding.left_zones,
    )
    found = allocate(node, ledger, within, mask)
    if isinstance(found, Short):
        return found
    wrong = own & ~found.cpus.bits if holding.takes_over else found.cpus.bits & ~own
    return Short.of(NOT_ENOUGH_CPUS) if wrong else found


def _with(request: Request, *, zones: Sequence[ZoneAmounts], preferred: int = 0) -> Request:
    return msgspec.structs.replace(
        request,
        preferred=request.preferred | preferred,
        reusable=sum_of([request.reusable, *zones]),
    )


def _union(sets: Iterable[int]) -> int:
    cpus = 0
    for part in sets:
        cpus |= part
    return cpus
