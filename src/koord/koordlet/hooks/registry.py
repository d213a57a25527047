"""The table of all runtime hooks, and the run of those that are enabled for one pod or container.

A hook is one module and one row here. Hooks run in the table's order. Where two hooks want the same value the later one
has it, so the order decides who owns a file: CPUs of one's own (CPUSetAllocator) beat amounts, for example.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from koord.koordlet.hooks import batch_resource
from koord.koordlet.hooks.hook import (
    ContainerContext,
    DeviceNode,
    HookPlan,
    HookStage,
    Mount,
    NodeRules,
    PodContext,
    RdmaFunction,
)

_POD_STAGES = frozenset({HookStage.PRE_RUN_POD_SANDBOX, HookStage.RECONCILE})
_CONTAINER_STAGES = frozenset(
    {HookStage.PRE_CREATE_CONTAINER, HookStage.PRE_UPDATE_CONTAINER_RESOURCES, HookStage.RECONCILE}
)


class HookEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One hook. `gate` enables it; `stages` are the moments at which it runs; `files` are the knobs that it may set."""

    name: str
    gate: str
    stages: frozenset[HookStage]
    files: tuple[str, ...] = ()
    pod: Callable[[PodContext, NodeRules], HookPlan] | None = None
    container: Callable[[ContainerContext, NodeRules], HookPlan] | None = None


HOOKS: tuple[HookEntry, ...] = (
    HookEntry(
        name=batch_resource.NAME,
        gate="BatchResource",
        stages=_POD_STAGES | _CONTAINER_STAGES,
        files=batch_resource.FILES,
        pod=batch_resource.decide_pod,
        container=batch_resource.decide_container,
    ),
)


class DecidedValue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A cgroup value with the hook that decided it."""

    knob: str
    value: str
    hook: str
    why: str


class HookProblem(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What kept a hook from deciding. A `fault` is a bug of the program, with the trace for the log."""

    hook: str
    problem: str
    fault: Exception | None = None


class HookDecision(msgspec.Struct, frozen=True, kw_only=True):
    """What all enabled hooks together want for one pod or container."""

    values: Mapping[str, DecidedValue] = {}  # by knob
    env: Mapping[str, str] = {}
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    rdma: tuple[RdmaFunction, ...] = ()
    resctrl_group: str | None = None
    oom_score_adj: int | None = None
    core_sched_group: str | None = None
    problems: tuple[HookProblem, ...] = ()
    applied: tuple[str, ...] = ()  # hooks that wanted anything


def decide_pod(
    pod: PodContext, rules: NodeRules, stage: HookStage = HookStage.RECONCILE, hooks: Sequence[HookEntry] = HOOKS
) -> HookDecision:
    """Run the enabled hooks of a stage for a pod."""
    return _run(
        [
            (one.name, partial(one.pod, pod, rules))
            for one in hooks
            if one.pod is not None and one.gate in rules.gates and stage in one.stages
        ]
    )


def decide_container(
    container: ContainerContext,
    rules: NodeRules,
    stage: HookStage = HookStage.RECONCILE,
    hooks: Sequence[HookEntry] = HOOKS,
) -> HookDecision:
    """Run the enabled hooks of a stage for a container."""
    return _run(
        [
            (one.name, partial(one.container, container, rules))
            for one in hooks
            if one.container is not None and one.gate in rules.gates and stage in one.stages
        ]
    )


def _run(calls: Sequence[tuple[str, Callable[[], HookPlan]]]) -> HookDecision:
    """Run the calls and lay their plans over each other. A hook that raises spares the others."""
    values: dict[str, DecidedValue] = {}
    env: dict[str, str] = {}
    mounts: list[Mount] = []
    devices: list[DeviceNode] = []
    rdma: list[RdmaFunction] = []
    resctrl_group: str | None = None
    oom_score_adj: int | None = None
    core_sched_group: str | None = None
    problems: list[HookProblem] = []
    applied: list[str] = []
    for name, call in calls:
        try:
            plan = call()
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
        oom_score_adj=oom_score_adj,
        core_sched_group=core_sched_group,
        problems=tuple(problems),
        applied=tuple(applied),
    )
