"""The CPUEvict strategy: evict when BE work starves, batch exceeds its allocatable, or the node runs too hot."""

from __future__ import annotations

import msgspec

from koord.api.config.slo import defaults
from koord.api.koordinator.resource_name import BATCH_CPU, CPU
from koord.api.koordinator.slo import ResourceThresholdStrategy
from koord.koordlet.series import metric_kind
from koord.koordlet.strategies.strategy import StrategyInputs, StrategyPlan
from koord.koordlet.strategies.victim_selection import (
    BE_CPU_EVICT,
    CPU_ALLOCATABLE_EVICT,
    CPU_EVICT,
    CPU_EVICT_STRATEGY,
    REQUESTED,
    USED,
    EvictionTask,
    EvictView,
    IdleRule,
    ReleaseTarget,
    allocatable_task,
    eviction_view_fields,
    rank_be_by_cpu,
    rank_by_priority,
    select_victims,
)

COOLDOWN_S = 20.0
HIGHEST_LOWER_PERCENT = 60
_TINY_MILLI = 1000  # a limit below one core is always used enough


class BeCpuUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """BeCpuUsage holds what BE pods use, request and could use, in milli-cores, and the number of samples."""

    used: int
    request: int
    limit: int
    count: int = 1


class CpuEvictView(EvictView, frozen=True, kw_only=True):
    strategy: ResourceThresholdStrategy = ResourceThresholdStrategy()
    capacity_milli: int | None = None
    be_average: BeCpuUsage | None = None
    be_last: BeCpuUsage | None = None
    node_used_milli: int | None = None  # average over the window
    node_last_milli: int | None = None  # the last sample
    interval_s: float = 1.0
    cooldown_s: float = COOLDOWN_S


def evict_window_s(strategy: ResourceThresholdStrategy, interval_s: float) -> float:
    return max(interval_s, strategy.cpu_evict_time_window_seconds or 0)


def decide_cpu_evict(view: CpuEvictView) -> StrategyPlan:
    idle = view.idle_reason(view.capacity_milli, "CPU")
    if idle or not view.capacity_milli:
        return StrategyPlan(why=idle)
    wanted: list[EvictionTask | IdleRule] = []
    if BE_CPU_EVICT in view.features:
        wanted.append(satisfaction_task(view))
    if CPU_ALLOCATABLE_EVICT in view.features:
        config = view.strategy
        wanted.append(
            allocatable_task(
                view,
                CPU_ALLOCATABLE_EVICT,
                CPU,
                config.cpu_allocatable_evict_threshold_percent,
                config.cpu_allocatable_evict_lower_percent,
                config.allocatable_evict_priority_threshold,
            )
        )
    if CPU_EVICT in view.features:
        wanted.append(usage_task(view, view.capacity_milli))
    return select_victims(view, wanted)


def satisfaction_task(view: CpuEvictView) -> EvictionTask | IdleRule:
    """Return the task when BE pods get too little of their requests and would use more: fewer of them make progress."""
    config, rule = view.strategy, BE_CPU_EVICT
    lower, upper = config.cpu_evict_be_satisfaction_lower_percent, config.cpu_evict_be_satisfaction_upper_percent
    if lower is None or upper is None:
        return IdleRule(rule, "both satisfaction percents are needed")
    if not (0 < lower <= HIGHEST_LOWER_PERCENT and 0 < upper < 100 and upper >= lower):
        return IdleRule(rule, f"satisfaction percents {lower} and {upper} can never work together")
    average, last = _effective(view, view.be_average), _effective(view, view.be_last)
    if average is None or last is None:
        return IdleRule(rule, "what BE pods use is not known")
    window = evict_window_s(config, view.interval_s)
    if average.count * view.interval_s < window // 3:
        return IdleRule(rule, f"{average.count} samples are too few for {window:.0f}s")
    least = config.cpu_evict_be_usage_threshold_percent
    least = defaults.FALLBACK_BE_USAGE_THRESHOLD_PERCENT if least is None else least
    if not (_presses(average, least) and _presses(last, least)):
        return IdleRule(rule, f"BE uses {last.used}m of {last.limit}m, on average {average.used}m of {average.limit}m")
    amount = be_release(average, lower, upper)
    if (last.request, last.limit) != (average.request, average.limit):
        amount = min(amount, be_release(last, lower, upper))
    if amount <= 0:
        return IdleRule(rule, f"BE may use {last.limit}m of {last.request}m asked for: enough")
    return EvictionTask(
        release=ReleaseTarget(
            rule=rule,
            amounts={REQUESTED + BATCH_CPU: amount},
            measured=f"BE may use {average.limit}m of {average.request}m asked for and uses {average.used}m",
            threshold=f"at most {lower}% satisfied, up to {upper}%",
        ),
        ranked=rank_be_by_cpu(view, rule),
    )


