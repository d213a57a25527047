"""The hardware of a machine as data: CPUs, NUMA memory, block devices, network cards, accelerators and kernel features.

The readers are in `hardware_topology`, `devices` and `capability`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from koord.api.model import Model, ResourceList


class MachineCpu(msgspec.Struct, frozen=True, order=True, gc=False):
    """One logical CPU and its place in the topology, in the order of reports: by NUMA node, socket, core, number."""

    node: int = 0
    socket: int = 0
    core: int = 0
    cpu: int = 0
    l3: int = 0


class CpuModel(msgspec.Struct, frozen=True, kw_only=True):
    model: str = ""
    vendor: str = ""
    flags: frozenset[str] = frozenset()
    hyper_threads: bool = False
    turbo: bool = False
    cat_l3_mask: str = ""


class NumaNode(msgspec.Struct, frozen=True):
    """The memory of one NUMA node in bytes. Used is without page cache and reclaimable slabs, never below 0."""

    id: int
    total: int
    used: int


class HugePages(msgspec.Struct, frozen=True):
    node: int
    pages_2m: int
    pages_1g: int


class BlockDevices(msgspec.Struct, frozen=True, kw_only=True):
    """The block devices of a node: disks, partitions, volume groups and mounts. Devices are paths such as /dev/vda."""

    disks: Mapping[str, str] = {}  # disk: major:minor
    partitions: Mapping[str, str] = {}  # partition: disk
    volume_groups: Mapping[str, str] = {}  # name: disk, for groups on one physical volume
    logical_volumes: Mapping[str, str] = {}  # /dev/mapper/...: volume group
    mounts: Mapping[str, str] = {}  # mount point: device

    def number_of_device(self, device: str) -> str | None:
        """Return the major:minor number of the disk that holds a device."""
        return self.disks.get(self.partitions.get(device, device))

    def number_of_volume_group(self, name: str) -> str | None:
        """Return the number of the disk that holds a volume group."""
        disk = self.volume_groups.get(name)
        return None if disk is None else self.number_of_device(disk)

    def number_of_mount(self, point: str) -> str | None:
        """Return the number of the disk that holds a mount point."""
        device = self.mounts.get(point)
        if device is None:
            return None
        return self.number_of_device(device) or self.number_of_volume_group(self.logical_volumes.get(device, ""))


class PciLocation(msgspec.Struct, frozen=True):
    """PciLocation says where a PCI device is attached. `numa` is 0 if unknown; `root` is such as pci0000:00."""

    numa: int
    root: str


class RdmaCard(msgspec.Struct, frozen=True, kw_only=True):
    address: str
    minor: int
    healthy: bool  # every port of its first ibdev is active
    location: PciLocation
    virtual_functions: tuple[str, ...] = ()  # addresses of virtual functions, when they are switched on


class XpuLink(Model, frozen=True, kw_only=True):
    """A peer-to-peer link. `peer_minor` is a list such as 0,1."""

    peer_minor: str = ""
    type: str = ""


class XpuTopology(Model, frozen=True, kw_only=True):
    p2p_links: tuple[XpuLink, ...] = msgspec.field(default=(), name="p2pLinks")
    must_honor_partition: bool = False
    socket_id: str = msgspec.field(default="", name="socketID")
    node_id: str = msgspec.field(default="", name="nodeID")
    pcie_id: str = msgspec.field(default="", name="pcieID")
    bus_id: str = msgspec.field(default="", name="busID")


class XpuStatus(Model, frozen=True, kw_only=True):
    healthy: bool = False
    err_code: str = ""
    err_message: str = ""


class Xpu(Model, frozen=True, kw_only=True):
    vendor: str = ""
    model: str = ""
    uuid: str = ""
    minor: str = ""
    resources: ResourceList = {}
    topology: XpuTopology | None = None
    status: XpuStatus | None = None


TIME_SLICE = "time_slice"  # the name of a capability that is no file


class CapabilityState(enum.Enum):
    SUPPORTED = "supported"
    DEGRADED = "degraded"  # works with a difference that `how` explains
    OFF = "off"  # not there
    REJECTED = "rejected"  # there, but it refuses


class Capability(msgspec.Struct, frozen=True):
    """Capability says whether one knob or feature works. `version` is that of the cgroup tree, 0 for what has none."""

    knob: str
    version: int
    state: CapabilityState
    how: str
    errno: str = ""


class ResctrlLimits(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The values that the kernel takes, by resctrl's `info`; the defaults are Intel's."""

    min_ways: int = 1
    has_bandwidth: bool = True  # whether memory bandwidth can be divided at all
    min_bandwidth: int = 10
    bandwidth_step: int = 10
