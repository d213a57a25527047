"""The BatchResource hook: shares, quota and memory limit of BE pods, by their batch CPU and batch memory.

The kubelet knows nothing of batch resources and gives such pods the shares of a pod without requests and no limits.
"""

from __future__ import annotations

from koord.api.config.slo.defaults import CFS_QUOTA
from koord.api.koordinator.protocol import BE, BEST_EFFORT
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY
from koord.api.koordinator.slo import NodeSLOSpec
from koord.host.cgroup.codec import MAX_INT64, UNLIMITED, cfs_quota_of_milli, normalized_quota_us, shares_of_milli
from koord.host.cgroup.knob import CPU_QUOTA, CPU_SHARES, MEMORY_LIMIT
from koord.koordlet.hooks import hook

NAME = "BatchResource"
FILES = (CPU_SHARES, CPU_QUOTA, MEMORY_LIMIT)


def decide_pod(pod: hook.PodContext, rules: hook.NodeRules) -> hook.HookPlan:
    """Decide the values of the pod's cgroup: sums over its containers; one container without a limit has none."""
    if pod.qos != BE or not pod.extended:
        return _unread(pod)
    amounts = pod.extended.values()
    request_milli = sum(max(one.requests.get(BATCH_CPU, 0), 0) for one in amounts)
    quota = _quota(_sum_of_limits(pod, BATCH_CPU), pod, rules)
    return _plan(request_milli, quota, _sum_of_limits(pod, BATCH_MEMORY))


def decide_container(container: hook.ContainerContext, rules: hook.NodeRules) -> hook.HookPlan:
    pod = container.pod
    own = None if pod.extended is None else pod.extended.get(container.name)
    if pod.qos != BE or own is None or container.is_sandbox:
        return _unread(pod)
    quota = _quota(_limit(own, BATCH_CPU), pod, rules)
    return _plan(own.requests.get(BATCH_CPU, 0), quota, _limit(own, BATCH_MEMORY))


def _unread(pod: hook.PodContext) -> hook.HookPlan:
    """Return an empty plan, with the problem where the amounts of a BE pod are there and cannot be read."""
    return hook.HookPlan(problem=pod.extended_problem) if pod.qos == BE and pod.extended_problem else hook.NOTHING


def _plan(request_milli: int, quota: tuple[int, str], memory_bytes: int) -> hook.HookPlan:
    quota_us, why = quota
    return hook.HookPlan(
        values=(
            hook.HookValue(
                knob=CPU_SHARES, value=str(shares_of_milli(request_milli)), why=f"{BATCH_CPU} request {request_milli}"
            ),
            hook.HookValue(knob=CPU_QUOTA, value=str(quota_us), why=why),
            hook.HookValue(knob=MEMORY_LIMIT, value=str(memory_bytes), why=_limit_text(BATCH_MEMORY, memory_bytes)),
        )
    )


def _quota(limit_milli: int, pod: hook.PodContext, rules: hook.NodeRules) -> tuple[int, str]:
    """Return the quota and why it is that."""
    if suppressed_by_quota(rules.slo):
        return UNLIMITED, "cpuSuppressPolicy cfsQuota holds all BE pods together"
    quota_us, why = cfs_quota_of_milli(limit_milli), _limit_text(BATCH_CPU, limit_milli)
    ratio = rules.normalization_ratio
    if ratio is not None and ratio > 1 and quota_us > 0:
        quota_us, why = normalized_quota_us(quota_us, ratio), f"{why}, divided by the CPU normalization ratio {ratio:g}"
    held_us = rules.be_quota_us if pod.kube_qos == BEST_EFFORT else None
    if held_us is not None and quota_us > held_us:
        # A container that asks for more does not even start.
        return UNLIMITED, f"{why}, but all BE pods together have {held_us}us, and none may have more"
    return quota_us, why


def suppressed_by_quota(slo: NodeSLOSpec | None) -> bool:
    """Return whether suppression acts by quota: cgroup v1 refuses a quota of all BE pods below that of one of them."""
    threshold = None if slo is None else slo.resource_used_threshold_with_be
    return threshold is not None and bool(threshold.enable) and threshold.cpu_suppress_policy == CFS_QUOTA


def _sum_of_limits(pod: hook.PodContext, resource: str) -> int:
    limits = [_limit(one, resource) for one in (pod.extended or {}).values()]
    return UNLIMITED if UNLIMITED in limits else min(sum(limits), MAX_INT64)


def _limit(amounts: hook.ExtendedAmounts, resource: str) -> int:
    found = amounts.limits.get(resource, 0)
    return found if found > 0 else UNLIMITED


def _limit_text(resource: str, limit: int) -> str:
    return f"no {resource} limit" if limit == UNLIMITED else f"{resource} limit {limit}"
