"""scheduling.koordinator.sh/device-joint-allocate: device types that must come from one place; the first leads."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.annotations.codec import Malformed, read, written
from koord.api.part import Part
from koord.api.protocol import A_DEVICE_JOINT_ALLOCATE

SAME_PCIE = "SamePCIe"


class DeviceJointAllocate(Part, frozen=True, kw_only=True):
    """DeviceJointAllocate names device types that must come from one place; the first leads."""
    device_types: tuple[str, ...] = ()
    required_scope: str = ""


def parse(annotations: Mapping[str, str]) -> DeviceJointAllocate | Malformed | None:
    return read(annotations, A_DEVICE_JOINT_ALLOCATE, DeviceJointAllocate)


def dump(value: DeviceJointAllocate) -> str:
    return written(value)
