"""DeviceTrial tries to allocate devices for one pod on one node: those that reservations hold for it first, the
node's own as the fallback.

The ledger counts both a reservation and the pods inside it. Returning the pods' part once, and what is
left of the reservation to its owners, makes the sum right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from koord.api.koordinator import scheduling as wire
from koord.scheduler.framework.reservation import MatchedReservation
from koord.scheduler.plugins.device_share import device_amounts
from koord.scheduler.plugins.device_share.allocator import AllocatedDevices, DeviceAllocateOptions, allocate_devices
from koord.scheduler.plugins.device_share.device_amounts import NO_DEVICE_AMOUNTS, DeviceAmounts
from koord.scheduler.plugins.device_share.gpu_selection import GpuNodeLabels
from koord.scheduler.plugins.device_share.node_devices import NodeDevices
from koord.scheduler.plugins.device_share.refusal import (
    RESERVATION_PREFIX,
    DeviceNearMiss,
    DeviceRefusal,
    DeviceRefusalCode,
)
from koord.scheduler.plugins.device_share.request_cache import PodDeviceRequest
from koord.scheduler.plugins.device_share.usable_devices import NO_CONSTRAINTS, DeviceConstraints
from koord.values.bitmask import BitMask

RESTRICTED = "Restricted"
DEFAULT_OPTIONS = DeviceAllocateOptions()


class DeviceTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A trial allocation. `reserved`: usable reservations on the node. `options`: how to choose among cards."""

    node_devices: NodeDevices
    device_request: PodDeviceRequest
    gpu_labels: GpuNodeLabels
    reserved: Sequence[MatchedReservation] = ()
    needs_reservation: bool = False  # only a reservation will do
    taken_over: DeviceAmounts = (
        NO_DEVICE_AMOUNTS  # of running pods that will live in what it gets: all of it must be in there
    )
    options: DeviceAllocateOptions = DEFAULT_OPTIONS

    def try_placement(self, zones: BitMask | None = None, card: int | None = None) -> DevicePlacement | DeviceRefusal:
        """Allocate within the NUMA nodes `zones`. `card`: the only GPU that may be taken."""
        terms = NO_CONSTRAINTS if zones is None else DeviceConstraints(zones=zones)
        if card is not None:
            only = {wire.GPU: {card: self.node_devices.inventory.of_type(wire.GPU)[card].total}}
            terms = msgspec.structs.replace(terms, required=only)
        if self.device_request.designated is not None:
            terms = msgspec.structs.replace(terms, required=self.device_request.designated)
        if self.taken_over:
            asked = {
                kind: held for kind, held in self.taken_over.items() if kind in self.device_request.demand.requests
            }
            matched = (ReservedDevices(uid="", devices=asked, taken_over=True),) if asked else ()
            twice = self.node_devices.counted_twice_amounts()
            return allocate_with_reservations(
                ReusableDevices(double_counted=twice, matched=matched, required=bool(matched)), self._attempt, terms
            )
        if self.reserved:
            return allocate_with_reservations(self._reusable(), self._attempt, terms)
        twice = self.node_devices.counted_twice_amounts()
        if twice:
            terms = msgspec.structs.replace(terms, reusable=twice)
        found = self._attempt(terms)
        return found if isinstance(found, DeviceRefusal) else DevicePlacement(found)

    def try_allocation(self, zones: BitMask | None = None, card: int | None = None) -> AllocatedDevices | DeviceRefusal:
        found = self.try_placement(zones, card)
        return found if isinstance(found, DeviceRefusal) else found.allocation

    def near_miss(self) -> DeviceNearMiss | None:
        """Return how far the node is from serving the pod; None when it serves it."""
        found = self.try_allocation()
        return found.nearest if isinstance(found, DeviceRefusal) else None

    def reusable(self) -> DeviceAmounts:
        """Return what others hold and the pod may use all the same, if it allocates from the node."""
        return self._reusable().offered_by_node() if self.reserved else self.node_devices.counted_twice_amounts()

    def _attempt(self, terms: DeviceConstraints) -> AllocatedDevices | DeviceRefusal:
        return allocate_devices(
            self.node_devices.ledger, self.device_request.demand, self.gpu_labels, terms, self.options
        )

    def _reusable(self) -> ReusableDevices:
        node_devices, inside = self.node_devices, self.node_devices.used_in_reservations()
        return ReusableDevices(
            double_counted=node_devices.counted_twice_amounts(frozenset(one.uid for one in self.reserved)),
            matched=tuple(
                ReservedDevices(
                    uid=one.uid,
                    devices=held,
                    allocated=inside.get(one.uid, NO_DEVICE_AMOUNTS),
                    restricted=one.policy == RESTRICTED,
                )
                for one in self.reserved
                if (held := node_devices.allocated_to(one.reserve_pod.uid)) is not None
            ),
            required=self.needs_reservation,
            ignores_reservations=self.device_request.ignores_reservations,
        )


