"""The GroupIdentity strategy: which groups win when tasks compete for a CPU, by bvt_warp_ns or, without it, cpu.idle.

Kernels without group identity can still let BE run only on CPUs that nobody else wants (cpu.idle). It is set on the
groups of BE pods and never on the BE root: the kernel refuses cpu.shares of an idle group, and a kubelet whose write to
a QoS group is refused does not start. It writes a pod's group only before the pod's first container exists, or when a
pod is resized, which pods without requests cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations import qos_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.config.slo.defaults import IDLE_CPUSET
from koord.api.koordinator.protocol import BE, BEST_EFFORT, BURSTABLE, GUARANTEED, LS
from koord.api.koordinator.slo import ResourceQOSStrategy
from koord.host.cgroup import knob
from koord.koordlet.cgroup_writer.effects import WriteCgroup, WriteSystem
from koord.koordlet.hooks.group_identity import NAME, BvtValues, bvt_values, is_group_identity_policy
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies import file_ownership
from koord.koordlet.strategies.strategy import Effect, StrategyInputs, StrategyPlan

OWNER = CAUSE = NAME  # of the hook, which writes new pods
# Group identity and core scheduling exclude each other and share these switches: whichever runs writes them as this.
SWITCH_OWNER = file_ownership.CPU_POLICY
BE_SHARES = 2  # the kubelet's for all pods without requests together
NO_IDENTITY = "0"  # of a group to which no agent gave one


class GroupIdentityView(msgspec.Struct, frozen=True, kw_only=True):
    strategy: ResourceQOSStrategy | None  # None until a NodeSLO was seen
    has_bvt: bool = False  # whether groups have the file
    identity_switch: int | None = None  # the machine's switch; None where there is none
    identity_wish: int | None = None  # what the system strategy wants it to be while no class needs it
    core_switch: int | None = None  # of core scheduling, which excludes group identity
    has_idle: bool = False
    idle_stands_in: bool = True  # the operator's word: upstream leaves such kernels alone
    idle_cpuset: bool = False  # whether CPU suppression wants BE pods idle, whatever their identity
    idle: int | None = None  # of the BE root now
    idle_candidates: tuple[str, ...] = ()  # groups of pods in the BE root that have containers, listed or not
    groups: Mapping[str, str] = {}  # cgroup by Kubernetes' QoS class
    pods: tuple[PodMeta, ...] = ()
    children: Mapping[str, tuple[str, ...]] = {}  # cgroups in a pod's
    kept: Mapping[str, int] = {}  # present values of pods whose annotation is malformed: they stay
    leftovers: tuple[tuple[str, str], ...] = ()  # cgroups of unlisted pods, with their Kubernetes QoS class
    applications: tuple[tuple[str, str], ...] = ()  # cgroups of host applications, with their QoS class


def decide_group_identity(view: GroupIdentityView) -> StrategyPlan:
    if view.strategy is None:
        return StrategyPlan(why="no NodeSLO was seen yet")
    found = bvt_values(view.strategy)
    if not view.has_bvt and view.identity_switch is None:
        return _decide_idle(view, view.strategy, found)
    effects: list[Effect] = []
    if not found.any_enabled and view.identity_switch == 0:
        if view.identity_wish == 1 and is_group_identity_policy(view.strategy):
            effects.append(_switch(knob.GROUP_IDENTITY_ENABLED, 1, "systemStrategy wants it"))
        return StrategyPlan(effects=tuple(effects), why="no class has group identity", complete=True)
    if found.any_enabled:
        if view.core_switch is not None:
            effects.append(_switch(knob.SCHED_CORE, 0, "group identity is on"))
        if view.identity_switch is not None:
            effects.append(_switch(knob.GROUP_IDENTITY_ENABLED, 1, "group identity is on"))
    malformed: list[str] = []
    effects += [_bvt(group, found.for_qos_group(kube_qos), kube_qos) for kube_qos, group in view.groups.items()]
    for pod in view.pods:
        value, groups = found.for_pod(pod), (pod.group, *view.children.get(pod.group, ()))
        if isinstance(value, MalformedAnnotation):
            malformed.append(f"{pod.namespace}/{pod.name}: {value}")
            effects += [_bvt(group, view.kept[group], "its annotation") for group in groups if group in view.kept]
        else:
            effects += [_bvt(group, value, f"{pod.qos or pod.kube_qos} pod") for group in groups]
    effects += [_bvt(group, found.for_qos_group(kube_qos), f"in {kube_qos}") for group, kube_qos in view.leftovers]
    effects += [_bvt(group, found.for_class(qos) or 0, f"{qos} application") for group, qos in view.applications]
    if (
        not found.any_enabled
        and view.identity_switch == 1
        and view.identity_wish == 0
        and is_group_identity_policy(view.strategy)
    ):
        effects.append(_switch(knob.GROUP_IDENTITY_ENABLED, 0, "systemStrategy wants it"))
    return StrategyPlan(effects=tuple(effects), why="; ".join(malformed), complete=True)


def _decide_idle(view: GroupIdentityView, strategy: ResourceQOSStrategy, found: BvtValues) -> StrategyPlan:
    root = view.groups.get(BEST_EFFORT)
    if not view.has_idle or root is None:
        return StrategyPlan(why="this kernel has neither group identity nor idle groups", complete=True)
    if not is_group_identity_policy(strategy):
        return StrategyPlan(why="another cpuPolicy sets idle groups itself", complete=True)
    effects: list[Effect] = []
    if view.idle_stands_in:
        # Earlier versions made the root idle. A group that ceases to be gets the weight of a normal one.
        effects.append(_write(root, knob.CPU_IDLE, 0, "the kubelet writes its shares", SWITCH_OWNER))
        if view.idle:
            effects.append(_write(root, knob.CPU_SHARES, BE_SHARES, "after idle", SWITCH_OWNER))
    below_others = found.be is not None and found.be < 0
    if not view.idle_stands_in or not (below_others or view.idle_cpuset):
        return StrategyPlan(effects=tuple(effects), why="BE has no identity below others", complete=True)
    pods = {pod.group: pod for pod in view.pods}
    for group in view.idle_candidates:
        pod = pods.get(group)
        value = found.be if pod is None else found.for_pod(pod)
        if isinstance(value, int) and value < 0:
            why = f"identity {value}, idle groups stand in"
        elif view.idle_cpuset and (pod is None or pod.qos in ("", BE)):
            why = f"cpuSuppressPolicy {IDLE_CPUSET}"
        else:
            continue
        effects.append(_write(group, knob.CPU_IDLE, 1, why, SWITCH_OWNER))
    return StrategyPlan(effects=tuple(effects), complete=True)


def _bvt(group: str, value: int, why: str) -> WriteCgroup:
    return _write(group, knob.CPU_BVT, value, why, original=NO_IDENTITY)


def _write(
    group: str, name: str, value: int, why: str, owner: str = OWNER, *, original: str | None = None
) -> WriteCgroup:
    return WriteCgroup(
        group=group,
        file=name,
        value=str(value),
        owner=owner,
        cause=CAUSE,
        why=why,
        original=original,
        takes_over=file_ownership.earlier_owners(name, owner),
    )


def _switch(name: str, value: int, why: str) -> WriteSystem:
    return WriteSystem(
        file=name,
        value=str(value),
        owner=SWITCH_OWNER,
        cause=CAUSE,
        why=why,
        takes_over=file_ownership.earlier_owners(name, SWITCH_OWNER),
    )


def depends_on(inputs: StrategyInputs) -> tuple[object, ...]:
    """Return what identities are decided from: new pods and containers do not wait for the period."""
    return (inputs.pods, inputs.slo)


def be_yields(inputs: StrategyInputs) -> bool:
    """Return whether BE pods run behind everybody else while CPU suppression wants an idle cpuset."""
    strategy, machine = inputs.resource_qos_strategy, inputs.machine
    if strategy is None or not is_group_identity_policy(strategy):
        return False
    if machine.has_knob(knob.CPU_BVT):
        return (bvt_values(strategy).be or 0) < 0
    return inputs.settings.idle_stands_in and machine.has_knob(knob.CPU_IDLE) and NAME in inputs.gates


def observe_group_identity(inputs: StrategyInputs) -> GroupIdentityView:
    """Observe the kernel's switches and all groups that have an identity."""
    machine, slo = inputs.machine, inputs.slo
    shape = machine.shape
    has_bvt = machine.has_knob(knob.CPU_BVT)
    pods = tuple(pod for pod in inputs.pods if pod.group and pod.is_alive)
    system = None if slo is None else slo.system_strategy
    return GroupIdentityView(
        strategy=inputs.resource_qos_strategy,
        has_bvt=has_bvt,
        identity_switch=inputs.number("", knob.GROUP_IDENTITY_ENABLED),
        identity_wish=None if system is None else system.sched_group_identity_enabled,
        core_switch=inputs.number("", knob.SCHED_CORE),
        has_idle=machine.has_knob(knob.CPU_IDLE),
        idle_stands_in=inputs.settings.idle_stands_in,
        idle_cpuset=bool(inputs.threshold_enabled) and inputs.threshold.cpu_suppress_policy == IDLE_CPUSET,
        idle=inputs.number(shape.besteffort, knob.CPU_IDLE),
        idle_candidates=() if has_bvt else _pod_groups_with_containers(inputs),
        groups=shape.groups,
        pods=pods,
        kept=_values_of_malformed(inputs, pods) if has_bvt else {},
        children={pod.group: machine.child_groups(pod.group) for pod in pods} if has_bvt else {},
        leftovers=_unlisted_pod_groups(inputs) if has_bvt else (),
        applications=_host_application_groups(inputs) if has_bvt else (),
    )


