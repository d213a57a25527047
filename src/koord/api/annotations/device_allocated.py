"""This module holds the codecs of devices: what a pod was given, what it asks for, and the partitions of a
node's GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import field

from koord.api.annotations.codec import Malformed, read, written
from koord.api.marker import always, always_resources
from koord.api.part import Part, QuantityText, ResourceList
from koord.api.protocol import A_DEVICE_ALLOCATED


class AllocatedVirtualFunction(Part, frozen=True, kw_only=True):
    """AllocatedVirtualFunction may lack `minor` on the wire: older schedulers wrote only the bus."""

    minor: int = 0
    bus_id: str = field(default="", name="busID")


class AllocationExtension(Part, frozen=True, kw_only=True):
    vfs: tuple[AllocatedVirtualFunction, ...] = ()
    gpu_shared_resource_template: str = ""


class DeviceAllocation(Part, frozen=True, kw_only=True):
    """AllocatedDevice is one device of a pod. `minor` and `resources` are always written, even when empty."""

    minor: int = always(0)
    resources: ResourceList = always_resources()
    id: str = ""
    extension: AllocationExtension | None = None


Allocations = dict[str, tuple[DeviceAllocation, ...]]


def parse(annotations: Mapping[str, str]) -> Allocations | Malformed | None:
    """Parse scheduling.koordinator.sh/device-allocated: the devices that the scheduler gave a pod, by device type."""
    return read(annotations, A_DEVICE_ALLOCATED, Allocations, _amounts)


def _amounts(value: Allocations) -> Iterator[QuantityText]:
    for devices in value.values():
        for device in devices:
            yield from device.resources.values()


def dump(value: Mapping[str, Sequence[DeviceAllocation]]) -> str:
    return written(value)
