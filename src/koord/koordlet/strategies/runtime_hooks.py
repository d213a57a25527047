"""The RuntimeHooks strategy: bring pods and containers that exist to what hooks decide for them, and keep them there.

NRI and the runtime proxy ask the same hooks while a container is made. This strategy covers all else: pods that started
without either, annotations and rules that change later, and files that somebody else overwrote. Its plan is complete,
so a file that no hook asks for any more goes back to what the pod's spec says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from koord.api.annotations.cpu_codecs import CPU_MANAGER_STATIC
from koord.api.koordinator.protocol import BEST_EFFORT
from koord.api.koordinator.slo import HostApplicationSpec
from koord.host.cgroup.knob import CPU_BVT, CPU_QUOTA, CPU_SHARES, CPUSET, MEMORY_LIMIT
from koord.koordlet.cgroup_writer.effects import WriteCgroup
from koord.koordlet.hooks import registry
from koord.koordlet.hooks.batch_resource import suppressed_by_quota
from koord.koordlet.hooks.contexts import container_contexts_of_meta, pod_context_of_meta, sandbox_context
from koord.koordlet.hooks.hook import CgroupResources, ContainerContext, HookStage, NodeRules, build_node_rules
from koord.koordlet.hooks.registry import HookDecision
from koord.koordlet.inputs.machine import CpuManagerState, CpuPools, decide_cpu_pools, reserved_cpus
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies import file_ownership, interference_view
from koord.koordlet.strategies.strategy import StrategyInputs, StrategyPlan, WorkSteps, run_steps
from koord.values.cpuset import EMPTY

NAME = "RuntimeHooks"
PERIOD_S = 10.0
GATES = tuple(dict.fromkeys(hook.gate for hook in registry.HOOKS))
_RECONCILED = tuple(hook for hook in registry.HOOKS if HookStage.RECONCILE in hook.stages)
OWNERS = tuple(hook.name for hook in _RECONCILED if hook.files)
FILES = tuple(dict.fromkeys(file for hook in _RECONCILED for file in hook.files))
_FILES_BY_HOOK = {hook.name: hook.files for hook in registry.HOOKS}
_KATA = "kata"  # its containers live in a virtual machine, not in this machine's cgroups

HookLevel = Literal["pod", "container", "sandbox"]


class HookedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions of hooks for one cgroup of a pod."""

    level: HookLevel
    group: str
    decision: HookDecision
    container: str = ""  # its name, empty for the pod and its sandbox
    context: ContainerContext | None = None  # None for the pod

    def creation(self, rules: NodeRules) -> HookDecision:
        """Decide again what the container gets when it is made; nobody keeps that, since nobody can give it later."""
        return HookDecision() if self.context is None else registry.decide_creation(self.context, rules)


