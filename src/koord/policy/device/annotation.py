"""Convert allocations to and from the device-allocated annotation."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api import device as wire
from koord.api.annotations import device_allocated
from koord.api.annotations.codec import Malformed
from koord.api.annotations.device_allocated import (
    AllocatedVirtualFunction,
    AllocationExtension,
    Allocations,
    DeviceAllocation,
)
from koord.api.resource_name import DEPRECATED_DEVICES
from koord.policy.device.allocator import Allocation
from koord.policy.device.choice import Chosen
from koord.policy.device.holding import Amounts, Holdings, function_key
from koord.values import resources as vector

_OVER = frozenset({"Succeeded", "Failed"})


def annotation_of(allocation: Allocation) -> Allocations:
    return {kind: tuple(_entry(one) for one in chosen) for kind, chosen in allocation.devices.items()}


def _entry(one: Chosen) -> DeviceAllocation:
    extension = None
    if one.function is not None or one.template:
        function = one.function
        extension = AllocationExtension(
            vfs=() if function is None else (AllocatedVirtualFunction(minor=function.minor, bus_id=function.bus_id),),
            gpu_shared_resource_template=one.template,
        )
    resources = vector.to_wire(vector.materialise(one.amounts))
    return DeviceAllocation(minor=one.card.minor, resources=dict(resources), id=one.card.id, extension=extension)


def holdings_of(allocations: Allocations) -> Holdings:
    """Return the amounts that the annotation states. A device listed twice counts twice; nothing counts below zero."""
    held: dict[str, dict[int, Amounts]] = {}
    for kind, entries in allocations.items():
        minors = held.setdefault(kind, {})
        for entry in entries:
            sums = dict(minors.get(entry.minor, {}))
            for name, amount in vector.to_units(vector.parse(entry.resources)).items():
                if amount > 0:
                    current = DEPRECATED_DEVICES.get(name, name)
                    sums[current] = sums.get(current, 0) + amount
            for function in entry.extension.vfs if entry.extension is not None else ():
                if function.bus_id:
                    sums[function_key(function.bus_id)] = 1
            if sums:
                minors[entry.minor] = sums
    return {kind: minors for kind, minors in held.items() if minors}


def held_by(annotations: Mapping[str, str], node: str, phase: str) -> Holdings | Malformed | None:
    """Return the device amounts of a pod: only a pod that has a node and has not ended holds anything."""
    if not node or phase in _OVER:
        return None
    parsed = device_allocated.parse(annotations)
    if parsed is None or isinstance(parsed, Malformed):
        return parsed
    return holdings_of(parsed) or None


def gpu_minors(allocations: Allocations) -> tuple[int, ...]:
    return tuple(entry.minor for entry in allocations.get(wire.GPU, ()))
