"""The table of all runtime hooks, and the run of those that are enabled for one pod or container.

A hook is one module and one row here. Hooks run in the table's order. Where two hooks want the same value the later one
has it, so the order decides who owns a file: CPUs of one's own (CPUSetAllocator) beat amounts, for example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from koord.api.koordinator.slo import HostApplicationSpec
from koord.koordlet.hooks import (
    batch_resource,
    core_sched,
    cpu_normalization,
    cpuset,
    gpu_env,
    group_identity,
    oom_score_adj,
    rdma_device,
    resctrl_pod,
    tc,
    terway_qos,
)
from koord.koordlet.hooks.hook import (
    ContainerContext,
    DeviceNode,
    HookPlan,
    HookStage,
    Mount,
    NodeRules,
    PodContext,
    RdmaFunction,
    SchemataLine,
)

_POD_STAGES = frozenset({HookStage.PRE_RUN_POD_SANDBOX, HookStage.RECONCILE})
_CONTAINER_STAGES = frozenset(
    {HookStage.PRE_CREATE_CONTAINER, HookStage.PRE_UPDATE_CONTAINER_RESOURCES, HookStage.RECONCILE}
)
_EXISTING = frozenset({HookStage.RECONCILE})


HookCaller = Callable[[str, Callable[[], HookPlan]], HookPlan]  # calls the hook of this name


class HookEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One hook. `gate` enables it; `stages` are the moments at which it runs; `files` are the knobs that it may set.
    A hook of another package may have no gate, and is always enabled then.

    `name` is Koordinator's; hooks run in the order of their names, as there.
    """

    name: str
    gate: str
    stages: frozenset[HookStage]
    files: tuple[str, ...] = ()
    pod: Callable[[PodContext, NodeRules], HookPlan] | None = None
    container: Callable[[ContainerContext, NodeRules], HookPlan] | None = None
    host_application: Callable[[HostApplicationSpec, NodeRules], HookPlan] | None = None  # when reconciled


HOOKS: tuple[HookEntry, ...] = (
    HookEntry(
        name=batch_resource.NAME,
        gate="BatchResource",
        stages=_POD_STAGES | _CONTAINER_STAGES,
        files=batch_resource.FILES,
        pod=batch_resource.decide_pod,
        container=batch_resource.decide_container,
    ),
    HookEntry(
        name=cpu_normalization.NAME,
        gate="CPUNormalization",
        stages=_POD_STAGES | _CONTAINER_STAGES,
        files=cpu_normalization.FILES,
        pod=cpu_normalization.decide_pod,
        container=cpu_normalization.decide_container,
    ),
    HookEntry(
        name=cpuset.NAME,
        gate="CPUSetAllocator",
        stages=_POD_STAGES | _CONTAINER_STAGES,
        files=cpuset.FILES,
        pod=cpuset.decide_pod,
        container=cpuset.decide_container,
        host_application=cpuset.decide_host_application,
    ),
    HookEntry(
        name=core_sched.NAME,
        gate="CoreSched",
        stages=_EXISTING,
        files=core_sched.FILES,
        pod=core_sched.decide_pod,
        container=core_sched.decide_container,
    ),
    HookEntry(
        name=group_identity.NAME,
        gate="GroupIdentity",
        stages=frozenset({HookStage.PRE_RUN_POD_SANDBOX}),  # its strategy reconciles it
        files=group_identity.FILES,
        pod=group_identity.decide_pod,
    ),
    HookEntry(
        name=oom_score_adj.NAME,
        gate="OOMScoreAdj",
        stages=frozenset({HookStage.PRE_CREATE_CONTAINER, HookStage.RECONCILE}),
        container=oom_score_adj.decide_container,
    ),
    HookEntry(
        name=resctrl_pod.NAME,
        gate="Resctrl",
        stages=_POD_STAGES | {HookStage.PRE_CREATE_CONTAINER},
        pod=resctrl_pod.decide_pod,
        container=resctrl_pod.decide_container,
    ),
    HookEntry(name=terway_qos.NAME, gate="TerwayQoS", stages=_EXISTING, pod=terway_qos.decide_pod),
    HookEntry(
        name=gpu_env.NAME,
        gate="GPUEnvInject",
        stages=frozenset({HookStage.PRE_CREATE_CONTAINER}),
        container=gpu_env.decide_container,
    ),
    HookEntry(
        name=rdma_device.NAME,
        gate="RDMADeviceInject",
        stages=frozenset({HookStage.PRE_CREATE_CONTAINER}),
        container=rdma_device.decide_container,
    ),
    HookEntry(name=tc.NAME, gate="TCNetworkQoS", stages=_EXISTING, files=tc.FILES, pod=tc.decide_pod),
)


# Hooks that give what only the making of a container can give it; the reconciler has nothing to repair there.
CREATION_HOOKS = tuple(one for one in HOOKS if one.container is not None and HookStage.RECONCILE not in one.stages)


