"""The table of all strategies: the gates that enable each, its period, and the files that it alone writes."""

from __future__ import annotations

import msgspec

from koord.host.cgroup import knob
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
        files=(knob.CPUSET, knob.CPU_QUOTA),
    ),
    StrategyEntry(name=cpu_burst.OWNER, gates=("CPUBurst",), files=(knob.CPU_QUOTA, knob.CPU_BURST)),
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
        files=knob.PER_DISK_FILES,
    ),
    StrategyEntry(
        name=memory_qos.OWNER,
        gates=("CgroupReconcile",),
        files=(
            knob.MEMORY_MIN,
            knob.MEMORY_LOW,
            knob.MEMORY_HIGH,
            knob.MEMORY_WMARK_RATIO,
            knob.MEMORY_WMARK_SCALE,
            knob.MEMORY_WMARK_MIN_ADJ,
            knob.MEMORY_PRIORITY,
            knob.MEMORY_USE_PRIORITY_OOM,
            knob.MEMORY_OOM_GROUP,
            knob.PAGE_CACHE_ENABLE,
            knob.PAGE_CACHE_SIZE,
            knob.PAGE_CACHE_SYNC,
        ),
    ),
    StrategyEntry(
        name=system_config.OWNER,
        gates=("SystemConfig",),
        files=(
            knob.MIN_FREE_KBYTES,
            knob.WATERMARK_SCALE_FACTOR,
            knob.MEMCG_REAP_BACKGROUND,
            knob.IDLE_SAVER_WMARK,
            knob.PAGE_CACHE_LIMIT_ENABLED,
            knob.SCHED_FEATURES,
        ),
    ),
    # A hook upstream, with the period of the hooks.
    StrategyEntry(name=group_identity.OWNER, gates=("GroupIdentity",), period_s=10.0, files=(knob.CPU_BVT,)),
)
