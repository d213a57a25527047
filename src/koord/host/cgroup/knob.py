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

from koord.host.cgroup.codec import (
    MAX_INT64,
    AmountCodec,
    CfsQuotaCodec,
    CpuListCodec,
    CpuMaxColumnCodec,
    CpuSharesCodec,
    CpuWeightCodec,
    DeviceNumberCodec,
    FileCodec,
    IoCostCodec,
    IoMaxColumnCodec,
    IoWeightCodec,
    LimitOrder,
    MemoryLimitCodec,
    SchedFeatureCodec,
    SchemataCodec,
    integer_between,
)
from koord.values.go_format import parse_decimal_int


class KnobSupport(enum.Enum):
    """KnobSupport says where to check whether the kernel has a knob."""

    ALWAYS = "always"
    HERE = "here"
    KUBEPODS = "kubepods"
    ROOT = "root"


class KnobRoot(enum.Enum):
    """The file system root that a path starts from."""

    CGROUP = "cgroup"
    PROC = "proc"
    SYS = "sys"
    RESCTRL = "resctrl"


class KnobFile(msgspec.Struct, frozen=True):
    """The file of a knob in one version. `subsystem` is the directory of a v1 controller, "" on v2."""

    subsystem: str
    file: str
    codec: FileCodec
    support: KnobSupport = KnobSupport.ALWAYS
    writable: bool = True
    order: LimitOrder = LimitOrder.FREE
    fallback_tree: str = ""  # the tree to fall back to: PSI files of a cgroup v1 node may be in its unified tree


class Knob(msgspec.Struct, frozen=True):
    """One kernel setting and its files."""

    name: str
    v1: KnobFile | None = None
    v2: KnobFile | None = None
    root: KnobRoot = KnobRoot.CGROUP

    def knob_file(self, version: int) -> KnobFile | None:
        """Return the file in this cgroup version; None where it does not exist."""
        return self.v2 if version == 2 and self.root is KnobRoot.CGROUP else self.v1


class CgroupFile(msgspec.Struct, frozen=True):
    """One knob of one group. `dir` is relative to the cgroup root ("" is the root), or names a resctrl group."""

    knob: str
    dir: str = ""


_SIZE = integer_between(0, MAX_INT64)
_SWITCH = integer_between(0, 1)
_TEXT = FileCodec()


def _class_id(value: str) -> bool:
    # Upstream reads the digits after 0x as decimal, and configurations rely on what passes.
    if value.startswith("0x"):
        digits = value[2:]
        return digits.isdecimal() and digits.isascii() and int(digits) <= 99_999_999
    number = parse_decimal_int(value)
    return number is not None and 0 <= number < 1 << 31


def _read_only(name: str, subsystem: str, v2: str | None = None) -> Knob:
    return Knob(name, KnobFile(subsystem, name, _TEXT, writable=False), KnobFile("", v2 or name, _TEXT, writable=False))


def _pressure(name: str) -> Knob:
    return Knob(
        name,
        KnobFile("cpuacct", name, _TEXT, KnobSupport.KUBEPODS, writable=False, fallback_tree="unified"),
        KnobFile("", name, _TEXT, KnobSupport.KUBEPODS, writable=False),
    )


def _memory(
    name: str, codec: FileCodec, v2: KnobSupport | None = KnobSupport.HERE, order: LimitOrder = LimitOrder.FREE
) -> Knob:
    return Knob(
        name,
        KnobFile("memory", name, codec, KnobSupport.KUBEPODS, order=order),
        None if v2 is None else KnobFile("", name, codec, v2, order=order),
    )


def _page_cache(name: str, codec: FileCodec) -> Knob:
    return Knob(name, None, KnobFile("", name, codec, KnobSupport.HERE))


def _throttle(name: str, column: str) -> Knob:
    return Knob(
        name,
        KnobFile("blkio", name, DeviceNumberCodec(_SIZE, "0"), KnobSupport.KUBEPODS),
        KnobFile("", "io.max", IoMaxColumnCodec(_SIZE, column), KnobSupport.KUBEPODS),
    )