def be_release(be: BeCpuUsage, lower: int, upper: int) -> int:
    """Return how many milli-cores of requests must go for the rest to be satisfied to `upper` percent."""
    if be.request <= 0 or 100 * be.limit > lower * be.request:
        return 0
    return max(0, (upper * be.request - 100 * be.limit) // 100)


def _effective(view: CpuEvictView, be: BeCpuUsage | None) -> BeCpuUsage | None:
    """Return the usage with the limit that the policy uses."""
    if be is None or view.strategy.cpu_evict_policy != defaults.EVICT_BY_ALLOCATABLE:
        return be
    lent = view.allocatable.get(BATCH_CPU, -1)
    if any(pod.third_party for pod in view.pods):  # whose requests count, so what they hold of the node does as well
        lent = view.origin_allocatable.get(BATCH_CPU, lent)
    # Lending nothing is a limit, and the strictest one; not lending at all is none.
    return msgspec.structs.replace(be, limit=-1 if lent < 0 else max(lent, 1))


def _presses(be: BeCpuUsage, least_percent: int) -> bool:
    if be.limit <= 0:
        return False
    return be.limit < _TINY_MILLI or 100 * be.used >= least_percent * be.limit


def usage_task(view: CpuEvictView, capacity_milli: int) -> EvictionTask | IdleRule:
    """Return the task when the node's usage exceeds its threshold."""
    config, rule = view.strategy, CPU_EVICT
    percent, priority = config.cpu_evict_threshold_percent, config.evict_enabled_priority_threshold
    if percent is None or priority is None:
        return IdleRule(rule, "a threshold and a priority are needed")
    lower = config.cpu_evict_lower_percent
    lower = percent - defaults.FALLBACK_EVICT_BAND_PERCENT if lower is None else lower
    if percent < 0 or lower >= percent:
        return IdleRule(rule, f"threshold {percent} and lower percent {lower} can never work together")
    if view.node_used_milli is None:
        return IdleRule(rule, "the node's CPU use is not known")
    # An average still holds what earlier victims used; they must not be paid for twice.
    last = view.node_used_milli if view.node_last_milli is None else view.node_last_milli
    amount = usage_release(min(view.node_used_milli, last), capacity_milli, percent, lower)
    measured = f"node uses {last}m, on average {view.node_used_milli}m, of {capacity_milli}m"
    if not amount:
        return IdleRule(rule, f"{measured}, under {percent}%")
    return EvictionTask(
        release=ReleaseTarget(
            rule=rule, amounts={USED + CPU: amount}, measured=measured, threshold=f"{percent}%, down to {lower}%"
        ),
        ranked=rank_by_priority(view, rule, priority, lambda pod: view.used_milli.get(pod.uid)),
    )


def usage_release(used: int, capacity: int, percent: int, lower: int) -> int:
    """Return what lies above `lower` percent, once the whole percents reach `percent`."""
    now = used * 100 // capacity
    return 0 if now < percent else max(0, capacity * (now - max(lower, 0)) // 100)


_FEATURES = frozenset({BE_CPU_EVICT, CPU_ALLOCATABLE_EVICT, CPU_EVICT})
_BE_SERIES = (metric_kind.BE_USAGE, metric_kind.BE_REQUEST, metric_kind.BE_REAL_LIMIT)


def observe_cpu_evict(inputs: StrategyInputs) -> CpuEvictView:
    """Observe CPU pressure, what pods use, and which of them are leaving already."""
    interval_s = inputs.settings.collect_interval_s
    length_s = evict_window_s(inputs.threshold, interval_s)
    return CpuEvictView(
        **eviction_view_fields(inputs, CPU_EVICT_STRATEGY, _FEATURES),
        strategy=inputs.threshold,
        capacity_milli=inputs.capacity(CPU),
        be_average=_be(inputs, length_s),
        be_last=_be_last(inputs),
        node_used_milli=inputs.average_milli(length_s, metric_kind.NODE_CPU),
        node_last_milli=inputs.latest_milli(metric_kind.NODE_CPU),
        interval_s=interval_s,
        cooldown_s=inputs.settings.cpu_evict_cooldown_s,
    )


def _be(inputs: StrategyInputs, length_s: float) -> BeCpuUsage | None:
    windows = [inputs.store.window((metric_kind.NODE_BE, name), inputs.now_s, length_s) for name in _BE_SERIES]
    used, request, limit = (window.avg for window in windows)
    if used is None or request is None or limit is None:
        return None
    count = min(window.count for window in windows)
    return BeCpuUsage(used=int(used), request=int(request), limit=int(limit), count=count)


def _be_last(inputs: StrategyInputs) -> BeCpuUsage | None:
    used, request, limit = (inputs.store.latest((metric_kind.NODE_BE, name), inputs.now_s) for name in _BE_SERIES)
    if used is None or request is None or limit is None:
        return None
    return BeCpuUsage(used=int(used), request=int(request), limit=int(limit))
