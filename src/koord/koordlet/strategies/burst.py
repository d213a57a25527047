"""CPU burst: how far latency-sensitive containers may run past their limits for a while.

Two means: the kernel's own burst buffer, and a quota that grows while a container is throttled and the node has room.
Both are computed from the limit in the spec; the present quota only says where the next step starts. Other policies
than the ones below put everything back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from koord.api.annotations import cpu_burst
from koord.api.annotations.codec import Malformed
from koord.api.config.slo.defaults import BURST_AUTO, BURST_CPU_ONLY, BURST_QUOTA_ONLY
from koord.api.config.slo.overlay import overlay
from koord.api.qos_class import BE, LSE, LSR
from koord.api.resource_name import CPU
from koord.api.slo_strategy import CPUBurst, CPUBurstStrategy
from koord.koordlet.plan import Effect, Plan, WriteCgroup
from koord.koordlet.pod import ContainerView, PodView
from koord.koordlet.strategies.burst_limiter import Tokens, allow
from koord.koordlet.strategies.file import CPU_BURST, CPU_QUOTA
from koord.koordlet.strategies.share_pool import SharePool

OWNER = "CPUBurst"
BURST_CAUSE = "CPUBurst"
QUOTA_CAUSE = "CFSQuotaBurst"
PERIOD_US = 100_000
LEAST_QUOTA_US = 1_000
UP, DOWN = 1.2, 0.8


class BurstView(msgspec.Struct, frozen=True, kw_only=True):
    """What the strategy observes. Quotas are by cgroup in microseconds; a missing group could not be
    read, and is left alone.
    """

    strategy: CPUBurstStrategy | None  # None until a NodeSLO was seen
    pool: SharePool
    now_s: float
    pods: tuple[PodView, ...] = ()
    quota_us: Mapping[str, int] = {}
    throttled: Mapping[str, float] = {}  # last share of throttled periods, by container id
    used_milli: Mapping[str, int] = {}  # by container id
    tokens: Mapping[str, Tokens] = {}  # as the last decision left them, by container id
    # The kernel's own rule; some vendors' kernels take any burst.
    burst_within_quota: bool = True
    normalization_ratio: float = 1.0  # limits count that much less where CPUs are faster than the model


class BurstPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan, and the burst tokens for the next decision."""
    plan: Plan
    tokens: Mapping[str, Tokens] = {}


