"""The memoryEvict strategy: evict when memory is short, before the kernel's OOM killer acts."""

from __future__ import annotations

from koord.api.config.slo.defaults import FALLBACK_EVICT_BAND_PERCENT
from koord.api.koordinator.resource_name import MEMORY
from koord.api.koordinator.slo import ResourceThresholdStrategy
from koord.koordlet.series import metric_kind
from koord.koordlet.strategies.cpu_evict import usage_release
from koord.koordlet.strategies.strategy import StrategyInputs, StrategyPlan
from koord.koordlet.strategies.victim_selection import (
    BE_MEMORY_EVICT,
    MEMORY_ALLOCATABLE_EVICT,
    MEMORY_EVICT,
    MEMORY_EVICT_STRATEGY,
    USED,
    EvictionTask,
    EvictView,
    IdleRule,
    ReleaseTarget,
    allocatable_task,
    eviction_view_fields,
    rank_be_by_memory,
    rank_by_priority,
    select_victims,
)

COOLDOWN_S = 4.0


class MemoryEvictView(EvictView, frozen=True, kw_only=True):
    strategy: ResourceThresholdStrategy = ResourceThresholdStrategy()
    capacity_bytes: int | None = None
    node_used_bytes: int | None = None  # the last sample
    cooldown_s: float = COOLDOWN_S


def decide_memory_evict(view: MemoryEvictView) -> StrategyPlan:
    idle = view.idle_reason(view.capacity_bytes, "memory")
    if idle or not view.capacity_bytes:
        return StrategyPlan(why=idle)
    wanted: list[EvictionTask | IdleRule] = []
    config = view.strategy
    if BE_MEMORY_EVICT in view.features:
        found = _release(view, BE_MEMORY_EVICT, view.capacity_bytes)
        ranked = rank_be_by_memory(view, BE_MEMORY_EVICT)
        wanted.append(found if isinstance(found, IdleRule) else EvictionTask(release=found, ranked=ranked))
    if MEMORY_ALLOCATABLE_EVICT in view.features:
        wanted.append(
            allocatable_task(
                view,
                MEMORY_ALLOCATABLE_EVICT,
                MEMORY,
                config.memory_allocatable_evict_threshold_percent,
                config.memory_allocatable_evict_lower_percent,
                config.allocatable_evict_priority_threshold,
            )
        )
    if MEMORY_EVICT in view.features:
        wanted.append(_by_priority(view, view.capacity_bytes))
    return select_victims(view, wanted)


def _by_priority(view: MemoryEvictView, capacity: int) -> EvictionTask | IdleRule:
    priority = view.strategy.evict_enabled_priority_threshold
    if priority is None:
        return IdleRule(MEMORY_EVICT, "a priority is needed")
    found = _release(view, MEMORY_EVICT, capacity)
    if isinstance(found, IdleRule):
        return found
    return EvictionTask(
        release=found, ranked=rank_by_priority(view, MEMORY_EVICT, priority, lambda pod: view.used_bytes.get(pod.uid))
    )


def _release(view: MemoryEvictView, rule: str, capacity: int) -> ReleaseTarget | IdleRule:
    percent, lower = view.strategy.memory_evict_threshold_percent, view.strategy.memory_evict_lower_percent
    if percent is None:
        return IdleRule(rule, "a threshold is needed")
    lower = percent - FALLBACK_EVICT_BAND_PERCENT if lower is None else lower
    if percent < 0 or lower >= percent:
        return IdleRule(rule, f"threshold {percent} and lower percent {lower} can never work together")
    if view.node_used_bytes is None:
        return IdleRule(rule, "the node's memory use is not known")
    amount = usage_release(view.node_used_bytes, capacity, percent, lower)
    measured = f"node uses {view.node_used_bytes} of {capacity} bytes"
    if not amount:
        return IdleRule(rule, f"{measured}, under {percent}%")
    return ReleaseTarget(
        rule=rule, amounts={USED + MEMORY: amount}, measured=measured, threshold=f"{percent}%, down to {lower}%"
    )


_FEATURES = frozenset({BE_MEMORY_EVICT, MEMORY_ALLOCATABLE_EVICT, MEMORY_EVICT})


def observe_memory_evict(inputs: StrategyInputs) -> MemoryEvictView:
    """Observe memory pressure, what pods use, and which of them are leaving already."""
    used = inputs.store.latest((metric_kind.NODE_MEMORY,), inputs.now_s)
    return MemoryEvictView(
        **eviction_view_fields(inputs, MEMORY_EVICT_STRATEGY, _FEATURES),
        strategy=inputs.threshold,
        capacity_bytes=inputs.capacity(MEMORY),
        node_used_bytes=None if used is None else int(used),
        cooldown_s=inputs.settings.memory_evict_cooldown_s,
    )
