"""The memoryEvict strategy: evict when memory is short, before the kernel's OOM killer acts."""

from __future__ import annotations

from koord.api.config.slo.defaults import FALLBACK_EVICT_BAND_PERCENT
from koord.api.resource_name import MEMORY
from koord.api.slo_strategy import ResourceThresholdStrategy
from koord.koordlet.plan import Plan
from koord.koordlet.strategies.allocatable_evict import allocatable_task
from koord.koordlet.strategies.cpu_evict import usage_release
from koord.koordlet.strategies.eviction import USED, EvictView, Idle, Release, Task, choose
from koord.koordlet.strategies.feature import BE_MEMORY_EVICT, MEMORY_ALLOCATABLE_EVICT, MEMORY_EVICT
from koord.koordlet.strategies.ranking import best_effort_by_memory, by_priority

COOL_S = 4.0


class MemoryEvictView(EvictView, frozen=True, kw_only=True):
    """What the strategy observes."""
    strategy: ResourceThresholdStrategy = ResourceThresholdStrategy()
    capacity_bytes: int | None = None
    node_used_bytes: int | None = None  # the last sample
    cool_s: float = COOL_S


def decide_memory_evict(seen: MemoryEvictView) -> Plan:
    """Decide which pods to evict for memory."""
    if not seen.enabled:
        return Plan(why="no NodeSLO was seen yet" if seen.enabled is None else "eviction is off")
    if not seen.capacity_bytes:
        return Plan(why="the node's memory capacity is not known")
    if seen.since_last_s < seen.cool_s:
        return Plan(why=f"last eviction {seen.since_last_s:.0f}s ago, less than {seen.cool_s:.0f}s")
    wanted: list[Task | Idle] = []
    config = seen.strategy
    if BE_MEMORY_EVICT in seen.features:
        found = _release(seen, BE_MEMORY_EVICT, seen.capacity_bytes)
        ranked = best_effort_by_memory(seen, BE_MEMORY_EVICT)
        wanted.append(found if isinstance(found, Idle) else Task(release=found, ranked=ranked))
    if MEMORY_ALLOCATABLE_EVICT in seen.features:
        wanted.append(
            allocatable_task(
                seen,
                MEMORY_ALLOCATABLE_EVICT,
                MEMORY,
                config.memory_allocatable_evict_threshold_percent,
                config.memory_allocatable_evict_lower_percent,
                config.allocatable_evict_priority_threshold,
            )
        )
    if MEMORY_EVICT in seen.features:
        wanted.append(_by_priority(seen, seen.capacity_bytes))
    return choose(seen, wanted)


def _by_priority(seen: MemoryEvictView, capacity: int) -> Task | Idle:
    priority = seen.strategy.evict_enabled_priority_threshold
    if priority is None:
        return Idle(MEMORY_EVICT, "a priority is needed")
    found = _release(seen, MEMORY_EVICT, capacity)
    if isinstance(found, Idle):
        return found
    return Task(
        release=found, ranked=by_priority(seen, MEMORY_EVICT, priority, lambda pod: seen.used_bytes.get(pod.uid))
    )


def _release(seen: MemoryEvictView, rule: str, capacity: int) -> Release | Idle:
    percent, lower = seen.strategy.memory_evict_threshold_percent, seen.strategy.memory_evict_lower_percent
    if percent is None:
        return Idle(rule, "a threshold is needed")
    lower = percent - FALLBACK_EVICT_BAND_PERCENT if lower is None else lower
    if percent < 0 or lower >= percent:
        return Idle(rule, f"threshold {percent} and lower percent {lower} can never work together")
    if seen.node_used_bytes is None:
        return Idle(rule, "the node's memory use is not known")
    amount = usage_release(seen.node_used_bytes, capacity, percent, lower)
    measured = f"node uses {seen.node_used_bytes} of {capacity} bytes"
    if not amount:
        return Idle(rule, f"{measured}, under {percent}%")
    return Release(
        rule=rule, amounts={USED + MEMORY: amount}, measured=measured, threshold=f"{percent}%, down to {lower}%"
    )
