"""DeviceTrial tries to allocate devices for one pod on one node, with the reservations that it may use."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from koord.api.koordinator import device as wire
from koord.scheduler.framework.reservation import MatchedReservation
from koord.scheduler.plugins.device_share.allocator import AllocatedDevices, DeviceAllocateOptions, allocate_devices
from koord.scheduler.plugins.device_share.device_amounts import NO_DEVICE_AMOUNTS, DeviceAmounts
from koord.scheduler.plugins.device_share.gpu_selection import GpuNodeLabels
from koord.scheduler.plugins.device_share.node_devices import NodeDevices
from koord.scheduler.plugins.device_share.refusal import DeviceNearMiss, DeviceRefusal
from koord.scheduler.plugins.device_share.request_cache import PodDeviceRequest
from koord.scheduler.plugins.device_share.reserved_devices import (
    DevicePlacement,
    ReservedDevices,
    ReusableDevices,
    allocate_with_reservations,
)
from koord.scheduler.plugins.device_share.usable_devices import NO_CONSTRAINTS, DeviceConstraints
from koord.values.bitmask import BitMask

RESTRICTED = "Restricted"
DEFAULT_OPTIONS = DeviceAllocateOptions()


class DeviceTrial(msgspec.Struct, frozen=True, kw_only=True):
    """A trial allocation. `reserved`: usable reservations on the node. `options`: how to choose among cards that
    fit.
    """

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
