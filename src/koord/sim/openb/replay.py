"""One run of the experiment: pods arrive one by one, each is decided by the engine, and one that fits
nowhere is dropped.

Nothing ever leaves. After each arrival the allocated percentage of all cards is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.model import convert
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.framework.decision import ChosenNode
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.runtime import run_reserve
from koord.scheduler.plugins.fragmentation_aware.fragmentation import typical_pods
from koord.scheduler.plugins.registry import REGISTRY, PluginFactory
from koord.sim.openb.published_policies import OpenbBestFit, OpenbFGD, OpenbRank
from koord.sim.openb.trace import SCHEDULER, ArrivalOrder, OpenbTrace, ReplayCluster, build_pod

KOORD, BEST_FIT, FGD = "koord", "BestFit", "FGD"
POLICIES = (KOORD, BEST_FIT, FGD)
_SCORE_WEIGHT = 100_000
_PUBLISHED_FILTERS = ("NodeResourcesFit", "NodeAffinity")

_PROGRESS_STEP = 100  # pods
ProgressCallback = Callable[[int], None]


class ReplayRun(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of one run. `allocation` is the percentage of all cards, by load: the percentage requested so far."""

    policy: str
    variant: str
    seed: int
    published_order: bool
    arrived: int
    placed: int
    unallocated_gpus: float
    allocation: Mapping[int, float]
    seconds: float  # of one CPU, for all decisions

    def allocation_at(self, load: int) -> float | None:
        return self.allocation.get(load)


def replay(
    trace: OpenbTrace, order: ArrivalOrder, policy: str, up_to: int | None = None, told: ProgressCallback | None = None
) -> ReplayRun:
    """Run the experiment. `up_to` is the load in percent to stop after; `told` gets the number of arrivals."""
    cluster = ReplayCluster(trace.nodes)
    engine = _build_engine(cluster, trace, order, policy)
    pods, capacity = cluster.lister_of_kind("Pod"), trace.capacity_milli
    points = _AllocationCurve(capacity)
    placed = allocated = arrived = 0
    started = time.process_time()
    for number, index in enumerate(order.pods):
        wanted = trace.pods[index]
        if up_to is not None and points.load_with(wanted.total_milli) > up_to:
            break
        pod = build_pod(wanted, number)
        pods.put(pod)
        arrived += 1
        if _try_place(engine, cluster, cluster.state.pod_info(pod)):
            placed += 1
            allocated += wanted.total_milli
        points.note(wanted.total_milli, allocated)
        if told is not None and arrived % _PROGRESS_STEP == 0:
            told(_PROGRESS_STEP)
    return ReplayRun(
        policy=policy,
        variant=trace.variant,
        seed=order.seed,
        published_order=order.published,
        arrived=arrived,
        placed=placed,
        unallocated_gpus=(capacity - allocated) / 1000,
        allocation=points.means(),
        seconds=time.process_time() - started,
    )


def _try_place(engine: SchedulingEngine, cluster: ReplayCluster, pod: PodInfo) -> bool:
    attempt = engine.decide(pod)
    if not isinstance(attempt.decision, ChosenNode):
        return False
    cluster.state.assume(pod, attempt.node_name)
    rejection = run_reserve(attempt)
    if rejection is not None:
        raise RuntimeError(f"Reserve rejected {pod.key} on {attempt.node_name} after Filter let it pass: {rejection}")
    return True


class _AllocationCurve:
    """Allocation by load: what was recorded while the load rounds to a percent is averaged."""

    def __init__(self, capacity_milli: int) -> None:
        self._capacity = capacity_milli
        self._noted: dict[int, list[float]] = {}
        self._asked = 0

    def load_with(self, more_milli: int) -> int:
        return round(100 * (self._asked + more_milli) / self._capacity)

    def note(self, asked_milli: int, allocated_milli: int) -> None:
        self._asked += asked_milli
        load = self.load_with(0)
        self._noted.setdefault(load, []).append(round(100 * allocated_milli / self._capacity, 2))

    def means(self) -> dict[int, float]:
        return {load: round(sum(noted) / len(noted), 2) for load, noted in sorted(self._noted.items())}


# The scheduler ---------------------------------------------------------------------------------------------------


def _build_engine(cluster: ReplayCluster, trace: OpenbTrace, order: ArrivalOrder, policy: str) -> SchedulingEngine:
    extra: dict[str, PluginFactory] = {}
    if policy == KOORD:
        plugins = koord_profile_plugins()
    else:
        plugins, extra = _published_plugins(trace, order, policy)
    config = convert({"profiles": [{"schedulerName": SCHEDULER, "plugins": plugins}]}, KubeSchedulerConfiguration)
    assembly = CompletedConfig.complete(config, {**REGISTRY, **extra})
    if not isinstance(assembly, CompletedConfig):
        raise RuntimeError(f"the profile of {policy} is wrong: {'; '.join(map(str, assembly))}")
    (profile,) = assembly.make_profiles(cluster)
    return SchedulingEngine(profile, cluster.state, seed=order.seed)


def koord_profile_plugins() -> dict[str, Any]:
    """Return the plugins of koord's profile: Kubernetes' filters, DeviceShare; FragmentationAware alone ranks."""
    return {
        "multiPoint": {"enabled": [{"name": "DeviceShare"}]},
        "score": {"disabled": [{"name": "*"}], "enabled": [{"name": "FragmentationAware"}]},
    }


def _published_plugins(
    trace: OpenbTrace, order: ArrivalOrder, policy: str
) -> tuple[dict[str, Any], dict[str, PluginFactory]]:
    """Return the plugins of a published policy: CPU, memory, pod count and model; cards and scores as published."""
    rank = {node.name: order.node_rank[place] for place, node in enumerate(trace.nodes)}

    def score(args: Any, handle: Handle) -> OpenbBestFit | OpenbFGD:
        if policy == BEST_FIT:
            return OpenbBestFit(handle.state)
        expected = typical_pods(pod.shape for pod in trace.pods)
        return OpenbFGD(handle.state, expected, {node.name: node.model for node in trace.nodes})

    name = OpenbBestFit.name if policy == BEST_FIT else OpenbFGD.name
    plugins = {
        "multiPoint": {"disabled": [{"name": "*"}]},
        "queueSort": {"enabled": [{"name": "PrioritySort"}]},
        "filter": {"enabled": [*({"name": one} for one in _PUBLISHED_FILTERS), {"name": name}]},
        "score": {"enabled": [{"name": name, "weight": _SCORE_WEIGHT}, {"name": OpenbRank.name}]},
        "reserve": {"enabled": [{"name": name}]},
        "bind": {"enabled": [{"name": "DefaultBinder"}]},
    }
    return plugins, {name: score, OpenbRank.name: lambda args, handle: OpenbRank(rank)}