class DecidedValue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A cgroup value with the hook that decided it."""

    knob: str
    value: str
    hook: str
    why: str


class HookProblem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The obstacle that kept a hook from deciding. A `fault` is a bug of the program, with the trace for the log."""

    hook: str
    problem: str
    fault: Exception | None = None


class HookDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The wishes of all enabled hooks together for one pod or container."""

    values: Mapping[str, DecidedValue] = {}  # by knob
    env: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    rdma: tuple[RdmaFunction, ...] = ()
    resctrl_group: str | None = None
    schemata: tuple[SchemataLine, ...] = ()
    oom_score_adj: int | None = None
    core_sched_group: str | None = None
    problems: tuple[HookProblem, ...] = ()
    applied: tuple[str, ...] = ()  # hooks that wanted anything


def call_directly(hook: str, decide: Callable[[], HookPlan]) -> HookPlan:
    """Call a hook and nothing else; callers that take times give a function of their own."""
    return decide()


def decide_pod(
    pod: PodContext,
    rules: NodeRules,
    stage: HookStage = HookStage.RECONCILE,
    hooks: Sequence[HookEntry] = HOOKS,
    call: HookCaller = call_directly,
) -> HookDecision:
    """Run the enabled hooks of a stage for a pod."""
    return _run(
        [
            (one.name, partial(one.pod, pod, rules))
            for one in (*hooks, *rules.settings.plugins)
            if one.pod is not None and is_enabled(one, rules.gates) and stage in one.stages
        ],
        call,
    )


def decide_container(
    container: ContainerContext,
    rules: NodeRules,
    stage: HookStage = HookStage.RECONCILE,
    hooks: Sequence[HookEntry] = HOOKS,
    call: HookCaller = call_directly,
) -> HookDecision:
    """Run the enabled hooks of a stage for a container."""
    return _run(
        [
            (one.name, partial(one.container, container, rules))
            for one in (*hooks, *rules.settings.plugins)
            if one.container is not None and is_enabled(one, rules.gates) and stage in one.stages
        ],
        call,
    )


def decide_creation(container: ContainerContext, rules: NodeRules) -> HookDecision:
    """Decide what a container gets when it is made and never afterwards: environment, mounts and devices."""
    return decide_container(container, rules, HookStage.PRE_CREATE_CONTAINER, CREATION_HOOKS)


def decide_host_application(
    application: HostApplicationSpec, rules: NodeRules, hooks: Sequence[HookEntry] = HOOKS
) -> HookDecision:
    """Run the enabled hooks for a host application."""
    return _run(
        [
            (one.name, partial(one.host_application, application, rules))
            for one in (*hooks, *rules.settings.plugins)
            if one.host_application is not None and is_enabled(one, rules.gates)
        ],
        call_directly,
    )


def is_enabled(hook: HookEntry, gates: frozenset[str]) -> bool:
    """Return whether a hook runs with these gates; one of another package may have no gate."""
    return not hook.gate or hook.gate in gates


def _run(calls: Sequence[tuple[str, Callable[[], HookPlan]]], caller: HookCaller) -> HookDecision:
    """Run the calls and lay their plans over each other. A hook that raises spares the others."""
    values: dict[str, DecidedValue] = {}
    env: dict[str, str] = {}
    mounts: list[Mount] = []
    devices: list[DeviceNode] = []
    rdma: list[RdmaFunction] = []
    schemata: list[SchemataLine] = []
    resctrl_group: str | None = None
    oom_score_adj: int | None = None
    core_sched_group: str | None = None
    problems: list[HookProblem] = []
    applied: list[str] = []
    for name, decide in calls:
        try:
            plan = caller(name, decide)
        except Exception as fault:  # noqa: BLE001 - handed to the caller: one hook's fault must not stop a container
            problems.append(HookProblem(hook=name, problem=repr(fault), fault=fault))
            continue
        if plan.problem:
            problems.append(HookProblem(hook=name, problem=plan.problem))
        if plan != HookPlan(problem=plan.problem):
            applied.append(name)
        values.update(
            {one.knob: DecidedValue(knob=one.knob, value=one.value, hook=name, why=one.why) for one in plan.values}
        )
        env.update(plan.env)
        mounts += plan.mounts
        devices += plan.devices
        rdma += plan.rdma
        schemata += plan.schemata
        resctrl_group = plan.resctrl_group if plan.resctrl_group is not None else resctrl_group
        oom_score_adj = plan.oom_score_adj if plan.oom_score_adj is not None else oom_score_adj
        core_sched_group = plan.core_sched_group if plan.core_sched_group is not None else core_sched_group
    return HookDecision(
        values=values,
        env=env,
        mounts=tuple(mounts),
        devices=tuple(devices),
        rdma=tuple(rdma),
        resctrl_group=resctrl_group,
        schemata=tuple(schemata),
        oom_score_adj=oom_score_adj,
        core_sched_group=core_sched_group,
        problems=tuple(problems),
        applied=tuple(applied),
    )
