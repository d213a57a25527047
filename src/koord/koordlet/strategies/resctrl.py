"""The ResctrlReconcile strategy: shares of last-level cache and memory bandwidth per QoS class, and their threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from koord.api.koordinator.protocol import A_RESCTRL, BE, LS, LSE, LSR
from koord.api.koordinator.slo import ResctrlQOSConfig, ResourceQOSStrategy
from koord.host.hardware import ResctrlLimits
from koord.koordlet.cgroup_writer.effects import AddTasks, WriteSchemata
from koord.koordlet.hooks.resctrl_pod import INTEL, cat_mask, mba_value
from koord.koordlet.inputs.effective_slo import qos_class_settings
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.strategies.strategy import Effect, StrategyInputs, StrategyPlan

OWNER = "ResctrlReconcile"
CAUSE = "UpdateResctrl"
TASKS_CAUSE = "ApplyCatL3GroupTasks"
RESCTRL_GROUPS = (LSR, LS, BE)
_GROUP_OF = {LSE: LSR, LSR: LSR, LS: LS, BE: BE}


class ResctrlView(msgspec.Struct, frozen=True, kw_only=True):
    strategy: ResourceQOSStrategy | None  # None until a NodeSLO was seen
    supported: bool = True
    cache_mask: int = 0  # all ways of the cache
    vendor: str = INTEL
    limits: ResctrlLimits = ResctrlLimits()
    caches: tuple[int, ...] = ()  # ids, as the root's schemata have them
    pods: tuple[PodMeta, ...] = ()
    tasks: Mapping[str, tuple[int, ...]] = {}  # threads by a pod's uid
    held: Mapping[str, frozenset[int]] = {}  # threads by group, now


def decide_resctrl(view: ResctrlView) -> StrategyPlan:
    if view.strategy is None:
        return StrategyPlan(why="no NodeSLO was seen yet")
    if not view.supported or not view.caches:
        return StrategyPlan(why="this machine cannot divide its cache")
    effects: list[Effect] = []
    said: list[str] = []
    for group in RESCTRL_GROUPS:
        config = _config(view.strategy, group)
        if config is None:
            continue
        effects += _schemata(view, group, config, said)
    return StrategyPlan(effects=(*effects, *_task_moves(view, view.strategy)), why="; ".join(said), complete=True)


def _config(strategy: ResourceQOSStrategy, qos: str) -> ResctrlQOSConfig | None:
    block = qos_class_settings(strategy, qos)
    return None if block is None else block.resctrl_qos


def _schemata(view: ResctrlView, group: str, config: ResctrlQOSConfig, said: list[str]) -> Iterator[WriteSchemata]:
    start, end = config.cat_range_start_percent, config.cat_range_end_percent
    if start is not None and end is not None:
        ways = cat_mask(view.cache_mask, start, end, view.limits)
        if ways is None:
            said.append(f"{group}: no cache ways from {start}% to {end}% of {view.cache_mask:x}")
        else:
            yield _line(view, group, "L3", f"{ways:x}", f"{start}% to {end}% of {view.cache_mask:x}")
    share = mba_value(view.vendor, config.mba_percent, view.limits)
    if share is not None:
        yield _line(view, group, "MB", share, f"{config.mba_percent}% on {view.vendor}")


def _line(view: ResctrlView, group: str, resource: str, value: str, why: str) -> WriteSchemata:
    return WriteSchemata(
        group=group,
        resource="L3" if resource == "L3" else "MB",
        by_cache=tuple((cache, value) for cache in sorted(view.caches)),
        owner=OWNER,
        cause=CAUSE,
        why=why,
    )


def _task_moves(view: ResctrlView, strategy: ResourceQOSStrategy) -> list[AddTasks]:
    wanted: dict[str, list[int]] = {}
    for pod in view.pods:
        group = _GROUP_OF.get(pod.qos_with_default)
        config = None if group is None else _config(strategy, group)
        if group is None or config is None or not config.enable or not pod.is_alive or A_RESCTRL in pod.annotations:
            continue
        held = view.held.get(group, frozenset())
        wanted.setdefault(group, []).extend(task for task in view.tasks.get(pod.uid, ()) if task not in held)
    return [
        AddTasks(group=group, tasks=tuple(sorted(tasks)), owner=OWNER, cause=TASKS_CAUSE, why=f"pods of {group}")
        for group, tasks in wanted.items()
        if tasks
    ]


def observe_resctrl(inputs: StrategyInputs) -> ResctrlView:
    """Observe the cache, and the threads of pods and of resctrl groups."""
    machine, strategy = inputs.machine, inputs.resource_qos_strategy
    cache = machine.shape.cache
    enabled = strategy is not None and cache.is_divisible and any(_moves_tasks(strategy, one) for one in RESCTRL_GROUPS)
    # The hook of single pods gives those that ask for it a group of their own.
    own = "Resctrl" in inputs.gates
    pods = (
        [pod for pod in inputs.pods if pod.is_alive and pod.group and not (own and A_RESCTRL in pod.annotations)]
        if enabled
        else []
    )
    return ResctrlView(
        strategy=strategy,
        supported=cache.is_divisible,
        cache_mask=cache.mask,
        vendor=cache.vendor,
        limits=cache.limits,
        caches=cache.ids,
        pods=inputs.pods,
        # Every group in the pod's, so that of the sandbox as well.
        tasks={
            pod.uid: tuple(task for group in machine.child_groups(pod.group) for task in machine.thread_ids(group))
            for pod in pods
        },
        held={group: machine.resctrl_threads(group) for group in RESCTRL_GROUPS} if enabled else {},
    )


def _moves_tasks(strategy: ResourceQOSStrategy | None, qos: str) -> bool:
    """Return whether the class is enabled to have its threads moved into a resctrl group."""
    block = None if strategy is None else qos_class_settings(strategy, qos)
    return block is not None and block.resctrl_qos is not None and bool(block.resctrl_qos.enable)
