"""The CPUBurst strategy: how far latency-sensitive containers may exceed their CPU limits for a while.

There are two means: the kernel's burst buffer, and a quota that grows while a container is throttled and the shared
CPUs have room. Both are computed from the limit in the spec and from the burst that this strategy itself allowed, never
from the quota that a file happens to hold: a quota above the limit may as well be one from before a change of the limit
or of the CPU normalization ratio. How long a container may exceed its limit is limited with tokens that bursting spends
and idling earns.
Policies other than those known restore everything.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from koord.api.annotations import qos_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.config.slo.defaults import BURST_AUTO, BURST_CPU_ONLY, BURST_QUOTA_ONLY, overlay
from koord.api.koordinator.protocol import BE, LSE, LSR
from koord.api.koordinator.resource_name import CPU
from koord.api.koordinator.slo import CPUBurst, CPUBurstStrategy
from koord.host.cgroup.codec import CFS_PERIOD_US, UNLIMITED, cfs_quota_of_milli, normalized_quota_us
from koord.host.cgroup.knob import CPU_BURST, CPU_QUOTA
from koord.koordlet.cgroup_writer.effects import WriteCgroup
from koord.koordlet.inputs.pod_meta import ContainerMeta, PodMeta
from koord.koordlet.series import metric_kind
from koord.koordlet.strategies import file_ownership
from koord.koordlet.strategies.strategy import Effect, StrategyInputs, StrategyPlan

SharePoolState = Literal["idle", "cooling", "overload", "unknown"]
COOLING_SHARE = 0.9  # of the threshold; in between, nothing grows


class SharePoolView(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of the CPUs that no pod has exclusively: averages over the last few ticks."""

    processors: int
    threshold_percent: int
    node_used_milli: int | None
    pods: tuple[PodMeta, ...] = ()
    pod_used_milli: Mapping[str, int] = {}  # by uid


