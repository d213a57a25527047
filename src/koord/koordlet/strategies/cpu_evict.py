"""The CPUEvict strategy: evict when BE work starves, batch exceeds its allocatable, or the node runs too hot."""

from __future__ import annotations

import msgspec

from koord.api.config.slo.defaults import (
    EVICT_BY_ALLOCATABLE,
    FALLBACK_BE_USAGE_THRESHOLD_PERCENT,
    FALLBACK_EVICT_BAND_PERCENT,
)
from koord.api.resource_name import BATCH_CPU, CPU
from koord.api.slo_strategy import ResourceThresholdStrategy
from koord.koordlet.plan import Plan
from koord.koordlet.strategies.allocatable_evict import allocatable_task
from koord.koordlet.strategies.eviction import REQUESTED, USED, EvictView, Idle, Release, Task, choose
from koord.koordlet.strategies.feature import BE_CPU_EVICT, CPU_ALLOCATABLE_EVICT, CPU_EVICT
from koord.koordlet.strategies.ranking import best_effort_by_cpu, by_priority

COOL_S = 20.0
HIGHEST_LOWER_PERCENT = 60
_TINY_MILLI = 1000  # a limit below one core is always used enough


class BeCpu(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What BE pods use, request and could use, in milli-cores, and the number of samples."""

    used: int
    request: int
    limit: int
    count: int = 1


class CpuEvictView(EvictView, frozen=True, kw_only=True):
    """What the strategy observes."""
    strategy: ResourceThresholdStrategy = ResourceThresholdStrategy()
    capacity_milli: int | None = None
    be_average: BeCpu | None = None
    be_last: BeCpu | None = None
    node_used_milli: int | None = None  # average over the window
    node_last_milli: int | None = None  # the last sample
    interval_s: float = 1.0
    cool_s: float = COOL_S


def window_s(strategy: ResourceThresholdStrategy, interval_s: float) -> float:
    """Return the length of the window of averages."""
    return max(interval_s, strategy.cpu_evict_time_window_seconds or 0)


def decide_cpu_evict(seen: CpuEvictView) -> Plan:
    """Decide which pods to evict for CPU."""
    if not seen.enabled:
        return Plan(why="no NodeSLO was seen yet" if seen.enabled is None else "eviction is off")
    if not seen.capacity_milli:
        return Plan(why="the node's CPU capacity is not known")
    if seen.since_last_s < seen.cool_s:
        return Plan(why=f"last eviction {seen.since_last_s:.0f}s ago, less than {seen.cool_s:.0f}s")
    wanted: list[Task | Idle] = []
    if BE_CPU_EVICT in seen.features:
        wanted.append(satisfaction_task(seen))
    if CPU_ALLOCATABLE_EVICT in seen.features:
        config = seen.strategy
        wanted.append(
            allocatable_task(
                seen,
                CPU_ALLOCATABLE_EVICT,
                CPU,
                config.cpu_allocatable_evict_threshold_percent,
                config.cpu_allocatable_evict_lower_percent,
                config.allocatable_evict_priority_threshold,
            )
        )
    if CPU_EVICT in seen.features:
        wanted.append(usage_task(seen, seen.capacity_milli))
    return choose(seen, wanted)


def satisfaction_task(seen: CpuEvictView) -> Task | Idle:
    """Return the task when BE pods get too little of their requests and would use more: fewer of them make progress."""
    config, rule = seen.strategy, BE_CPU_EVICT
    lower, upper = config.cpu_evict_be_satisfaction_lower_percent, config.cpu_evict_be_satisfaction_upper_percent
    if lower is None or upper is None:
        return Idle(rule, "both satisfaction percents are needed")
    if not (0 < lower <= HIGHEST_LOWER_PERCENT and 0 < upper < 100 and upper >= lower):
        return Idle(rule, f"satisfaction percents {lower} and {upper} can never work together")
    average, last = _effective(seen, seen.be_average), _effective(seen, seen.be_last)
    if average is None or last is None:
        return Idle(rule, "what BE pods use is not known")
    window = window_s(config, seen.interval_s)
    if average.count * seen.interval_s < window // 3:
        return Idle(rule, f"{average.count} samples are too few for {window:.0f}s")
    least = config.cpu_evict_be_usage_threshold_percent
    least = FALLBACK_BE_USAGE_THRESHOLD_PERCENT if least is None else least
    if not (_presses(average, least) and _presses(last, least)):
        return Idle(rule, f"BE uses {last.used}m of {last.limit}m, on average {average.used}m of {average.limit}m")
    amount = be_release(average, lower, upper)
    if (last.request, last.limit) != (average.request, average.limit):
        amount = min(amount, be_release(last, lower, upper))
    if amount <= 0:
        return Idle(rule, f"BE may use {last.limit}m of {last.request}m asked for: enough")
    return Task(
        release=Release(
            rule=rule,
            amounts={REQUESTED + BATCH_CPU: amount},
            measured=f"BE may use {average.limit}m of {average.request}m asked for and uses {average.used}m",
            threshold=f"at most {lower}% satisfied, up to {upper}%",
        ),
        ranked=best_effort_by_cpu(seen, rule),
    )


def be_release(be: BeCpu, lower: int, upper: int) -> int:
    """Return how many milli-cores of requests must go for the rest to be satisfied to `upper` percent."""
    if be.request <= 0 or 100 * be.limit > lower * be.request:
        return 0
    return max(0, (upper * be.request - 100 * be.limit) // 100)


def _effective(seen: CpuEvictView, be: BeCpu | None) -> BeCpu | None:
    """Return the usage with the limit that the policy uses."""
    if be is None or seen.strategy.cpu_evict_policy != EVICT_BY_ALLOCATABLE:
        return be
    lent = seen.allocatable.get(BATCH_CPU, -1)
    # Lending nothing is a limit, and the strictest one; not lending at all is none.
    return msgspec.structs.replace(be, limit=-1 if lent < 0 else max(lent, 1))


def _presses(be: BeCpu, least_percent: int) -> bool:
    if be.limit <= 0:
        return False
    return be.limit < _TINY_MILLI or 100 * be.used >= least_percent * be.limit


def usage_task(seen: CpuEvictView, capacity_milli: int) -> Task | Idle:
    """Return the task when the node's usage exceeds its threshold."""
    config, rule = seen.strategy, CPU_EVICT
    percent, priority = config.cpu_evict_threshold_percent, config.evict_enabled_priority_threshold
    if percent is None or priority is None:
        return Idle(rule, "a threshold and a priority are needed")
    lower = config.cpu_evict_lower_percent
    lower = percent - FALLBACK_EVICT_BAND_PERCENT if lower is None else lower
    if percent < 0 or lower >= percent:
        return Idle(rule, f"threshold {percent} and lower percent {lower} can never work together")
    if seen.node_used_milli is None:
        return Idle(rule, "the node's CPU use is not known")
    # An average still holds what earlier victims used; they must not be paid for twice.
    last = seen.node_used_milli if seen.node_last_milli is None else seen.node_last_milli
    amount = usage_release(min(seen.node_used_milli, last), capacity_milli, percent, lower)
    measured = f"node uses {last}m, on average {seen.node_used_milli}m, of {capacity_milli}m"
    if not amount:
        return Idle(rule, f"{measured}, under {percent}%")
    return Task(
        release=Release(
            rule=rule, amounts={USED + CPU: amount}, measured=measured, threshold=f"{percent}%, down to {lower}%"
        ),
        ranked=by_priority(seen, rule, priority, lambda pod: seen.used_milli.get(pod.uid)),
    )


def usage_release(used: int, capacity: int, percent: int, lower: int) -> int:
    """Return what lies above `lower` percent, once the whole percents reach `percent`."""
    now = used * 100 // capacity
    return 0 if now < percent else max(0, capacity * (now - max(lower, 0)) // 100)
