"""The table of every kernel file that the agent reads or writes: its path in both cgroup versions and its codec.

Names are cgroup v1's, as in Koordinator's protocol. A knob without a file in a version does not exist there. Support
means: ALWAYS, every kernel has it; HERE, check each directory; KUBEPODS, the directory of all pods tells for the whole
node; ROOT, only the root group has it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from koord.host.cgroup.codec import Amount, Bytes, Codec, Cpus, MaxColumn, Quota, Shares, Weight, between
from koord.host.cgroup.conversion import MAX_INT64
from koord.host.cgroup.device_codec import DeviceColumn, DeviceNumber, DeviceSettings, Feature, Schemata
from koord.host.cgroup.order import Order
from koord.values.quotation import integer


class Support(enum.Enum):
    """Where to check whether the kernel has a knob."""
    ALWAYS = "always"
    HERE = "here"
    KUBEPODS = "kubepods"
    ROOT = "root"


class Area(enum.Enum):
    """The file system root that a path starts from."""

    CGROUP = "cgroup"
    PROC = "proc"
    SYS = "sys"
    RESCTRL = "resctrl"


class Place(msgspec.Struct, frozen=True):
    """The file of a knob in one version. `subsystem` is the directory of a v1 controller, "" on v2."""

    subsystem: str
    file: str
    codec: Codec
    support: Support = Support.ALWAYS
    writable: bool = True
    order: Order = Order.FREE
    also: str = ""  # the tree to fall back to: PSI files of a cgroup v1 node may be in its unified tree


class Knob(msgspec.Struct, frozen=True):
    """One kernel setting and its files."""
    name: str
    v1: Place | None = None
    v2: Place | None = None
    area: Area = Area.CGROUP

    def place(self, version: int) -> Place | None:
        """Return the file in this cgroup version; None where it does not exist."""
        return self.v2 if version == 2 and self.area is Area.CGROUP else self.v1


_SIZE = between(0, MAX_INT64)
_SWITCH = between(0, 1)
_TEXT = Codec()


def _class_id(value: str) -> bool:
    # Upstream reads the digits after 0x as decimal, and configurations rely on what passes.
    if value.startswith("0x"):
        digits = value[2:]
        return digits.isdecimal() and digits.isascii() and int(digits) <= 99_999_999
    number = integer(value)
    return number is not None and 0 <= number < 1 << 31


def _read_only(name: str, subsystem: str, v2: str | None = None) -> Knob:
    return Knob(
        name,
        Place(subsystem, name, _TEXT, writable=False),
        Place("", v2 or name, _TEXT, writable=False),
    )


def _pressure(name: str) -> Knob:
    return Knob(
        name,
        Place("cpuacct", name, _TEXT, Support.KUBEPODS, writable=False, also="unified"),
        Place("", name, _TEXT, Support.KUBEPODS, writable=False),
    )


def _memory(name: str, codec: Codec, v2: Support | None = Support.HERE, order: Order = Order.FREE) -> Knob:
    return Knob(
        name,
        Place("memory", name, codec, Support.KUBEPODS, order=order),
        None if v2 is None else Place("", name, codec, v2, order=order),
    )


def _page_cache(name: str, codec: Codec) -> Knob:
    return Knob(name, None, Place("", name, codec, Support.HERE))


def _throttle(name: str, column: str) -> Knob:
    return Knob(
        name,
        Place("blkio", name, DeviceNumber(_SIZE, "0"), Support.KUBEPODS),
        Place("", "io.max", DeviceColumn(_SIZE, column), Support.KUBEPODS),
    )


def _system(name: str, area: Area, file: str, codec: Codec) -> Knob:
    return Knob(name, Place("", file, codec, Support.ROOT), None, area)


CPU_SHARES = "cpu.shares"
CPU_QUOTA = "cpu.cfs_quota_us"
CPU_PERIOD = "cpu.cfs_period_us"
CPU_BURST = "cpu.cfs_burst_us"
CPU_BVT = "cpu.bvt_warp_ns"
CPU_IDLE = "cpu.idle"
CPU_STAT = "cpu.stat"
CPUSET = "cpuset.cpus"
CPUSET_EFFECTIVE = "cpuset.cpus.effective"
CPUACCT_USAGE = "cpuacct.usage"
TASKS = "tasks"
PROCS = "cgroup.procs"
MEMORY_LIMIT = "memory.limit_in_bytes"
MEMORY_SWAP_LIMIT = "memory.memsw.limit_in_bytes"
MEMORY_USAGE = "memory.usage_in_bytes"
MEMORY_STAT = "memory.stat"
MEMORY_NUMA_STAT = "memory.numa_stat"
MEMORY_MIN, MEMORY_LOW, MEMORY_HIGH = "memory.min", "memory.low", "memory.high"
MEMORY_IDLE_PAGES = "memory.idle_page_stats"
CPU_PRESSURE, MEMORY_PRESSURE, IO_PRESSURE = "cpu.pressure", "memory.pressure", "io.pressure"
RESCTRL_L3, RESCTRL_MB = "resctrl.l3", "resctrl.mb"
SCHED_FEATURES = "sched_features"

_ALL = (
    _read_only(CPU_STAT, "cpu"),
    Knob(CPU_SHARES, Place("cpu", CPU_SHARES, Shares()), Place("", "cpu.weight", Weight())),
    Knob(
        CPU_QUOTA,
        Place("cpu", CPU_QUOTA, Quota(), order=Order.LIMIT),
        Place("", "cpu.max", MaxColumn(0), order=Order.LIMIT),
    ),
    Knob(CPU_PERIOD, Place("cpu", CPU_PERIOD, Codec(between(1_000, 1_000_000))), Place("", "cpu.max", MaxColumn(1))),
    Knob(
        CPU_BURST,
        Place("cpu", CPU_BURST, Codec(between(0, 100_000_000)), Support.HERE, order=Order.SIZE),
        Place("", "cpu.max.burst", Amount(_SIZE), Support.KUBEPODS, order=Order.SIZE),
    ),
    Knob(
        CPU_BVT,
        Place("cpu", CPU_BVT, Codec(between(-1, 2)), Support.HERE),
        Place("", CPU_BVT, Codec(between(-1, 2)), Support.HERE),
    ),
    Knob(
        CPU_IDLE,
        Place("cpu", CPU_IDLE, Codec(_SWITCH), Support.KUBEPODS),
        Place("", CPU_IDLE, Codec(_SWITCH), Support.KUBEPODS),
    ),
    _read_only(TASKS, "cpu", "cgroup.threads"),
    _read_only(PROCS, "cpu"),
    Knob(
        CPUSET,
        Place("cpuset", CPUSET, Cpus(), order=Order.CPUS),
        Place("", CPUSET, Cpus(), order=Order.INHERITED_CPUS),
    ),
    Knob(CPUSET_EFFECTIVE, None, Place("", CPUSET_EFFECTIVE, Cpus(), writable=False)),
    _read_only("cpuacct.stat", "cpuacct", "cpu.stat"),
    _read_only(CPUACCT_USAGE, "cpuacct", "cpu.stat"),
    _pressure(CPU_PRESSURE),
    _pressure(MEMORY_PRESSURE),
    _pressure(IO_PRESSURE),
    Knob(
        MEMORY_LIMIT,
        Place("memory", MEMORY_LIMIT, Bytes("-1"), order=Order.LIMIT),
        Place("", "memory.max", Bytes("max"), order=Order.LIMIT),
    ),
    Knob(MEMORY_SWAP_LIMIT, Place("memory", MEMORY_SWAP_LIMIT, Bytes("-1"), Support.HERE, order=Order.SIZE)),
    _read_only(MEMORY_USAGE, "memory", "memory.current"),
    _read_only(MEMORY_STAT, "memory"),
    _read_only(MEMORY_NUMA_STAT, "memory"),
    _memory(MEMORY_MIN, Amount(_SIZE), Support.ALWAYS, Order.SHARE),
    _memory(MEMORY_LOW, Amount(_SIZE), Support.ALWAYS, Order.SHARE),
    _memory(MEMORY_HIGH, Amount(_SIZE), Support.ALWAYS, Order.LIMIT),
    _memory("memory.wmark_ratio", Codec(between(0, 100))),
    _memory("memory.wmark_scale_factor", Codec(between(1, 1000))),
    _memory("memory.wmark_min_adj", Codec(between(-25, 50))),
    _memory("memory.priority", Codec(between(0, 12))),
    _memory("memory.use_priority_oom", Codec(_SWITCH)),
    _memory("memory.oom.group", Codec(_SWITCH)),
    Knob(MEMORY_IDLE_PAGES, Place("memory", MEMORY_IDLE_PAGES, _TEXT, Support.KUBEPODS, writable=False)),
    _page_cache("memory.pagecache_limit.enable", Codec(_SWITCH)),
    _page_cache("memory.pagecache_limit.size", Codec(_SIZE)),
    _page_cache("memory.pagecache_limit.sync", Codec(_SWITCH)),
    _throttle("blkio.throttle.read_iops_device", "riops"),
    _throttle("blkio.throttle.read_bps_device", "rbps"),
    _throttle("blkio.throttle.write_iops_device", "wiops"),
    _throttle("blkio.throttle.write_bps_device", "wbps"),
    Knob(
        "blkio.cost.weight",
        Place("blkio", "blkio.cost.weight", DeviceNumber(between(1, 100), "100"), Support.KUBEPODS),
        Place("", "io.weight", DeviceNumber(between(1, 100), "100"), Support.KUBEPODS),
    ),
    Knob(
        "blkio.cost.qos",
        Place("blkio", "blkio.cost.qos", DeviceSettings(6, 0, "enable=0"), Support.ROOT),
        Place("", "io.cost.qos", DeviceSettings(6, 0, "enable=0"), Support.ROOT),
    ),
    Knob(
        "blkio.cost.model",
        Place("blkio", "blkio.cost.model", DeviceSettings(7, 1, "ctrl=auto"), Support.ROOT),
        Place("", "io.cost.model", DeviceSettings(7, 1, "ctrl=auto"), Support.ROOT),
    ),
    Knob(
        "net_cls.classid",
        Place("net_cls", "net_cls.classid", Codec(_class_id), Support.KUBEPODS),
        Place("net_cls", "net_cls.classid", Codec(_class_id), Support.KUBEPODS),
    ),
    _system("vm/min_free_kbytes", Area.PROC, "sys/vm/min_free_kbytes", Codec(between(10_240, 10_485_760))),
    _system("vm/watermark_scale_factor", Area.PROC, "sys/vm/watermark_scale_factor", Codec(between(10, 400))),
    _system("memcg_reaper/reap_background", Area.SYS, "kernel/mm/memcg_reaper/reap_background", Codec(_SWITCH)),
    _system("pagecache_limit/enabled", Area.SYS, "kernel/mm/pagecache_limit/enabled", Codec(_SWITCH)),
    _system("kidled/scan_period_in_seconds", Area.SYS, "kernel/mm/kidled/scan_period_in_seconds", Codec(_SIZE)),
    _system("kidled/use_hierarchy", Area.SYS, "kernel/mm/kidled/use_hierarchy", Codec(_SWITCH)),
    _system(
        "kernel/sched_group_identity_enabled", Area.PROC, "sys/kernel/sched_group_identity_enabled", Codec(_SWITCH)
    ),
    _system("kernel/sched_core", Area.PROC, "sys/kernel/sched_core", Codec(_SWITCH)),
    _system("kernel/sched_idle_saver_wmark", Area.PROC, "sys/kernel/sched_idle_saver_wmark", Codec()),
    _system(SCHED_FEATURES, Area.SYS, "kernel/debug/sched_features", Feature()),
    Knob(RESCTRL_L3, Place("", "schemata", Schemata("L3", 16), Support.ROOT), None, Area.RESCTRL),
    Knob(RESCTRL_MB, Place("", "schemata", Schemata("MB", 10), Support.ROOT), None, Area.RESCTRL),
)

KNOBS: Mapping[str, Knob] = MappingProxyType({knob.name: knob for knob in _ALL})
