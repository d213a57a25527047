"""CPUs and NUMA amounts that reservations hold: what of them a pod may use, and allocating inside them.

Which reservations match a pod, and which one is nominated, is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from koord.scheduler.plugins.node_numa_resource.allocator import allocate_numa
from koord.scheduler.plugins.node_numa_resource.cpu_binding import NumaRequest
from koord.scheduler.plugins.node_numa_resource.ledger import (
    NumaAllocation,
    NumaLedger,
    ZoneAmounts,
    total_zone_amounts,
)
from koord.scheduler.plugins.node_numa_resource.refusal import NOT_ENOUGH_CPUS, NumaRefusal
from koord.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions
from koord.values.bitmask import BitMask
from koord.values.resources import remaining_keyed_amounts


class ReservedCpus(msgspec.Struct, frozen=True, kw_only=True):
    """The CPUs and amounts of one reservation, and what its owners have of them. Both are in the ledger.

    A restricted reservation allows nothing beyond it. `takes_over`: it is a pod that a reservation being
    placed would take over, and all its CPUs must be in the result. An owner that would be preempted is left
    out, here as in the ledger.
    """

    uid: str
    held: NumaAllocation
    owner_cpus: int = 0
    owner_zones: ZoneAmounts = {}
    restricted: bool = False
    takes_over: bool = False

    @property
    def unused_cpus(self) -> int:
        return self.held.cpus.bits & ~self.owner_cpus

    @property
    def unused_zones(self) -> ZoneAmounts:
        """Return what owners have not taken; nothing, where they have as much as the reservation or more."""
        return remaining_keyed_amounts(self.held.zones, self.owner_zones)

    # What owners have of it is in the ledger under their own name and under that of the reservation.

    @property
    def double_counted_cpus(self) -> int:
        return self.held.cpus.bits & self.owner_cpus

    @property
    def double_counted_zones(self) -> ZoneAmounts:
        return {
            number: {name: min(amount, held.get(name, 0)) for name, amount in owned.items()}
            for number, owned in self.owner_zones.items()
            if (held := self.held.zones.get(number))
        }


class NodeReservedCpus(msgspec.Struct, frozen=True):
    """The reservations of one node as one pod sees them."""

    matched: tuple[ReservedCpus, ...] = ()
    unmatched: tuple[ReservedCpus, ...] = ()

    @property
    def double_counted_zones(self) -> ZoneAmounts:
        return total_zone_amounts(holding.double_counted_zones for holding in (*self.matched, *self.unmatched))

    @property
    def double_counted_cpus(self) -> int:
        return _union_cpus(holding.double_counted_cpus for holding in self.matched)


def request_beside_reservations(request: NumaRequest, reserved: NodeReservedCpus) -> NumaRequest:
    """Extend the request for an allocation beside all reservations, whose unused part stays theirs."""
    return _extend_request(request, zones=[reserved.double_counted_zones])


def request_with_all(request: NumaRequest, reserved: NodeReservedCpus) -> NumaRequest:
    """Extend the request of a pod that ignores reservations: all that they have unused is as good as free."""
    left = _union_cpus(holding.unused_cpus for holding in reserved.matched)
    zones = [reserved.double_counted_zones, *(holding.unused_zones for holding in reserved.matched)]
    return _extend_request(request, zones=zones, preferred=reserved.double_counted_cpus | left)


def request_with_one(request: NumaRequest, reserved: NodeReservedCpus, holding: ReservedCpus) -> NumaRequest:
    """Extend the request for an allocation with one reservation, and beyond it with what is free."""
    return _extend_request(
        request,
        zones=[reserved.double_counted_zones, holding.unused_zones],
        preferred=reserved.double_counted_cpus | holding.unused_cpus,
    )


def allocate_reserved(
    node: TopologyOptions,
    ledger: NumaLedger,
    request: NumaRequest,
    reserved: NodeReservedCpus,
    mask: BitMask | None = None,
    *,
    needed: bool = False,
) -> tuple[str, NumaAllocation] | NumaRefusal | None:
    """Allocate from the first matched reservation, by UID, that fits; None if none does or is `needed`."""
    reasons: list[str] = []
    for holding in sorted(reserved.matched, key=lambda one: one.uid):
        found = allocate_within_reservation(node, ledger, request, reserved, holding, mask)
        if not isinstance(found, NumaRefusal):
            return holding.uid, found
        reasons.extend(found.for_reservations().reasons)
    return NumaRefusal(tuple(reasons)) if needed and reasons else None


def allocate_within_reservation(
    node: TopologyOptions,
    ledger: NumaLedger,
    request: NumaRequest,
    reserved: NodeReservedCpus,
    holding: ReservedCpus,
    mask: BitMask | None = None,
) -> NumaAllocation | NumaRefusal:
    found = allocate_numa(node, ledger, request_with_one(request, reserved, holding), mask)
    if isinstance(found, NumaRefusal) or not (holding.restricted or holding.takes_over):
        return found
    # What would do at large must now do with the reservation's own, or have all of it.
    own = holding.unused_cpus
    count = 0 if request.binding is None else request.binding.count
    if holding.restricted and count > own.bit_count():
        return NumaRefusal.unschedulable(NOT_ENOUGH_CPUS)
    within = NumaRequest(
        amounts=request.amounts,
        binding=request.binding,
        preferred=own,
        reusable=request_with_one(request, reserved, holding).reusable,
        confined_to={} if holding.takes_over else holding.unused_zones,
    )
    found = allocate_numa(node, ledger, within, mask)
    if isinstance(found, NumaRefusal):
        return found
    wrong = own & ~found.cpus.bits if holding.takes_over else found.cpus.bits & ~own
    return NumaRefusal.unschedulable(NOT_ENOUGH_CPUS) if wrong else found


def _extend_request(request: NumaRequest, *, zones: Sequence[ZoneAmounts], preferred: int = 0) -> NumaRequest:
    return msgspec.structs.replace(
        request, preferred=request.preferred | preferred, reusable=total_zone_amounts([request.reusable, *zones])
    )


def _union_cpus(sets: Iterable[int]) -> int:
    cpus = 0
    for part in sets:
        cpus |= part
    return cpus
