"""The GroupIdentity hook: which pods win when tasks compete for a CPU, on kernels with bvt_warp_ns.

The hook gives a pod its identity when it starts. The strategy of the same name, which uses the same values, keeps it,
and covers what is no pod: QoS groups, host applications, groups of unlisted pods and the switches of the machine.
"""

from __future__ import annotations

import msgspec

from koord.api.annotations import qos_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.config.slo.defaults import GROUP_IDENTITY
from koord.api.koordinator.protocol import BE, BEST_EFFORT, BURSTABLE, GUARANTEED, LS, LSE, LSR
from koord.api.koordinator.slo import ResourceQOSStrategy
from koord.host.cgroup.knob import CPU_BVT
from koord.koordlet.hooks.hook import NOTHING, HookPlan, HookValue, NodeRules, PodContext
from koord.koordlet.inputs.effective_slo import qos_class_settings
from koord.koordlet.inputs.pod_meta import PodMeta

NAME = "GroupIdentity"
FILES = (CPU_BVT,)


class BvtValues(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The bvt_warp_ns of each class; None where a class is not enabled."""

    lsr: int | None
    ls: int | None
    be: int | None

    @property
    def any_enabled(self) -> bool:
        return (self.lsr, self.ls, self.be) != (None, None, None)

    def for_qos_group(self, kube_qos: str) -> int:
        """Return the value of the group of a Kubernetes QoS class. All pods are below that of Guaranteed."""
        return {BURSTABLE: self.ls, BEST_EFFORT: self.be}.get(kube_qos) or 0

    def for_kube_qos(self, kube_qos: str) -> int:
        """Return the value of a pod without a class that has a row (none, or SYSTEM)."""
        if kube_qos == GUARANTEED:
            return next((value for value in (self.lsr, self.ls) if value is not None), 0)
        return self.for_qos_group(kube_qos)

    def for_class(self, qos: str) -> int | None:
        """Return the value of a QoS class; None for a class without a row."""
        rows = {LSE: self.lsr, LSR: self.lsr, LS: self.ls, BE: self.be}
        return (rows[qos] or 0) if qos in rows else None

    def for_pod(self, pod: PodMeta | PodContext) -> int | MalformedAnnotation:
        by_class = self.for_class(pod.qos)
        value = self.for_kube_qos(pod.kube_qos) if by_class is None else by_class
        own = qos_codecs.parse_cpu_qos(pod.annotations) if pod.qos == LS else None
        if own is None or isinstance(own, MalformedAnnotation):
            return value if own is None else own
        return (value if own.group_identity is None else own.group_identity) if own.enable else 0


def is_group_identity_policy(strategy: ResourceQOSStrategy) -> bool:
    policy = None if strategy.policies is None else strategy.policies.cpu_policy
    return policy in (None, "", GROUP_IDENTITY)


def bvt_values(strategy: ResourceQOSStrategy) -> BvtValues:
    """Return the values of the classes that the strategy enables."""
    ours = is_group_identity_policy(strategy)

    def value(qos: str) -> int | None:
        block = qos_class_settings(strategy, qos)
        config = None if block is None else block.cpu_qos
        if config is None or not config.enable or not ours:
            return None
        return config.group_identity or 0

    return BvtValues(lsr=value(LSR), ls=value(LS), be=value(BE))


def decide_pod(pod: PodContext, rules: NodeRules) -> HookPlan:
    strategy = None if rules.slo is None else rules.slo.resource_qos_strategy
    values = None if strategy is None else bvt_values(strategy)
    if values is None or not values.any_enabled or not rules.has_group_identity:
        return NOTHING
    value = values.for_pod(pod)
    if isinstance(value, MalformedAnnotation):
        return HookPlan(problem=str(value))
    return HookPlan(values=(HookValue(knob=CPU_BVT, value=str(value), why=f"{pod.qos or pod.kube_qos} pod"),))