def _system(name: str, area: KnobRoot, file: str, codec: FileCodec) -> Knob:
    return Knob(name, KnobFile("", file, codec, KnobSupport.ROOT), None, area)


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
MEMORY_WMARK_RATIO = "memory.wmark_ratio"
MEMORY_WMARK_SCALE = "memory.wmark_scale_factor"
MEMORY_WMARK_MIN_ADJ = "memory.wmark_min_adj"
MEMORY_PRIORITY = "memory.priority"
MEMORY_USE_PRIORITY_OOM = "memory.use_priority_oom"
MEMORY_OOM_GROUP = "memory.oom.group"
MEMORY_IDLE_PAGES = "memory.idle_page_stats"
PAGE_CACHE_ENABLE = "memory.pagecache_limit.enable"
PAGE_CACHE_SIZE = "memory.pagecache_limit.size"
PAGE_CACHE_SYNC = "memory.pagecache_limit.sync"
READ_IOPS, READ_BPS = "blkio.throttle.read_iops_device", "blkio.throttle.read_bps_device"
WRITE_IOPS, WRITE_BPS = "blkio.throttle.write_iops_device", "blkio.throttle.write_bps_device"
IO_WEIGHT, IO_QOS, IO_MODEL = "blkio.cost.weight", "blkio.cost.qos", "blkio.cost.model"
IO_THROTTLES = (READ_IOPS, READ_BPS, WRITE_IOPS, WRITE_BPS)
PER_DISK_FILES = (*IO_THROTTLES, IO_WEIGHT, IO_QOS, IO_MODEL)  # each holds one line per disk
CPU_PRESSURE, MEMORY_PRESSURE, IO_PRESSURE = "cpu.pressure", "memory.pressure", "io.pressure"
MIN_FREE_KBYTES = "vm/min_free_kbytes"
WATERMARK_SCALE_FACTOR = "vm/watermark_scale_factor"
MEMCG_REAP_BACKGROUND = "memcg_reaper/reap_background"
PAGE_CACHE_LIMIT_ENABLED = "pagecache_limit/enabled"
GROUP_IDENTITY_ENABLED = "kernel/sched_group_identity_enabled"
IDLE_SAVER_WMARK = "kernel/sched_idle_saver_wmark"
SCHED_CORE = "kernel/sched_core"
SCHED_FEATURES = "sched_features"
NET_CLS_CLASSID = "net_cls.classid"
RESCTRL_L3, RESCTRL_MB = "resctrl.l3", "resctrl.mb"

