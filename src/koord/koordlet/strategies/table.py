"""The table of all strategies: the gates that enable each, its period, and the files that it alone writes."""

from __future__ import annotations

import msgspec

from koord.koordlet.strategies import (
    blkio,
    burst,
    feature,
    file,
    group_identity,
    memory_qos,
    resctrl,
    suppress,
    system_config,
)


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy. Any of `gates` enables it; with `by_node_slo` the NodeSLO must enable it as well."""

    name: str
    gates: tuple[str, ...]
    period_s: float = 1.0
    by_node_slo: bool = False
    files: tuple[str, ...] = ()


STRATEGIES = (
    Strategy(name=suppress.OWNER, gates=("BECPUSuppress",), by_node_slo=True, files=(file.CPUSET, file.CPU_QUOTA)),
    Strategy(name=burst.OWNER, gates=("CPUBurst",), files=(file.CPU_QUOTA, file.CPU_BURST)),
    Strategy(
        name="CPUEvict",
        gates=(feature.BE_CPU_EVICT, feature.CPU_ALLOCATABLE_EVICT, feature.CPU_EVICT),
        by_node_slo=True,
    ),
    Strategy(
        name="memoryEvict",
        gates=(feature.BE_MEMORY_EVICT, feature.MEMORY_ALLOCATABLE_EVICT, feature.MEMORY_EVICT),
        by_node_slo=True,
    ),
    Strategy(name=resctrl.OWNER, gates=("RdtResctrl",)),
    Strategy(
        name=blkio.OWNER,
        gates=("BlkIOReconcile",),
        files=(*blkio.THROTTLES, file.IO_WEIGHT, file.IO_QOS, file.IO_MODEL),
    ),
    Strategy(
        name=memory_qos.OWNER,
        gates=("CgroupReconcile",),
        files=(
            file.MEMORY_MIN,
            file.MEMORY_LOW,
            file.MEMORY_HIGH,
            file.MEMORY_WMARK_RATIO,
            file.MEMORY_WMARK_SCALE,
            file.MEMORY_WMARK_MIN_ADJ,
            file.MEMORY_PRIORITY,
            file.MEMORY_USE_PRIORITY_OOM,
            file.MEMORY_OOM_GROUP,
            file.PAGE_CACHE_ENABLE,
            file.PAGE_CACHE_SIZE,
            file.PAGE_CACHE_SYNC,
        ),
    ),
    Strategy(
        name=system_config.OWNER,
        gates=("SystemConfig",),
        files=(
            file.MIN_FREE_KBYTES,
            file.WATERMARK_SCALE_FACTOR,
            file.MEMCG_REAP_BACKGROUND,
            file.IDLE_SAVER_WMARK,
            file.PAGE_CACHE_LIMIT_ENABLED,
            file.SCHED_FEATURES,
        ),
    ),
    # A hook upstream, with the period of the hooks.
    Strategy(name=group_identity.OWNER, gates=("GroupIdentity",), period_s=10.0, files=(file.CPU_BVT,)),
)
