"""Convert allocations to and from the device-allocated annotation."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations import device_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.device_codecs import (
    AllocatedDevice,
    AllocatedVirtualFunction,
    AllocationExtension,
    DeviceAllocations,
)
from koord.api.koordinator import device as wire
from koord.api.koordinator.resource_name import DEPRECATED_DEVICES
from koord.scheduler.plugins.device_share.allocator import AllocatedDevices
from koord.scheduler.plugins.device_share.device_amounts import Amounts, DeviceAmounts, vf_key
from koord.scheduler.plugins.device_share.selection import SelectedDevice
from koord.values import resources as vector

_TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


def to_annotation(allocation: AllocatedDevices) -> DeviceAllocations:
    return {kind: tuple(_entry(one) for one in chosen) for kind, chosen in allocation.devices.items()}


def _entry(one: SelectedDevice) -> AllocatedDevice:
    extension = None
    if one.virtual_function is not None or one.template:
        function = one.virtual_function
        extension = AllocationExtension(
            vfs=() if function is None else (AllocatedVirtualFunction(minor=function.minor, bus_id=function.bus_id),),
            gpu_shared_resource_template=one.template,
        )
    resources = vector.to_wire(vector.materialise(one.amounts))
    return AllocatedDevice(minor=one.card.minor, resources=dict(resources), id=one.card.id, extension=extension)


def from_annotation(allocations: DeviceAllocations) -> DeviceAmounts:
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
                    sums[vf_key(function.bus_id)] = 1
            if sums:
                minors[entry.minor] = sums
    return {kind: minors for kind, minors in held.items() if minors}


def pod_device_amounts(
    annotations: Mapping[str, str], node: str, phase: str
) -> DeviceAmounts | MalformedAnnotation | None:
    """Return the device amounts of a pod: only a pod that has a node and has not ended holds anything."""
    if not node or phase in _TERMINAL_PHASES:
        return None
    parsed = device_codecs.parse_device_allocated(annotations)
    if parsed is None or isinstance(parsed, MalformedAnnotation):
        return parsed
    return from_annotation(parsed) or None


def gpu_minors(allocations: DeviceAllocations) -> tuple[int, ...]:
    return tuple(entry.minor for entry in allocations.get(wire.GPU, ()))