class _Step(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one container gets."""

    container: ContainerView
    base_us: int | None  # None without a limit
    now_us: int | None
    quota_us: int | None  # None to leave it
    burst_us: int
    why: str


def decide_burst(seen: BurstView) -> BurstPlan:
    """Decide quota and burst of every latency-sensitive container and its pod."""
    if seen.strategy is None:
        return BurstPlan(plan=Plan(why="no NodeSLO was seen yet"), tokens=seen.tokens)
    effects: list[Effect] = []
    tokens: dict[str, Tokens] = {}
    for pod in seen.pods:
        if pod.qos in (LSR, LSE, BE) or not pod.is_alive:
            continue
        config = _config(seen.strategy, pod)
        steps = [_step(seen, config, one, tokens) for one in pod.containers if one.id and one.group]
        effects += _writes(seen, pod, steps)
    return BurstPlan(plan=Plan(effects=tuple(effects), why=seen.pool.why), tokens=tokens)


def _config(strategy: CPUBurstStrategy, pod: PodView) -> CPUBurst:
    own = cpu_burst.parse(pod.annotations)
    return strategy if own is None or isinstance(own, Malformed) else overlay(strategy, _shaped(own))


def _shaped(own: CPUBurst) -> CPUBurstStrategy:
    return CPUBurstStrategy(**{name: getattr(own, name) for name in own.__struct_fields__})


def base_quota_us(limit_milli: int | None, ratio: float) -> int | None:
    """Return the quota of a limit, lowered by the CPU normalization ratio; None without a limit."""
    if limit_milli is None or limit_milli <= 0:
        return None
    quota = max(limit_milli * PERIOD_US // 1000, LEAST_QUOTA_US)
    return math.ceil(quota / ratio) if ratio > 1 else quota


def burst_us(config: CPUBurst, limit_milli: int | None) -> int:
    """Return the burst buffer that the policy gives to a limit."""
    if config.policy not in (BURST_AUTO, BURST_CPU_ONLY) or not limit_milli or limit_milli < 0:
        return 0
    return limit_milli * (config.cpu_burst_percent or 0) * PERIOD_US // 100_000


def _step(seen: BurstView, config: CPUBurst, one: ContainerView, tokens: dict[str, Tokens]) -> _Step:
    limit = one.limits.get(CPU)
    base, now = base_quota_us(limit, seen.normalization_ratio), seen.quota_us.get(one.group)
    quota, why = None, "it has no limit"
    if base is not None and limit is not None and one.running:
        used = seen.used_milli.get(one.id)
        allowance = allow(
            config, one.id, seen.tokens.get(one.id), seen.now_s, 100 if used is None else used * 100 // limit
        )
        if allowance.tokens is not None:
            tokens[one.id] = allowance.tokens
        wish, why = _operation(seen, config, one, allowance.allowed, allowance.why)
        # A quota of -1 was set on purpose by the component that pins this container to CPUs.
        if now is not None and now > 0:
            quota, why = _target(config, base, now, wish), f"{why}; limit {base}us, now {now}us"
    burst = burst_us(config, limit)
    held = quota if quota is not None else now
    if seen.burst_within_quota and held is not None and held > 0:
        burst = min(burst, held)
    return _Step(container=one, base_us=base, now_us=now, quota_us=quota, burst_us=burst, why=why)


def _operation(seen: BurstView, config: CPUBurst, one: ContainerView, allowed: bool, limiter: str) -> tuple[str, str]:
    if config.policy not in (BURST_AUTO, BURST_QUOTA_ONLY):
        return "reset", f"policy {config.policy or 'none'}"
    throttled = seen.throttled.get(one.id)
    if not allowed:
        wish, why = "down", limiter
    elif throttled is None:
        wish, why = "remain", "throttling is not known"
    else:
        wish, why = ("up" if throttled > 0 else "remain"), f"throttled {throttled:.2f}"
    state = seen.pool.state
    if state == "overload" and wish in ("up", "remain"):
        wish = "down"
    elif state in ("cooling", "unknown") and wish == "up":
        wish = "remain"
    return wish, f"{why}, {seen.pool.why}: {wish}"


def _target(config: CPUBurst, base: int, now: int, wish: str) -> int:
    percent = config.cfs_quota_burst_percent
    ceiling = base * percent // 100 if percent is not None and percent > 100 else base
    wanted = {"up": int(now * UP), "down": int(now * DOWN), "reset": base, "remain": now}[wish]
    return min(max(wanted, base), ceiling)


def _writes(seen: BurstView, pod: PodView, steps: list[_Step]) -> list[Effect]:
    """Return the writes in a safe order. A pod must hold at least what its containers have, a quota at least its burst:
    so bursts that may shrink and quotas that grow come first from the top, the others after.
    """
    if not steps:
        return []
    quota_now, quota = seen.quota_us.get(pod.group), _pod_quota(seen, pod, steps)
    burst = sum(step.burst_us for step in steps)
    if seen.burst_within_quota and (held := quota or quota_now) is not None and held > 0:
        burst = min(burst, held)
    shrinking = [s for s in steps if s.quota_us is not None and s.now_us is not None and s.quota_us < s.now_us]
    growing = [s for s in steps if s.quota_us is not None and s.now_us is not None and s.quota_us > s.now_us]
    pod_shrinks = quota is not None and quota_now is not None and quota < quota_now
    pod_grows = quota is not None and quota_now is not None and quota > quota_now
    why = "; ".join(f"{step.container.name}: {step.why}" for step in steps)
    effects: list[Effect] = []
    effects += [_burst(step.container.group, step.burst_us, step.why) for step in steps if step not in growing]
    effects += [_burst(pod.group, burst, why)] if not pod_grows else []
    effects += [_quota(step.container.group, step.quota_us, step.why) for step in shrinking]
    effects += [_quota(pod.group, quota, why)] if pod_grows or pod_shrinks else []
    effects += [_quota(step.container.group, step.quota_us, step.why) for step in growing]
    effects += [_burst(step.container.group, step.burst_us, step.why) for step in growing]
    effects += [_burst(pod.group, burst, why)] if pod_grows else []
    return effects


def _pod_quota(seen: BurstView, pod: PodView, steps: list[_Step]) -> int | None:
    """Return the pod's own quota plus what its containers got on top; None leaves a pod without a bound alone."""
    base = base_quota_us(pod.limits.get(CPU), seen.normalization_ratio)
    now = seen.quota_us.get(pod.group)
    if base is None or now is None or now <= 0:
        return None
    held = [(s.quota_us if s.quota_us is not None else s.now_us, s.base_us) for s in steps]
    return base + sum(quota - own for quota, own in held if quota is not None and quota > 0 and own is not None)


def _burst(group: str, value_us: int, why: str) -> WriteCgroup:
    return WriteCgroup(group=group, file=CPU_BURST, value=str(value_us), owner=OWNER, cause=BURST_CAUSE, why=why)


def _quota(group: str, value_us: int | None, why: str) -> WriteCgroup:
    return WriteCgroup(group=group, file=CPU_QUOTA, value=str(value_us), owner=OWNER, cause=QUOTA_CAUSE, why=why)