def _unlisted_pod_groups(inputs: StrategyInputs) -> tuple[tuple[str, str], ...]:
    """Return the groups of pods that exist on the machine and in no list, with their Kubernetes QoS class."""
    shape = inputs.machine.shape
    if shape.layout is None:
        return ()
    known = {pod.group for pod in inputs.pods}
    return tuple(
        (group, kube_qos)
        for kube_qos in (GUARANTEED, BURSTABLE, BEST_EFFORT)
        for group in inputs.machine.child_groups(shape.groups.get(kube_qos, ""))
        if group not in known and shape.layout.pod_uid_of_dir(group.rpartition("/")[2]) is not None
    )


def _pod_groups_with_containers(inputs: StrategyInputs) -> tuple[str, ...]:
    shape, machine = inputs.machine.shape, inputs.machine
    if shape.layout is None:
        return ()
    return tuple(
        group
        for group in machine.child_groups(shape.besteffort)
        if shape.layout.pod_uid_of_dir(group.rpartition("/")[2]) is not None and machine.child_groups(group)
    )


def _values_of_malformed(inputs: StrategyInputs, pods: tuple[PodMeta, ...]) -> dict[str, int]:
    groups = [
        group
        for pod in pods
        if pod.qos == LS and isinstance(qos_codecs.parse_cpu_qos(pod.annotations), MalformedAnnotation)
        for group in (pod.group, *inputs.machine.child_groups(pod.group))
    ]
    values = {group: inputs.number(group, knob.CPU_BVT) for group in groups}
    return {group: value for group, value in values.items() if value is not None}


def _host_application_groups(inputs: StrategyInputs) -> tuple[tuple[str, str], ...]:
    slo, layout = inputs.slo, inputs.machine.shape.layout
    if slo is None or layout is None:
        return ()
    return tuple((layout.host_application_dir(one), one.qos) for one in slo.host_applications)