class HookedPod(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions of hooks for a pod, and their inputs: the same pod under the same rules is not decided again.

    `kept` are the files, as group and knob, of hooks that could not decide: they stay as they are.
    """

    pod: PodMeta
    rules: NodeRules
    sandbox: str
    groups: tuple[HookedGroup, ...] = ()
    effects: tuple[WriteCgroup, ...] = ()
    kept: tuple[tuple[str, str], ...] = ()


class RuntimeHooksState(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one run for the next, and for those who ask what hooks decided."""

    rules: NodeRules
    pods: Mapping[str, HookedPod] = {}  # by uid


class RuntimeHooksView(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of hooks. `starting` are pods of which only the runtime told so far. `unbound_cpus` is what the
    CPUs of a container are that nobody bound; None where the kubelet binds some.
    """

    rules: NodeRules
    pods: tuple[PodMeta, ...] = ()
    starting: tuple[PodMeta, ...] = ()
    sandboxes: Mapping[str, str] = {}  # group of the sandbox, by the pod's uid
    applications: tuple[tuple[str, HostApplicationSpec], ...] = ()  # with their groups
    unbound_cpus: str | None = None
    waits: bool = False  # an earlier process decided from a Node or a NodeSLO that was not seen yet
    before: Mapping[str, HookedPod] = {}


def decide_runtime_hooks(view: RuntimeHooksView) -> StrategyPlan:
    """Decide the values of all pods that are alive and of their containers."""
    return run_steps(decide_runtime_hooks_in_steps(view))


def decide_runtime_hooks_in_steps(view: RuntimeHooksView) -> WorkSteps[StrategyPlan]:
    """Decide pod by pod, with a step for each that was not decided before: a first look at a full node takes long."""
    if view.waits:
        return StrategyPlan(why="the Node and the NodeSLO were not both seen again yet: what was written stays")
    pods: dict[str, HookedPod] = {}
    for pod in view.pods:
        if not pod.is_alive or not pod.group:
            continue
        sandbox = view.sandboxes.get(pod.uid, "")
        known = _still_decided(view, pod, sandbox)
        pods[pod.uid] = known or _decide_pod(view, pod, sandbox)
        if known is None:
            yield
    for pod in view.starting:
        if pod.uid not in pods:
            known = _still_decided(view, pod, "")
            pods[pod.uid] = known or decide_starting_pod(pod, view.rules)
            if known is None:
                yield
    problems = [
        f"{one.pod.full_name}{f' {group.container}' if group.container else ''}: {problem.hook}: {problem.problem}"
        for one in pods.values()
        for group in one.groups
        for problem in group.decision.problems
    ]
    applications = _applications(view)
    sizes = (*(len(one.effects) for one in pods.values()), len(applications))
    return StrategyPlan(
        effects=(*(effect for one in pods.values() for effect in one.effects), *applications),
        kept=tuple(file for one in pods.values() for file in one.kept),
        why="; ".join(problems),
        complete=True,
        state=RuntimeHooksState(rules=view.rules, pods=pods),
        batch_sizes=tuple(size for size in sizes if size),
    )


def _still_decided(view: RuntimeHooksView, pod: PodMeta, sandbox: str) -> HookedPod | None:
    """Return what was decided before for the same pod under the same rules."""
    known = view.before.get(pod.uid)
    same = known is not None and known.pod is pod and known.rules is view.rules and known.sandbox == sandbox
    return known if same else None


def decide_starting_pod(
    pod: PodMeta,
    rules: NodeRules,
    stage: HookStage = HookStage.RECONCILE,
    call: registry.HookCaller = registry.call_directly,
) -> HookedPod:
    """Decide for the cgroup of a pod whose spec is not known: what its files would hold without hooks is not either."""
    decision = registry.decide_pod(pod_context_of_meta(pod), rules, stage, call=call)
    group = HookedGroup(level="pod", group=pod.group, decision=decision)
    return HookedPod(
        pod=pod,
        rules=rules,
        sandbox="",
        groups=(group,),
        effects=tuple(_effects(rules, pod, group, CgroupResources(), None)),
        kept=tuple(_undecided(group, rules)),
    )


def _decide_pod(view: RuntimeHooksView, pod: PodMeta, sandbox: str) -> HookedPod:
    rules, context = view.rules, pod_context_of_meta(pod)
    decision = registry.decide_pod(context, rules)
    found = [(HookedGroup(level="pod", group=pod.group, decision=decision), context.resources)]
    members = [*container_contexts_of_meta(context, pod), *([sandbox_context(context, sandbox)] if sandbox else ())]
    for one in members if context.runtime_class != _KATA else ():
        if one.group:
            decision = registry.decide_container(one, rules)
            level: HookLevel = "sandbox" if one.is_sandbox else "container"
            group = HookedGroup(level=level, group=one.group, decision=decision, container=one.name, context=one)
            found.append((group, one.resources))
    return HookedPod(
        pod=pod,
        rules=rules,
        sandbox=sandbox,
        groups=tuple(group for group, _ in found),
        effects=tuple(
            effect for group, resources in found for effect in _effects(rules, pod, group, resources, view.unbound_cpus)
        ),
        kept=tuple(file for group, _ in found for file in _undecided(group, rules)),
    )


def _effects(
    rules: NodeRules, pod: PodMeta, group: HookedGroup, resources: CgroupResources, unbound_cpus: str | None
) -> Iterator[WriteCgroup]:
    """Return the writes of those values that hooks own; the others belong to a strategy that knows of the hook."""
    for value in group.decision.values.values():
        owner = file_ownership.owner_of(
            value.knob,
            pod,
            rules.gates,
            unset_cpu_quota=rules.settings.unset_cpu_quota,
            throttled=group.level == "container" and pod.uid in rules.throttled,
        )
        if owner is not None and owner != value.hook:
            continue
        yield WriteCgroup(
            group=group.group,
            file=value.knob,
            value=value.value,
            owner=value.hook,
            cause=value.hook,
            why=value.why,
            original=_original(value.knob, resources, unbound_cpus),
            takes_over=file_ownership.earlier_owners(value.knob, value.hook),
        )


def _original(knob: str, resources: CgroupResources, unbound_cpus: str | None) -> str | None:
    """Return what the kubelet and the runtime give to the group by the pod's spec; None where that is not known."""
    known: dict[str, int | None] = {
        CPU_SHARES: resources.shares,
        CPU_QUOTA: resources.quota_us,
        MEMORY_LIMIT: resources.memory_bytes,
        CPU_BVT: 0,
    }
    if knob == CPUSET:
        return unbound_cpus
    found = known.get(knob)
    return None if found is None else str(found)


def _undecided(group: HookedGroup, rules: NodeRules) -> list[tuple[str, str]]:
    """Return the files that hooks with a problem may have written, and the CPUs while the pools are not known."""
    files = [file for problem in group.decision.problems for file in _FILES_BY_HOOK.get(problem.hook, ())]
    files += [CPUSET] if rules.ls_pools is None else []
    return [(group.group, file) for file in files if file not in group.decision.values]


def _applications(view: RuntimeHooksView) -> list[WriteCgroup]:
    """Return the writes for host applications."""
    return [
        WriteCgroup(group=group, file=value.knob, value=value.value, owner=value.hook, cause=value.hook, why=value.why)
        for group, application in view.applications
        for value in registry.decide_host_application(application, view.rules).values.values()
    ]


def depends_on(inputs: StrategyInputs) -> tuple[object, ...]:
    """Return what hooks decide from: when any of it changes, they run at once."""
    known, shape = inputs.node_inputs, inputs.machine.shape
    return (
        known.pods,
        known.starting,
        known.slo,
        known.node,
        known.kubelet,
        known.earlier_writes,
        known.mps_daemons,
        shape.processors,
        shape.cache,
        interference_view.throttled_pods(inputs.states.get(interference_view.OWNER)),
        _be_quota_us(inputs),
    )


def observe_runtime_hooks(inputs: StrategyInputs) -> RuntimeHooksView:
    """Observe the rules of the node, its pods, their sandboxes and the host applications."""
    state = inputs.states.get(NAME)
    before = state if isinstance(state, RuntimeHooksState) else None
    rules = node_rules(inputs)
    if before is not None and before.rules == rules:
        rules = before.rules  # the same object, by which decisions are known to hold
    slo, layout = inputs.slo, inputs.machine.shape.layout
    return RuntimeHooksView(
        rules=rules,
        pods=inputs.pods,
        starting=inputs.node_inputs.starting,
        sandboxes={
            pod.uid: sandbox for pod in inputs.pods if pod.is_alive and (sandbox := _sandbox_group(inputs, pod))
        },
        applications=()
        if slo is None or layout is None
        else tuple((layout.host_application_dir(one), one) for one in slo.host_applications),
        unbound_cpus=inputs.unbound_cpus,
        waits=inputs.node_inputs.earlier_writes and (inputs.slo is None or inputs.node is None),
        before={} if before is None else before.pods,
    )


def node_rules(inputs: StrategyInputs) -> NodeRules:
    """Build the rules of the node from what is known of it now."""
    return build_node_rules(
        inputs.gates,
        inputs.settings.hooks,
        inputs.node_inputs,
        cpu_pools(inputs),
        inputs.machine.shape.cache,
        has_group_identity=inputs.machine.has_knob(CPU_BVT),
        throttled=interference_view.throttled_pods(inputs.states.get(interference_view.OWNER)),
        be_quota_us=_be_quota_us(inputs),
    )


def _be_quota_us(inputs: StrategyInputs) -> int | None:
    """Return the quota of the group of all BE pods on cgroup v1, where none below it may have more; None for no quota.

    It is not read while suppression sets it: hooks give no quotas then. When suppression ends it is lifted after hooks
    have decided, so quotas come back in the run after that.
    """
    shape = inputs.machine.shape
    if shape.cgroup_version != 1 or shape.layout is None or suppressed_by_quota(inputs.slo):
        return None
    text = inputs.machine.read_knob(shape.layout.qos_dir(BEST_EFFORT), CPU_QUOTA)
    return int(text) if text is not None and text.isdecimal() else None


def cpu_pools(inputs: StrategyInputs) -> CpuPools | None:
    """Return the CPUs that pods share; None while it is not known which CPUs the machine has or the kubelet binds."""
    known, processors = inputs.node_inputs, inputs.machine.shape.processors
    node, kubelet = known.node, known.kubelet
    if not processors or node is None or not kubelet.known:
        return None
    return decide_cpu_pools(
        processors=processors,
        pods=known.pods,
        state=CpuManagerState(policy=kubelet.cpu_manager_policy, entries=kubelet.assigned),
        static=kubelet.cpu_manager_policy == CPU_MANAGER_STATIC,
        kubelet_cpus=EMPTY,  # what the kubelet reserves stays shared
        kubelet_milli=0,
        node_cpus=node.reserved_cpus or reserved_cpus(processors, node.reservation_milli),
        system_cpus=node.exclusive_cpus,
    )


def _sandbox_group(inputs: StrategyInputs, pod: PodMeta) -> str:
    """Return the group of the pod's sandbox: the one below the pod that belongs to no container; "" when in doubt."""
    known = {one.group for one in (*pod.containers, *pod.init_containers) if one.group}
    if not pod.group or not known:
        return ""
    others = [group for group in inputs.machine.child_groups(pod.group) if group not in known]
    return others[0] if len(others) == 1 else ""