_ALL = (
    _read_only(CPU_STAT, "cpu"),
    Knob(CPU_SHARES, KnobFile("cpu", CPU_SHARES, CpuSharesCodec()), KnobFile("", "cpu.weight", CpuWeightCodec())),
    Knob(
        CPU_QUOTA,
        KnobFile("cpu", CPU_QUOTA, CfsQuotaCodec(), order=LimitOrder.LIMIT),
        KnobFile("", "cpu.max", CpuMaxColumnCodec(0), order=LimitOrder.LIMIT),
    ),
    Knob(
        CPU_PERIOD,
        KnobFile("cpu", CPU_PERIOD, FileCodec(integer_between(1_000, 1_000_000))),
        KnobFile("", "cpu.max", CpuMaxColumnCodec(1)),
    ),
    Knob(
        CPU_BURST,
        KnobFile("cpu", CPU_BURST, FileCodec(integer_between(0, 100_000_000)), KnobSupport.HERE, order=LimitOrder.SIZE),
        KnobFile("", "cpu.max.burst", AmountCodec(_SIZE), KnobSupport.KUBEPODS, order=LimitOrder.SIZE),
    ),
    Knob(
        CPU_BVT,
        KnobFile("cpu", CPU_BVT, FileCodec(integer_between(-1, 2)), KnobSupport.HERE),
        KnobFile("", CPU_BVT, FileCodec(integer_between(-1, 2)), KnobSupport.HERE),
    ),
    Knob(
        CPU_IDLE,
        KnobFile("cpu", CPU_IDLE, FileCodec(_SWITCH), KnobSupport.KUBEPODS),
        KnobFile("", CPU_IDLE, FileCodec(_SWITCH), KnobSupport.KUBEPODS),
    ),
    _read_only(TASKS, "cpu", "cgroup.threads"),
    _read_only(PROCS, "cpu"),
    Knob(
        CPUSET,
        KnobFile("cpuset", CPUSET, CpuListCodec(), order=LimitOrder.CPUS),
        KnobFile("", CPUSET, CpuListCodec(), order=LimitOrder.INHERITED_CPUS),
    ),
    Knob(CPUSET_EFFECTIVE, None, KnobFile("", CPUSET_EFFECTIVE, CpuListCodec(), writable=False)),
    _read_only("cpuacct.stat", "cpuacct", "cpu.stat"),
    _read_only(CPUACCT_USAGE, "cpuacct", "cpu.stat"),
    _pressure(CPU_PRESSURE),
    _pressure(MEMORY_PRESSURE),
    _pressure(IO_PRESSURE),
    Knob(
        MEMORY_LIMIT,
        KnobFile("memory", MEMORY_LIMIT, MemoryLimitCodec("-1"), order=LimitOrder.LIMIT),
        KnobFile("", "memory.max", MemoryLimitCodec("max"), order=LimitOrder.LIMIT),
    ),
    Knob(
        MEMORY_SWAP_LIMIT,
        KnobFile("memory", MEMORY_SWAP_LIMIT, MemoryLimitCodec("-1"), KnobSupport.HERE, order=LimitOrder.SIZE),
    ),
    _read_only(MEMORY_USAGE, "memory", "memory.current"),
    _read_only(MEMORY_STAT, "memory"),
    _read_only(MEMORY_NUMA_STAT, "memory"),
    _memory(MEMORY_MIN, AmountCodec(_SIZE), KnobSupport.ALWAYS, LimitOrder.SHARE),
    _memory(MEMORY_LOW, AmountCodec(_SIZE), KnobSupport.ALWAYS, LimitOrder.SHARE),
    _memory(MEMORY_HIGH, AmountCodec(_SIZE), KnobSupport.ALWAYS, LimitOrder.LIMIT),
    _memory(MEMORY_WMARK_RATIO, FileCodec(integer_between(0, 100))),
    _memory(MEMORY_WMARK_SCALE, FileCodec(integer_between(1, 1000))),
    _memory(MEMORY_WMARK_MIN_ADJ, FileCodec(integer_between(-25, 50))),
    _memory(MEMORY_PRIORITY, FileCodec(integer_between(0, 12))),
    _memory(MEMORY_USE_PRIORITY_OOM, FileCodec(_SWITCH)),
    _memory(MEMORY_OOM_GROUP, FileCodec(_SWITCH)),
    Knob(MEMORY_IDLE_PAGES, KnobFile("memory", MEMORY_IDLE_PAGES, _TEXT, KnobSupport.KUBEPODS, writable=False)),
    _page_cache(PAGE_CACHE_ENABLE, FileCodec(_SWITCH)),
    _page_cache(PAGE_CACHE_SIZE, FileCodec(_SIZE)),
    _page_cache(PAGE_CACHE_SYNC, FileCodec(_SWITCH)),
    _throttle(READ_IOPS, "riops"),
    _throttle(READ_BPS, "rbps"),
    _throttle(WRITE_IOPS, "wiops"),
    _throttle(WRITE_BPS, "wbps"),
    Knob(
        IO_WEIGHT,
        KnobFile("blkio", IO_WEIGHT, DeviceNumberCodec(integer_between(1, 100), "100"), KnobSupport.KUBEPODS),
        KnobFile("", "io.weight", IoWeightCodec(integer_between(1, 100), "100"), KnobSupport.KUBEPODS),
    ),
    Knob(
        IO_QOS,
        KnobFile("blkio", IO_QOS, IoCostCodec(6, 0, "enable=0"), KnobSupport.ROOT),
        KnobFile("", "io.cost.qos", IoCostCodec(6, 0, "enable=0"), KnobSupport.ROOT),
    ),
    Knob(
        IO_MODEL,
        KnobFile("blkio", IO_MODEL, IoCostCodec(7, 1, "ctrl=auto"), KnobSupport.ROOT),
        KnobFile("", "io.cost.model", IoCostCodec(7, 1, "ctrl=auto"), KnobSupport.ROOT),
    ),
    Knob(
        NET_CLS_CLASSID,
        KnobFile("net_cls", NET_CLS_CLASSID, FileCodec(_class_id), KnobSupport.KUBEPODS),
        KnobFile("net_cls", NET_CLS_CLASSID, FileCodec(_class_id), KnobSupport.KUBEPODS),
    ),
    _system(MIN_FREE_KBYTES, KnobRoot.PROC, "sys/vm/min_free_kbytes", FileCodec(integer_between(10_240, 10_485_760))),
    _system(
        WATERMARK_SCALE_FACTOR, KnobRoot.PROC, "sys/vm/watermark_scale_factor", FileCodec(integer_between(10, 400))
    ),
    _system(MEMCG_REAP_BACKGROUND, KnobRoot.SYS, "kernel/mm/memcg_reaper/reap_background", FileCodec(_SWITCH)),
    _system(PAGE_CACHE_LIMIT_ENABLED, KnobRoot.SYS, "kernel/mm/pagecache_limit/enabled", FileCodec(_SWITCH)),
    _system("kidled/scan_period_in_seconds", KnobRoot.SYS, "kernel/mm/kidled/scan_period_in_seconds", FileCodec(_SIZE)),
    _system("kidled/use_hierarchy", KnobRoot.SYS, "kernel/mm/kidled/use_hierarchy", FileCodec(_SWITCH)),
    _system(GROUP_IDENTITY_ENABLED, KnobRoot.PROC, "sys/kernel/sched_group_identity_enabled", FileCodec(_SWITCH)),
    _system(SCHED_CORE, KnobRoot.PROC, "sys/kernel/sched_core", FileCodec(_SWITCH)),
    _system(IDLE_SAVER_WMARK, KnobRoot.PROC, "sys/kernel/sched_idle_saver_wmark", FileCodec()),
    _system(SCHED_FEATURES, KnobRoot.SYS, "kernel/debug/sched_features", SchedFeatureCodec()),
    Knob(RESCTRL_L3, KnobFile("", "schemata", SchemataCodec("L3", 16), KnobSupport.ROOT), None, KnobRoot.RESCTRL),
    Knob(RESCTRL_MB, KnobFile("", "schemata", SchemataCodec("MB", 10), KnobSupport.ROOT), None, KnobRoot.RESCTRL),
)

KNOBS: Mapping[str, Knob] = MappingProxyType({knob.name: knob for knob in _ALL})
