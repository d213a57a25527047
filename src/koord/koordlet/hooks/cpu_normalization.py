"""The CPUNormalization hook: lower quotas on processors that are faster than the reference, for the same work.

Only latency-sensitive and unlabelled pods have them: BatchResource scales those of BE pods, and pods with CPUs of their
own have no quota.
"""

from __future__ import annotations

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import A_CPU_NORMALIZATION_RATIO, LS, NONE
from koord.host.cgroup.codec import normalized_quota_us
from koord.host.cgroup.knob import CPU_QUOTA
from koord.koordlet.hooks import hook

NAME = "CPUNormalization"
FILES = (CPU_QUOTA,)


def decide_pod(pod: hook.PodContext, rules: hook.NodeRules) -> hook.HookPlan:
    return _plan(pod, pod.resources, rules)


def decide_container(container: hook.ContainerContext, rules: hook.NodeRules) -> hook.HookPlan:
    return hook.NOTHING if container.is_sandbox else _plan(container.pod, container.resources, rules)


def _plan(pod: hook.PodContext, resources: hook.CgroupResources, rules: hook.NodeRules) -> hook.HookPlan:
    ratio, quota_us = rules.normalization_ratio, resources.quota_us
    if ratio is None or quota_us is None or quota_us <= 0 or pod.qos not in (LS, NONE):
        return hook.NOTHING
    status = pod.resource_status
    if isinstance(status, MalformedAnnotation):
        return hook.HookPlan(problem=str(status))
    if status.cpuset.strip():
        return hook.NOTHING
    why = f"{A_CPU_NORMALIZATION_RATIO} {ratio:g} of a quota of {quota_us}us"
    return hook.HookPlan(
        values=(hook.HookValue(knob=CPU_QUOTA, value=str(normalized_quota_us(quota_us, ratio)), why=why),)
    )
