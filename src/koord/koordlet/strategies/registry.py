"""The table of all strategies. A strategy is one module and one row here, and nothing else names it.

`StrategyRunner` runs the rows in this order: `observe` reads the inputs into a view, `decide` makes a plan of the view
and of nothing else, and the plan's effects go to the cgroup writer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from koord.host.cgroup import knob
from koord.koordlet.strategies import (
    blkio,
    cpu_burst,
    cpu_evict,
    cpu_suppress,
    group_identity,
    interference,
    interference_view,
    memory_evict,
    memory_qos,
    resctrl,
    runtime_hooks,
    system_config,
    time_slice,
    victim_selection,
)
from koord.koordlet.strategies.strategy import StrategyInputs, StrategyPlan, WorkSteps


class StrategyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy. Any of `gates` enables it; one of another package may have none, and is always enabled.

    `files` are those that it writes; `restores` are the owners of its effects: what they wrote is restored when the
    strategy is disabled, and what a complete plan does not name any more is restored at once.

    A strategy with `depends_on` is also due when one of the values that it returns has changed; its period is then the
    time after which all its files are read again.

    A strategy with `decide_steps` makes the same plan in steps, so that others may run while it decides.
    """

    name: str
    gates: tuple[str, ...]
    observe: Callable[[StrategyInputs], Any]
    decide: Callable[[Any], StrategyPlan]
    period_s: float = 1.0
    files: tuple[str, ...] = ()
    restores: tuple[str, ...] = ()
    depends_on: Callable[[StrategyInputs], tuple[object, ...]] | None = None
    decide_steps: Callable[[Any], WorkSteps[StrategyPlan]] | None = None


STRATEGIES = (
    # First, so that strategies find the values from which they start.
    StrategyEntry(
        name=runtime_hooks.NAME,
        gates=runtime_hooks.GATES,
        observe=runtime_hooks.observe_runtime_hooks,
        decide=runtime_hooks.decide_runtime_hooks,
        period_s=runtime_hooks.PERIOD_S,
        files=runtime_hooks.FILES,
        restores=runtime_hooks.OWNERS,
        depends_on=runtime_hooks.depends_on,
        decide_steps=runtime_hooks.decide_runtime_hooks_in_steps,
    ),
    StrategyEntry(
        name=cpu_suppress.OWNER,
        gates=("BECPUSuppress",),
        observe=cpu_suppress.observe_cpu_suppress,
        decide=cpu_suppress.decide_cpu_suppress,
        files=(knob.CPUSET, knob.CPU_QUOTA),
        restores=(cpu_suppress.OWNER,),
    ),
    StrategyEntry(
        name=time_slice.OWNER,
        gates=("BECPUSuppress", "GroupIdentity"),  # so that slices are taken back when either is switched off
        observe=time_slice.observe_time_slice,
        decide=time_slice.decide_time_slice,
        depends_on=time_slice.depends_on,
        period_s=time_slice.PERIOD_S,
        restores=(time_slice.OWNER,),
    ),
    StrategyEntry(
        name=cpu_burst.OWNER,
        gates=("CPUBurst",),
        observe=cpu_burst.observe_cpu_burst,
        decide=cpu_burst.decide_cpu_burst,
        files=(knob.CPU_QUOTA, knob.CPU_BURST),
        restores=(cpu_burst.OWNER,),
    ),
    StrategyEntry(
        name=victim_selection.CPU_EVICT_STRATEGY,
        gates=(victim_selection.BE_CPU_EVICT, victim_selection.CPU_ALLOCATABLE_EVICT, victim_selection.CPU_EVICT),
        observe=cpu_evict.observe_cpu_evict,
        decide=cpu_evict.decide_cpu_evict,
    ),
    StrategyEntry(
        name=victim_selection.MEMORY_EVICT_STRATEGY,
        gates=(
            victim_selection.BE_MEMORY_EVICT,
            victim_selection.MEMORY_ALLOCATABLE_EVICT,
            victim_selection.MEMORY_EVICT,
        ),
        observe=memory_evict.observe_memory_evict,
        decide=memory_evict.decide_memory_evict,
    ),
    StrategyEntry(
        name=resctrl.OWNER,
        gates=("RdtResctrl",),
        observe=resctrl.observe_resctrl,
        decide=resctrl.decide_resctrl,
        restores=(resctrl.OWNER,),
    ),
    StrategyEntry(
        name=blkio.OWNER,
        gates=("BlkIOReconcile",),
        observe=blkio.observe_blkio,
        decide=blkio.decide_blkio,
        files=knob.PER_DISK_FILES,
        restores=(blkio.OWNER,),
    ),
    StrategyEntry(
        name=memory_qos.OWNER,
        gates=("CgroupReconcile",),
        observe=memory_qos.observe_memory_qos,
        decide=memory_qos.decide_memory_qos,
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
        restores=(memory_qos.OWNER,),
    ),
    StrategyEntry(
        name=system_config.OWNER,
        gates=("SystemConfig",),
        observe=system_config.observe_system_config,
        decide=system_config.decide_system_config,
        files=(
            knob.MIN_FREE_KBYTES,
            knob.WATERMARK_SCALE_FACTOR,
            knob.MEMCG_REAP_BACKGROUND,
            knob.IDLE_SAVER_WMARK,
            knob.PAGE_CACHE_LIMIT_ENABLED,
            knob.SCHED_FEATURES,
        ),
        restores=(system_config.OWNER,),
    ),
    StrategyEntry(
        name=group_identity.OWNER,
        gates=("GroupIdentity",),
        observe=group_identity.observe_group_identity,
        decide=group_identity.decide_group_identity,
        depends_on=group_identity.depends_on,
        period_s=10.0,  # a hook upstream, with the period of the hooks
        files=(knob.CPU_BVT, knob.CPU_IDLE),
        restores=(group_identity.OWNER, group_identity.SWITCH_OWNER),
    ),
    StrategyEntry(
        name=interference_view.OWNER,
        gates=("InterferenceDetection",),
        observe=interference_view.observe_interference,
        decide=interference.decide_interference,
        files=(knob.CPU_QUOTA,),
        restores=(interference_view.OWNER,),
    ),
)