AllocationAttempt: TypeAlias = Callable[[DeviceConstraints], AllocatedDevices | DeviceRefusal]


class ReservedDevices(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one reservation that the pod may use, or of a pod whose devices a reservation takes over."""

    uid: str
    devices: DeviceAmounts
    allocated: DeviceAmounts = NO_DEVICE_AMOUNTS  # by its pods, on its own devices
    preemptible: DeviceAmounts = NO_DEVICE_AMOUNTS  # of its pods that would be evicted
    restricted: bool = False
    taken_over: bool = False

    @property
    def remaining(self) -> DeviceAmounts:
        return device_amounts.remaining(self.devices, self.allocated)


class DevicePlacement(msgspec.Struct, frozen=True):
    allocation: AllocatedDevices
    reservation: str = ""  # UID; empty for the node's own devices


class ReusableDevices(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is not simply free. `double_counted`: held by pods inside others' reservations, and victims."""

    double_counted: DeviceAmounts = NO_DEVICE_AMOUNTS
    matched: Sequence[ReservedDevices] = ()
    required: bool = False  # the pod must use a reservation
    ignores_reservations: bool = False  # the pod may take what is reserved as if it were free

    def offered_by_node(self) -> DeviceAmounts:
        """Return what the node can offer when all matched reservations are opened."""
        total = self.double_counted
        for one in self.matched:
            total = device_amounts.add(device_amounts.add(total, one.allocated), one.remaining)
        return total


def allocate_with_reservations(
    reusable: ReusableDevices, attempt: AllocationAttempt, terms: DeviceConstraints
) -> DevicePlacement | DeviceRefusal:
    """Allocate from the first reservation, by UID, that serves, otherwise from the node. `terms` hold in any case."""
    if reusable.ignores_reservations:
        return _to_placement(attempt(_extend_constraints(terms, reusable.offered_by_node())))
    reasons: list[str] = []
    matched = sorted(reusable.matched, key=lambda one: one.uid)
    shared = reusable.double_counted
    for one in matched:
        shared = device_amounts.add(shared, one.allocated)
    for one in matched:
        found = _allocate_inside(one, shared, attempt, terms)
        if isinstance(found, AllocatedDevices):
            return DevicePlacement(found, one.uid)
        reasons += found.reasons
    if reusable.required:
        return DeviceRefusal(
            DeviceRefusalCode.UNSCHEDULABLE, tuple(dict.fromkeys(RESERVATION_PREFIX + reason for reason in reasons))
        )
    return _to_placement(attempt(_extend_constraints(terms, reusable.offered_by_node())))


def _allocate_inside(
    one: ReservedDevices, shared: DeviceAmounts, attempt: AllocationAttempt, terms: DeviceConstraints
) -> AllocatedDevices | DeviceRefusal:
    remained = one.remaining
    offered = device_amounts.add(device_amounts.add(shared, remained), one.preemptible)
    if one.taken_over:  # all of its devices, whichever they are
        included = {kind: frozenset(minors) for kind, minors in one.devices.items()}
        return attempt(msgspec.structs.replace(_extend_constraints(terms, offered), included=included))
    if not one.restricted:
        return attempt(_extend_constraints(terms, offered, preferred=remained))
    inside = device_amounts.add(remained, device_amounts.limited_to(one.preemptible, one.devices))
    # A device of which nothing is left stays in the map with nothing: absent would mean that it is unrestricted.
    required = {
        kind: {minor: inside.get(kind, {}).get(minor, {}) for minor in minors} for kind, minors in one.devices.items()
    }
    return attempt(_extend_constraints(terms, offered, required=required))


def _extend_constraints(
    terms: DeviceConstraints,
    reusable: DeviceAmounts,
    *,
    required: DeviceAmounts | None = None,
    preferred: DeviceAmounts = NO_DEVICE_AMOUNTS,
) -> DeviceConstraints:
    return msgspec.structs.replace(
        terms,
        reusable=device_amounts.add(terms.reusable, reusable),
        required=terms.required if required is None else required,
        preferred={kind: frozenset(minors) for kind, minors in preferred.items()} or terms.preferred,
    )


def _to_placement(found: AllocatedDevices | DeviceRefusal) -> DevicePlacement | DeviceRefusal:
    return found if isinstance(found, DeviceRefusal) else DevicePlacement(found)
