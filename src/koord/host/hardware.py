"""The hardware of a machine as data: CPUs, NUMA memory, block devices, network cards, accelerators and kernel features.

The readers are in `hardware_topology`, `devices` and `capability`.

NVIDIA cards are values as well: what a card is, and the decision whether it works. When a card is healthy again:

- a lost card, and its errors with it, when it answers again;
- after a critical error, when the driver says that the card needs no recovery and no further error came for a minute.
  A driver before R570 does not say it: then the card stays unhealthy until it was lost (a reset) or the agent restarts;
- memory that waits for a reset, failed to be remapped or has uncorrected errors, when the driver says so no more.
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


NO_RECOVERY, GPU_RESET, NODE_REBOOT, DRAIN_P2P, DRAIN_AND_RESET = range(5)
_RECOVERY = {
    GPU_RESET: ("GpuResetRequired", "the driver says that the card must be reset"),
    NODE_REBOOT: ("NodeRebootRequired", "the driver says that the node must be rebooted"),
    DRAIN_AND_RESET: ("GpuResetRequired", "the driver says that the card must be drained and reset"),
}


class GpuHealth(msgspec.Struct, frozen=True):
    """The health of a card. `code` names the error, or why errors are not told; "" where there is neither."""

    healthy: bool = True
    code: str = ""
    message: str = ""


class MigInstance(msgspec.Struct, frozen=True):
    """A part of a card that MIG (Multi-Instance GPU) made a device of its own; `profile` is such as 1g.5gb."""

    uuid: str
    profile: str


class GpuCard(msgspec.Struct, frozen=True, kw_only=True):
    """`links` counts the NVLinks to other cards by their addresses; those to switches are `switch_links`."""

    uuid: str
    minor: int
    total_bytes: int
    address: str  # as sysfs names it, such as 0000:3b:00.0
    model: str
    mig_enabled: bool = False
    mig_instances: tuple[MigInstance, ...] = ()
    links: Mapping[str, int] = {}
    switch_links: int = 0


class GpuInventory(msgspec.Struct, frozen=True):
    """The NVIDIA cards of a machine, the version of their driver, and their health by uuid. `unidentified` cards are
    counted by the driver, and did not say who they are since the agent started.
    """

    cards: tuple[GpuCard, ...] = ()
    driver: str = ""
    health: Mapping[str, GpuHealth] = {}
    unidentified: int = 0


class GpuProcessUsage(msgspec.Struct, frozen=True):
    """GpuProcessUsage is what one process uses of one card; `core_percent` is of all its cores."""

    pid: int
    core_percent: int
    memory_bytes: int


NO_HEALTH_CHECK = GpuHealth(True, "DeviceHealthCheckNotSupported", "the driver does not report errors of this card")
LOST = GpuHealth(False, "GpuLost", "the driver does not reach the card")


class GpuReading(msgspec.Struct, frozen=True, kw_only=True):
    """The driver's answers about a card; None where the card or the driver does not say it."""

    lost: bool = False
    recovery: int | None = None
    remap_pending: bool = False
    remap_failed: bool = False
    retirement_pending: bool = False
    uncorrected_errors: int | None = None


class GpuRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a card's errors: whether its errors are told, the last critical one and when it came."""

    told: bool = True
    xid: int | None = None
    xid_at_s: float = 0.0
    lost: bool = False


def next_record(record: GpuRecord, reading: GpuReading, now_s: float, quiet_s: float) -> GpuRecord:
    """Return the record after a look at the card: an error that it recovered from is forgotten."""
    came_back = record.lost and not reading.lost
    recovered = reading.recovery == NO_RECOVERY and now_s - record.xid_at_s >= quiet_s
    heals = not reading.lost and (came_back or recovered)
    return msgspec.structs.replace(record, xid=None if heals else record.xid, lost=reading.lost)


def decide_gpu_health(record: GpuRecord, reading: GpuReading) -> GpuHealth:
    """Decide whether a card works; the first thing that is wrong with it is named."""
    if reading.lost:
        return LOST
    if record.xid is not None:
        return GpuHealth(False, f"Xid{record.xid}", f"the driver reported the critical error XID {record.xid}")
    if reading.recovery in _RECOVERY:
        return GpuHealth(False, *_RECOVERY[reading.recovery])
    if reading.remap_failed:
        return GpuHealth(False, "RowRemapFailed", "memory failed and could not be remapped")
    if reading.remap_pending:
        return GpuHealth(False, "RowRemapPending", "memory failed and is remapped when the card is reset")
    if reading.retirement_pending:
        return GpuHealth(False, "PageRetirementPending", "memory failed and is retired when the card is reset")
    if reading.recovery is None and reading.uncorrected_errors:
        # Newer drivers correct by remapping, and say above when that is not enough.
        message = f"{reading.uncorrected_errors} uncorrected ECC errors since the driver was loaded"
        return GpuHealth(False, "EccUncorrected", message)
    return GpuHealth() if record.told else NO_HEALTH_CHECK
