"""Allocate devices that reservations hold for a pod, with the node's own devices as the fallback.

The ledger counts both a reservation and the pods inside it. Returning the pods' part once, and what is
left of the reservation to its owners, makes the sum right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from koord.scheduler.plugins.device_share import device_amounts
from koord.scheduler.plugins.device_share.allocator import AllocatedDevices
from koord.scheduler.plugins.device_share.device_amounts import NO_DEVICE_AMOUNTS, DeviceAmounts
from koord.scheduler.plugins.device_share.refusal import RESERVATION_PREFIX, DeviceRefusal, DeviceRefusalCode
from koord.scheduler.plugins.device_share.usable_devices import DeviceConstraints

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
    """Everything that is not simply free. `double_counted` is held by pods inside reservations of others, plus
    victims.
    """

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
