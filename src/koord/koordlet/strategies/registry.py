"""The table of all strategies: the gates that enable each, its period, and the files that it alone writes."""

from __future__ import annotations

import msgspec

from koord.koordlet.cgroup_writer import cgroup_files
from koord.koordlet.strategies import (
    blkio,
    cpu_burst,
    cpu_suppress,
    group_identity,
    memory_qos,
    resctrl,
    system_config,
    victim_selection,
)


class StrategyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy. Any of `gates` enables it; with `by_node_slo` the NodeSLO must enable it as well."""

    name: str
    gates: tuple[str, ...]
    period_s: float = 1.0
    by_node_slo: bool = False
    files: tuple[str, ...] = ()


STRATEGIES = (
    StrategyEntry(
        name=cpu_suppress.OWNER,
        gates=("BECPUSuppress",),
        by_node_slo=True,
        files=(cgroup_files.CPUSET, cgroup_files.CPU_QUOTA),
    ),
    StrategyEntry(name=cpu_burst.OWNER, gates=("CPUBurst",), files=(cgroup_files.CPU_QUOTA, cgroup_files.CPU_BURST)),
    StrategyEntry(
        name="CPUEvict",
        gates=(victim_selection.BE_CPU_EVICT, victim_selection.CPU_ALLOCATABLE_EVICT, victim_selection.CPU_EVICT),
        by_node_slo=True,
    ),
    StrategyEntry(
        name="memoryEvict",
        gates=(
            victim_selection.BE_MEMORY_EVICT,
            victim_selection.MEMORY_ALLOCATABLE_EVICT,
            victim_selection.MEMORY_EVICT,
        ),
        by_node_slo=True,
    ),
    StrategyEntry(name=resctrl.OWNER, gates=("RdtResctrl",)),
    StrategyEntry(
        name=blkio.OWNER,
        gates=("BlkIOReconcile",),
        files=(*blkio.THROTTLES, cgroup_files.IO_WEIGHT, cgroup_files.IO_QOS, cgroup_files.IO_MODEL),
    ),
    StrategyEntry(
        name=memory_qos.OWNER,
        gates=("CgroupReconcile",),
        files=(
            cgroup_files.MEMORY_MIN,
            cgroup_files.MEMORY_LOW,
            cgroup_files.MEMORY_HIGH,
            cgroup_files.MEMORY_WMARK_RATIO,
            cgroup_files.MEMORY_WMARK_SCALE,
            cgroup_files.MEMORY_WMARK_MIN_ADJ,
            cgroup_files.MEMORY_PRIORITY,
            cgroup_files.MEMORY_USE_PRIORITY_OOM,
            cgroup_files.MEMORY_OOM_GROUP,
            cgroup_files.PAGE_CACHE_ENABLE,
            cgroup_files.PAGE_CACHE_SIZE,
            cgroup_files.PAGE_CACHE_SYNC,
        ),
    ),
    StrategyEntry(
        name=system_config.OWNER,
        gates=("SystemConfig",),
        files=(
            cgroup_files.MIN_FREE_KBYTES,
            cgroup_files.WATERMARK_SCALE_FACTOR,
            cgroup_files.MEMCG_REAP_BACKGROUND,
            cgroup_files.IDLE_SAVER_WMARK,
            cgroup_files.PAGE_CACHE_LIMIT_ENABLED,
            cgroup_files.SCHED_FEATURES,
        ),
    ),
    # A hook upstream, with the period of the hooks.
    StrategyEntry(name=group_identity.OWNER, gates=("GroupIdentity",), period_s=10.0, files=(cgroup_files.CPU_BVT,)),
)
