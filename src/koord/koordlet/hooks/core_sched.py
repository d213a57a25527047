"""The CoreSched hook: which containers may share a physical core, by core scheduling groups.

Containers of one group have one cookie. The threads of a core run tasks of one cookie at a time, so pods of different
groups are never beside each other on a core. Classes whose `coreExpeller` is set are in groups apart from the others.
"""

from __future__ import annotations

import msgspec

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.cpu_codecs import core_sched_group_id
from koord.api.config.slo.defaults import CORE_SCHED
from koord.api.koordinator.protocol import BE, BEST_EFFORT, BURSTABLE, GUARANTEED, LS, LSE, LSR, SYSTEM
from koord.api.koordinator.slo import ResourceQOS, ResourceQOSStrategy
from koord.host.cgroup.knob import CPU_IDLE, GROUP_IDENTITY_ENABLED, SCHED_CORE, SCHED_FEATURES
from koord.koordlet.hooks.hook import NOTHING, ContainerContext, HookPlan, HookValue, NodeRules, PodContext

NAME = "CoreSched"
FILES = (CPU_IDLE,)
NO_GROUP = ""  # releases a container
# Pods without a group label share this group. A label cannot have this value: labels begin with a letter or a digit.
DEFAULT_GROUP = "__default__"
EXPELLER_SUFFIX = "-expeller"
FEATURE = "CORE_SCHED"


class ClassRule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The rule of core scheduling for the pods of one class."""

    enabled: bool = False
    expeller: bool = False
    idle: bool = False


class CoreSchedRules(msgspec.Struct, frozen=True, kw_only=True):
    lsr: ClassRule = ClassRule()
    ls: ClassRule = ClassRule()
    be: ClassRule = ClassRule()

    @property
    def any_enabled(self) -> bool:
        return self.lsr.enabled or self.ls.enabled or self.be.enabled

    def for_pod(self, pod: PodContext) -> ClassRule:
        """Return the rule of the pod's class, or that of its Kubernetes QoS class where it has none."""
        by_class = {LSE: self.lsr, LSR: self.lsr, LS: self.ls, BE: self.be}.get(pod.qos)
        return self.for_kube_qos(pod.kube_qos) if by_class is None else by_class

    def for_kube_qos(self, kube_qos: str) -> ClassRule:
        guaranteed = self.lsr if self.lsr.enabled else self.ls
        rules = {GUARANTEED: guaranteed, BURSTABLE: self.ls, BEST_EFFORT: self.be}
        return rules.get(kube_qos, ClassRule())


class CoreSchedKernel(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The switches that this kernel has. Mainline has none of them: cookies work there without."""

    identity_switch: bool = False  # of group identity, which excludes core scheduling
    core_switch: bool = False
    core_feature: bool = False  # core scheduling is a scheduler feature


class CoreSchedNodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The wishes of core scheduling for the node itself. All switches come before the first cookie."""

    enabled: bool
    switches: tuple[HookValue, ...] = ()  # files of the whole machine
    qos_groups: tuple[tuple[str, HookValue], ...] = ()  # by Kubernetes QoS class


def core_sched_rules(strategy: ResourceQOSStrategy | None) -> CoreSchedRules:
    """Return the rules of all classes; they are neutral unless cpuPolicy is coreSched."""
    policies = None if strategy is None else strategy.policies
    if strategy is None or policies is None or policies.cpu_policy != CORE_SCHED:
        return CoreSchedRules()
    return CoreSchedRules(
        lsr=_class_rule(strategy.lsr_class), ls=_class_rule(strategy.ls_class), be=_class_rule(strategy.be_class)
    )


def decide_container(container: ContainerContext, rules: NodeRules) -> HookPlan:
    """Decide the group of a container. SYSTEM pods are left alone: the agent, which is one, must have no cookie."""
    pod = container.pod
    if rules.slo is None or pod.qos == SYSTEM:
        return NOTHING
    rule = core_sched_rules(rules.slo.resource_qos_strategy).for_pod(pod)
    group = core_sched_group_id(pod.labels, pod.uid) if rule.enabled else None
    if isinstance(group, MalformedAnnotation):
        return HookPlan(problem=str(group))
    if group is None:
        return HookPlan(core_sched_group=NO_GROUP)
    if rule.expeller:
        return HookPlan(core_sched_group=group + EXPELLER_SUFFIX)
    return HookPlan(core_sched_group=group or DEFAULT_GROUP)


def decide_pod(pod: PodContext, rules: NodeRules) -> HookPlan:
    """Decide whether the pod runs only on CPUs that nobody else wants (`schedIdle`).

    The groups of Kubernetes QoS classes are never idle: the kernel refuses shares of an idle group, and a kubelet that
    cannot write them does not start.
    """
    if rules.slo is None or pod.qos == SYSTEM:
        return NOTHING
    if not core_sched_rules(rules.slo.resource_qos_strategy).for_pod(pod).idle:
        return NOTHING
    why = f"schedIdle of {pod.qos or pod.kube_qos} pods is 1"
    return HookPlan(values=(HookValue(knob=CPU_IDLE, value="1", why=why),))


def decide_node(rules: NodeRules, kernel: CoreSchedKernel) -> CoreSchedNodePlan:
    """Decide the switches of the machine, and cpu.idle of the QoS groups, which other agents may have left set."""
    slo = rules.slo
    found = CoreSchedRules() if slo is None else core_sched_rules(slo.resource_qos_strategy)
    if not found.any_enabled:
        return CoreSchedNodePlan(enabled=False)
    switches: list[HookValue] = []
    if kernel.identity_switch:
        switches.append(_on(GROUP_IDENTITY_ENABLED, "0"))
    if kernel.core_switch:
        switches.append(_on(SCHED_CORE, "1"))
    elif kernel.core_feature:
        switches.append(_on(SCHED_FEATURES, FEATURE))
    not_idle = HookValue(knob=CPU_IDLE, value="0", why="the kubelet writes the shares of QoS groups")
    return CoreSchedNodePlan(
        enabled=True,
        switches=tuple(switches),
        qos_groups=tuple((kube_qos, not_idle) for kube_qos in (GUARANTEED, BURSTABLE, BEST_EFFORT)),
    )


def _on(knob: str, value: str) -> HookValue:
    return HookValue(knob=knob, value=value, why=f"cpuPolicy is {CORE_SCHED}")


def _class_rule(block: ResourceQOS | None) -> ClassRule:
    config = None if block is None else block.cpu_qos
    if config is None:
        return ClassRule()
    return ClassRule(
        enabled=bool(config.enable), expeller=bool(config.core_expeller), idle=(config.sched_idle or 0) == 1
    )
