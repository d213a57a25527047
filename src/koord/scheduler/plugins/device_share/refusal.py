"""Reasons why a pod gets no devices: Koordinator's texts, and as numbers how near the node came."""

from __future__ import annotations

import enum

import msgspec

HINT_INVALID = "invalid DeviceAllocateHint annotation, err: "
JOINT_INVALID = "invalid DeviceJointAllocate annotation, err: "
PARTITION_SPEC_INVALID = "invalid GPUPartitionSpec annotation, err: "
NO_PRIMARY = "node(s) Insufficient primary device"
JOINT_VIOLATED = "node(s) Device Joint-Allocate rules violation"
NO_PARTITION_TABLE = "node(s) missing GPU Partition Table"
UNSUPPORTED_COUNT = "node(s) Unsupported number of GPU requests"
NO_PARTITION = "Insufficient Partitioned GPU Devices"
NO_TREE = "node(s) missing GPU Device Topology Tree"
MULTI_SHARED = "node(s) Unsupported Multi-Shared GPU"
NO_GPU_IN_SCOPE = "Insufficient Topology Scoped GPU Devices"
NO_GPU = "Insufficient GPU Devices"
NO_TEMPLATE = "no matched GPU shared resource template"
NO_DEVICES_IN_ZONES = "Insufficient NUMA Scoped Devices"
NO_ZONE_OF_DESIGNATED = "Designated Allocation Lack NUMA Node ID"
NO_ISOLATION = "GPUIsolationProviderHAMICore not found on the node"
RESERVATION_PREFIX = "Reservation(s) "


class DeviceRefusalCode(enum.Enum):
    UNSCHEDULABLE = "Unschedulable"  # evicting pods may help
    UNRESOLVABLE = "UnschedulableAndUnresolvable"  # it would not
    ERROR = "Error"  # the cycle fails


class DeviceNearMiss(msgspec.Struct, frozen=True, kw_only=True):
    """DeviceNearMiss says how far a node is from serving a request. `best` is the fullest usable group's devices."""

    device_type: str
    wanted: int
    fitting: int  # devices that could each serve one instance, wherever they sit
    unhealthy: int = 0
    group: str = ""  # "PCIe switch", "NUMA node", "partition", "virtual function": what the devices must share or have
    best: int = 0
    detail: str = ""

    @property
    def missing(self) -> float:
        """Return the fraction of the wanted devices that the node cannot give, from 0 to 1."""
        there = self.best if self.group and self.fitting >= self.wanted else self.fitting
        return max(self.wanted - there, 0) / max(self.wanted, 1)

    @property
    def sentence(self) -> str:
        text = f"{self.fitting} of the {self.wanted} {self.device_type} devices wanted would fit"
        if self.group and self.fitting >= self.wanted:
            text = f"{self.fitting} {self.device_type} devices would fit but no {self.wanted} share one {self.group}"
            text += f" (at most {self.best})"
        if self.unhealthy:
            text += f"; {self.unhealthy} unhealthy"
        return f"{text}; {self.detail}" if self.detail else text


class DeviceRefusal(msgspec.Struct, frozen=True):
    code: DeviceRefusalCode
    reasons: tuple[str, ...]
    nearest: DeviceNearMiss | None = None

    @property
    def message(self) -> str:
        return ", ".join(self.reasons)


def unschedulable(reason: str, nearest: DeviceNearMiss | None = None) -> DeviceRefusal:
    return DeviceRefusal(DeviceRefusalCode.UNSCHEDULABLE, (reason,), nearest)


def unresolvable(reason: str, nearest: DeviceNearMiss | None = None) -> DeviceRefusal:
    return DeviceRefusal(DeviceRefusalCode.UNRESOLVABLE, (reason,), nearest)


def insufficient_devices(device_type: str) -> str:
    return f"Insufficient {device_type} devices"


def insufficient_vfs(device_type: str) -> str:
    return f"Insufficient {device_type} VirtualFunctions"