class SharePool(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    state: SharePoolState
    why: str


def classify_share_pool(view: SharePoolView) -> SharePool:
    if view.node_used_milli is None or view.processors <= 0:
        return SharePool(state="unknown", why="the node's CPU use is not known")
    own = sum(pod.requests.get(CPU, 0) for pod in view.pods if pod.qos in (LSE, LSR) and pod.is_alive)
    elsewhere = sum(view.pod_used_milli.get(pod.uid, 0) for pod in view.pods if pod.qos in (LSE, LSR, BE))
    total, used = view.processors * 1000 - own, view.node_used_milli - elsewhere
    ratio = used / total if total > 0 else 1.0
    threshold = view.threshold_percent / 100
    state: SharePoolState = (
        "overload" if ratio >= threshold else "cooling" if ratio >= COOLING_SHARE * threshold else "idle"
    )
    why = f"shared CPUs are {state}: {used}m of {total}m used, threshold {view.threshold_percent}%"
    return SharePool(state=state, why=why)


EARNING_BELOW_PERCENT = 60
_FULL_PERCENT = 100


class BurstTokens(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The tokens of one container. One token is one percent of the limit for one second."""

    capacity: int
    left: float
    at_s: float


class BurstAllowance(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    allowed: bool
    tokens: BurstTokens | None  # None where no account is kept
    why: str


def check_burst_allowance(
    config: CPUBurst, container: str, before: BurstTokens | None, now_s: float, usage_percent: int
) -> BurstAllowance:
    """Return whether the container may burst now, and update its tokens."""
    period, percent = config.cfs_quota_burst_period_seconds, config.cfs_quota_burst_percent
    if period is None or period < 0:
        return BurstAllowance(allowed=True, tokens=None, why="bursts may last for ever")
    if percent is None or percent < _FULL_PERCENT:
        return BurstAllowance(allowed=False, tokens=None, why=f"cfsQuotaBurstPercent {percent} allows no burst")
    capacity = period * (percent - _FULL_PERCENT)
    if before is None or before.capacity != capacity:
        tokens = BurstTokens(capacity=capacity, left=initial_token_share(container) * capacity, at_s=now_s)
    else:
        tokens = spend_tokens(before, now_s, usage_percent)
    return BurstAllowance(
        allowed=tokens.left > 0, tokens=tokens, why=f"{tokens.left:.0f} of {capacity} burst tokens left"
    )


def spend_tokens(before: BurstTokens, now_s: float, usage_percent: int) -> BurstTokens:
    """Return the tokens after the time that passed at this usage."""
    # Fractions of a second count: ticks that come a little early would otherwise never cost or earn anything.
    passed_s = max(0.0, now_s - before.at_s)
    change = 0.0
    if usage_percent >= _FULL_PERCENT:
        change = -(usage_percent - _FULL_PERCENT) * passed_s
    elif usage_percent < EARNING_BELOW_PERCENT:
        change = (_FULL_PERCENT - usage_percent) * passed_s
    left = min(max(before.left + change, -before.capacity), before.capacity)
    return BurstTokens(capacity=before.capacity, left=left, at_s=now_s)


def initial_token_share(container: str) -> float:
    """Return a share from 0 to 0.5 of the capacity, so that containers of one deployment do not end
    their bursts together.

    It is derived from the container's id and not random: a decision made again is the same decision.
    """
    return zlib.crc32(container.encode()) / 2**32 / 2


OWNER = file_ownership.CPU_BURST
BURST_CAUSE = "CPUBurst"
QUOTA_CAUSE = "CFSQuotaBurst"
NO_BURST = "0"  # the kubelet and runtimes give none
SCALE_UP, SCALE_DOWN = 1.2, 0.8


class BurstState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """BurstState is kept of a container from tick to tick: the quota that was decided, and the quota of the limit from
    which the burst started.
    """

    base_us: int
    quota_us: int
    tokens: BurstTokens | None = None  # None where no account is kept


class CpuBurstView(msgspec.Struct, frozen=True, kw_only=True):
    """Quotas are by cgroup in microseconds; a missing group could not be read, and is left alone."""

    strategy: CPUBurstStrategy | None  # None until a NodeSLO was seen
    pool: SharePool
    now_s: float
    pods: tuple[PodMeta, ...] = ()
    quota_us: Mapping[str, int] = {}
    throttled: Mapping[str, float] = {}  # last share of throttled periods, by container id
    used_milli: Mapping[str, int] = {}  # by container id
    bursts: Mapping[str, BurstState] = {}  # as the last decision left them, by container id
    # The kernel's own rule; some vendors' kernels take any burst.
    burst_within_quota: bool = True
    normalization_ratio: float = 1.0  # limits count that much less where CPUs are faster than the model
    without_quota: frozenset[str] = frozenset()  # uids of pods whose quota belongs to the hook that pins them


class _ContainerBurst(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    container: ContainerMeta
    base_us: int | None  # None without a limit
    now_us: int | None
    quota_us: int | None  # None to leave it
    burst_us: int
    why: str


def decide_cpu_burst(view: CpuBurstView) -> StrategyPlan:
    """Decide quota and burst of every latency-sensitive container and its pod; the plan's state is their bursts."""
    if view.strategy is None:
        return StrategyPlan(why="no NodeSLO was seen yet", state=view.bursts)
    effects: list[Effect] = []
    bursts: dict[str, BurstState] = {}
    full_speed = msgspec.structs.replace(view, normalization_ratio=1.0)
    for pod in view.pods:
        if pod.qos in (LSR, LSE, BE) or not pod.is_alive:
            continue
        if pod.uid in view.without_quota:
            effects += _without_burst(pod)
            continue
        config = _config(view.strategy, pod)
        seen = view if file_ownership.is_normalized(pod) else full_speed
        steps = [_container_burst(seen, config, one, bursts) for one in pod.containers if one.id and one.group]
        effects += _writes(seen, pod, steps)
    return StrategyPlan(effects=tuple(effects), why=view.pool.why, state=bursts)


def _config(strategy: CPUBurstStrategy, pod: PodMeta) -> CPUBurst:
    own = qos_codecs.parse_cpu_burst(pod.annotations)
    return strategy if own is None or isinstance(own, MalformedAnnotation) else overlay(strategy, _shaped(own))


def _shaped(own: CPUBurst) -> CPUBurstStrategy:
    return CPUBurstStrategy(**{name: getattr(own, name) for name in own.__struct_fields__})


def base_quota_us(limit_milli: int | None, ratio: float) -> int | None:
    """Return the quota of a limit, lowered by the CPU normalization ratio; None without a limit."""
    if limit_milli is None or limit_milli <= 0:
        return None
    return normalized_quota_us(cfs_quota_of_milli(limit_milli), ratio)


def burst_us(config: CPUBurst, limit_milli: int | None) -> int:
    """Return the burst buffer that the policy gives to a limit."""
    if config.policy not in (BURST_AUTO, BURST_CPU_ONLY) or not limit_milli or limit_milli < 0:
        return 0
    return limit_milli * (config.cpu_burst_percent or 0) * CFS_PERIOD_US // 100_000


def _container_burst(
    view: CpuBurstView, config: CPUBurst, one: ContainerMeta, bursts: dict[str, BurstState]
) -> _ContainerBurst:
    limit = one.limits.get(CPU)
    base, now = base_quota_us(limit, view.normalization_ratio), view.quota_us.get(one.group)
    quota, why = None, "it has no limit"
    if base is not None and limit is not None and one.running:
        used, before = view.used_milli.get(one.id), view.bursts.get(one.id)
        allowance = check_burst_allowance(
            config,
            one.id,
            None if before is None else before.tokens,
            view.now_s,
            100 if used is None else used * 100 // limit,
        )
        wish, why = _operation(view, config, one, allowance.allowed, allowance.why)
        held = held_quota_us(before, base, now)
        # A quota of -1 was set on purpose by the component that pins this container to CPUs.
        if now is not None and now > 0:
            held = quota = _target(config, base, held, wish)
            why = f"{why}; limit {base}us, now {now}us"
        bursts[one.id] = BurstState(base_us=base, quota_us=held, tokens=allowance.tokens)
    burst = burst_us(config, limit)
    bound = quota if quota is not None else now
    if view.burst_within_quota and bound is not None and bound > 0:
        burst = min(burst, bound)
    return _ContainerBurst(container=one, base_us=base, now_us=now, quota_us=quota, burst_us=burst, why=why)


def _operation(
    view: CpuBurstView, config: CPUBurst, one: ContainerMeta, allowed: bool, limiter: str
) -> tuple[str, str]:
    if config.policy not in (BURST_AUTO, BURST_QUOTA_ONLY):
        return "reset", f"policy {config.policy or 'none'}"
    throttled = view.throttled.get(one.id)
    if not allowed:
        wish, why = "down", limiter
    elif throttled is None:
        wish, why = "remain", "throttling is not known"
    else:
        wish, why = ("up" if throttled > 0 else "remain"), f"throttled {throttled:.2f}"
    state = view.pool.state
    if state == "overload" and wish in ("up", "remain"):
        wish = "down"
    elif state in ("cooling", "unknown") and wish == "up":
        wish = "remain"
    return wish, f"{why}, {view.pool.why}: {wish}"


def held_quota_us(before: BurstState | None, base: int, now: int | None) -> int:
    """Return the quota from which the next step starts: that of the limit, and what is in force of the own burst.

    A burst belongs to the limit from which it started: with another limit or ratio, and in a new process, the container
    starts from its limit again. The present quota can only end a burst, one that the kernel refused or that somebody
    took away; it never makes one.
    """
    if before is None or before.base_us != base:
        return base
    return before.quota_us if now is None else min(before.quota_us, max(now, base))


def _target(config: CPUBurst, base: int, held: int, wish: str) -> int:
    percent = config.cfs_quota_burst_percent
    ceiling = base * percent // 100 if percent is not None and percent > 100 else base
    wanted = {"up": int(held * SCALE_UP), "down": int(held * SCALE_DOWN), "reset": base, "remain": held}[wish]
    return min(max(wanted, base), ceiling)


def _writes(view: CpuBurstView, pod: PodMeta, steps: list[_ContainerBurst]) -> Iterator[Effect]:
    """Return the writes in a safe order. A pod must hold at least what its containers have, a quota at least its burst:
    so bursts that may shrink and quotas that grow come first from the top, the others after.
    """
    if not steps:
        return
    quota_now, quota = view.quota_us.get(pod.group), _pod_quota(view, pod, steps)
    burst = sum(step.burst_us for step in steps)
    if view.burst_within_quota and (held := quota or quota_now) is not None and held > 0:
        burst = min(burst, held)
    shrinking = [s for s in steps if s.quota_us is not None and s.now_us is not None and s.quota_us < s.now_us]
    growing = [s for s in steps if s.quota_us is not None and s.now_us is not None and s.quota_us > s.now_us]
    pod_shrinks = quota is not None and quota_now is not None and quota < quota_now
    pod_grows = quota is not None and quota_now is not None and quota > quota_now
    scaled = view.normalization_ratio > 1
    why = "; ".join(f"{step.container.name}: {step.why}" for step in steps)
    yield from [_burst(step.container.group, step.burst_us, step.why) for step in steps if step not in growing]
    yield from [_burst(pod.group, burst, why)] if not pod_grows else []
    yield from [_quota(step.container.group, step.quota_us, step.why, step.container.limits) for step in shrinking]
    yield from [_quota(pod.group, quota, why, pod.limits)] if pod_grows or pod_shrinks or (quota and scaled) else []
    yield from [_quota(step.container.group, step.quota_us, step.why, step.container.limits) for step in growing]
    # A container that started with the scaled quota never had its limit's: the journal learns of that one.
    yield from [
        _quota(step.container.group, step.quota_us, step.why, step.container.limits)
        for step in steps
        if scaled and step.quota_us is not None and step.quota_us == step.now_us
    ]
    yield from [_burst(step.container.group, step.burst_us, step.why) for step in growing]
    yield from [_burst(pod.group, burst, why)] if pod_grows else []


def _pod_quota(view: CpuBurstView, pod: PodMeta, steps: list[_ContainerBurst]) -> int | None:
    """Return the pod's own quota plus what its containers got on top; None leaves a pod without a bound alone."""
    base = base_quota_us(pod.limits.get(CPU), view.normalization_ratio)
    now = view.quota_us.get(pod.group)
    if base is None or now is None or now <= 0:
        return None
    held = [(s.quota_us if s.quota_us is not None else s.now_us, s.base_us) for s in steps]
    return base + sum(quota - own for quota, own in held if quota is not None and quota > 0 and own is not None)


def _burst(group: str, value_us: int, why: str) -> WriteCgroup:
    return WriteCgroup(
        group=group, file=CPU_BURST, value=str(value_us), owner=OWNER, cause=BURST_CAUSE, why=why, original=NO_BURST
    )


def _quota(group: str, value_us: int | None, why: str, limits: Mapping[str, int]) -> WriteCgroup:
    original = base_quota_us(limits.get(CPU), 1.0)
    return WriteCgroup(
        group=group,
        file=CPU_QUOTA,
        value=str(value_us),
        owner=OWNER,
        cause=QUOTA_CAUSE,
        why=why,
        original=None if original is None else str(original),
        takes_over=_EARLIER_OWNERS,
    )


def _without_burst(pod: PodMeta) -> list[Effect]:
    """Return no burst for a pod with CPUs of its own: above a quota that comes back, the kernel would refuse it."""
    groups = [one.group for one in pod.containers if one.id and one.group]
    return [_burst(group, 0, "it has CPUs of its own") for group in (*groups, pod.group)] if groups else []


_EARLIER_OWNERS = file_ownership.earlier_owners(CPU_QUOTA, OWNER)
_LONGEST_S = 10.0
_INTERVALS = 5


def observe_cpu_burst(inputs: StrategyInputs) -> CpuBurstView:
    """Observe quotas, throttling and usage of latency-sensitive containers, and how busy the shared CPUs are."""
    slo, node = inputs.slo, inputs.node
    strategy = None if slo is None else slo.cpu_burst_strategy
    quota_us: dict[str, int] = {}
    throttled: dict[str, float] = {}
    used_milli: dict[str, int] = {}
    for pod in inputs.pods if strategy is not None else ():
        if pod.qos in (LSR, LSE, BE) or not pod.is_alive:
            continue
        groups = [one.group for one in pod.containers if one.id and one.group]
        for group in (pod.group, *groups) if groups and pod.group else ():
            quota = inputs.number(group, CPU_QUOTA)
            if quota is not None:
                quota_us[group] = quota if quota > 0 else UNLIMITED
        for one in pod.containers:
            if not one.id:
                continue
            share = inputs.store.latest((metric_kind.CONTAINER_THROTTLED, one.id), inputs.now_s)
            if share is not None:
                throttled[one.id] = share
            used = inputs.latest_milli(metric_kind.CONTAINER_CPU, one.id)
            if used is not None:
                used_milli[one.id] = used
    return CpuBurstView(
        strategy=strategy,
        pool=observe_share_pool(inputs),
        now_s=inputs.now_s,
        pods=inputs.pods,
        quota_us=quota_us,
        throttled=throttled,
        used_milli=used_milli,
        bursts=inputs.states.get(OWNER, {}),
        burst_within_quota=inputs.machine.shape.burst_within_quota,
        # This strategy alone writes quotas of latency-sensitive pods, so it is also the one that scales them down.
        normalization_ratio=node.normalization_ratio
        if node is not None and file_ownership.CPU_NORMALIZATION in inputs.gates
        else 1.0,
        without_quota=frozenset(
            pod.uid
            for pod in inputs.pods
            if file_ownership.quota_owner(pod, inputs.gates, unset_cpu_quota=inputs.settings.hooks.unset_cpu_quota)
            != OWNER
        ),
    )


def observe_share_pool(inputs: StrategyInputs) -> SharePool:
    slo = inputs.slo
    strategy = None if slo is None else slo.cpu_burst_strategy
    if strategy is None:
        return SharePool(state="unknown", why="no NodeSLO was seen yet")
    window_s = max(min(_INTERVALS * inputs.settings.collect_interval_s, _LONGEST_S), inputs.settings.collect_interval_s)
    used: dict[str, int] = {}
    for pod in inputs.pods:
        if pod.qos in (LSE, LSR, BE):
            milli = inputs.average_milli(window_s, metric_kind.POD_CPU, pod.uid)
            if milli is not None:
                used[pod.uid] = milli
    return classify_share_pool(
        SharePoolView(
            processors=len(inputs.machine.shape.processors),
            threshold_percent=strategy.share_pool_threshold_percent or 0,
            node_used_milli=inputs.average_milli(window_s, metric_kind.NODE_CPU),
            pods=inputs.pods,
            pod_used_milli=used,
        )
    )
