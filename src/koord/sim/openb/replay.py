"""One run of the experiment: pods arrive one by one, each is decided by the engine, and one that fits
nowhere is dropped.

Nothing ever leaves. After each arrival the allocated percentage of all cards is recorded.

The policies of the published experiment are scheduler plugins: BestFit and FGD, which keep count of cards
themselves, and the order of nodes that decides ties. For replays only; no product profile can name them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.koordinator.resource_name import CPU, GPU_CORE
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import ChosenNode
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.runtime import run_reserve
from koord.scheduler.framework.verdict import ROW, Reject
from koord.scheduler.plugins.fragmentation_aware.fragmentation import (
    FgdScorer,
    GpuChoice,
    GpuPodShape,
    Ints,
    NodeFreeGpus,
    TypicalPod,
    choose_by_best_fit,
    gpu_percent,
    gpu_shape_of,
    typical_pods,
)
from koord.scheduler.plugins.registry import REGISTRY, PluginFactory
from koord.sim.openb.trace import SCHEDULER, ArrivalOrder, OpenbTrace, ReplayCluster, build_pod, required_models

_MAX_GPUS = 8
_NO_CARDS = Reject(("not enough GPU cards with that much left",))
_MEMO_KEY = "openb"


def published_shape_of(pod: PodInfo) -> GpuPodShape:
    known: GpuPodShape | None = pod.shape.memo.get(_MEMO_KEY)
    if known is None:
        shape = gpu_shape_of(pod.shape)
        known = GpuPodShape(shape.cpu_milli, shape.gpu_milli, shape.gpu_count, "|".join(required_models(pod.shape)))
        pod.shape.memo[_MEMO_KEY] = known
    return known


class PublishedPolicy(Plugin):
    """The common part of both policies: cards are counted here, fitting is by counting, and Reserve takes the cards."""

    scope = ROW

    def __init__(self, state: ClusterState) -> None:
        """Count the cards; all nodes exist from the start."""
        table = state.table
        self._left: Ints = np.zeros((table.size, _MAX_GPUS), np.int64)  # percents; 0 where there is no card
        self._cards: list[int] = [0] * table.size
        for node in state.nodes():
            cards = self._cards[node.row] = node.allocatable.get(GPU_CORE, 0) // 100
            self._left[node.row, :cards] = 100

    def percents(self, node: NodeInfo) -> list[int]:
        found: list[int] = self._left[node.row, : self._cards[node.row]].tolist()
        return found

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        shape = published_shape_of(pod)
        need = gpu_percent(shape)
        fitting = sum(left >= need for left in self.percents(node))
        return None if fitting >= shape.gpu_count else _NO_CARDS

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        shape = published_shape_of(pod)
        fitting = np.count_nonzero(self._left[rows] >= max(gpu_percent(shape), 1), axis=1)
        codes: Codes = (fitting < shape.gpu_count).astype(np.int32)
        return codes

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        return _NO_CARDS

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        found = self.choice(published_shape_of(pod), node, free_cpu_milli(node))
        return 0 if found is None else found.score

    def reserve(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> None:
        shape = published_shape_of(pod)
        found = self.choice(shape, node, free_cpu_milli(node) + shape.cpu_milli)  # it is counted on the node already
        assert found is not None, f"{pod.key} was promised {node.name} and does not fit there"
        for card in found.cards:
            self._left[node.row, card] -= gpu_percent(shape)

    def choice(self, shape: GpuPodShape, node: NodeInfo, cpu_milli: int) -> GpuChoice | None:
        raise NotImplementedError


def free_cpu_milli(node: NodeInfo) -> int:
    return node.allocatable.get(CPU, 0) - node.requested.get(CPU, 0)


class OpenbBestFit(PublishedPolicy):
    name = "OpenbBestFit"

    def choice(self, shape: GpuPodShape, node: NodeInfo, cpu_milli: int) -> GpuChoice | None:
        return choose_by_best_fit(
            NodeFreeGpus(cpu_milli, tuple(10 * left for left in self.percents(node))), _without_models(shape)
        )

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        shape = published_shape_of(pod)
        cpu = (table.allocatable(CPU) - table.requested(CPU))[rows] - shape.cpu_milli
        gpu = 10 * self._left[rows].sum(axis=1) - shape.gpu_milli * shape.gpu_count
        scores: Scores = (100 * (1 - (0.5 * cpu / 128_000 + 0.5 * gpu / 8_000))).astype(np.int64)
        return np.maximum(scores, 0)


class OpenbFGD(PublishedPolicy):
    name = "OpenbFGD"

    def __init__(self, state: ClusterState, expected: Sequence[TypicalPod], models: Mapping[str, str]) -> None:
        """Build the scorers. `expected` is of the whole trace, known beforehand; `models` is by node."""
        super().__init__(state)
        kinds = sorted(set(models.values()))
        self._prospects = [_fgd_scorer(expected, model) for model in kinds]
        self._kinds: Ints = np.zeros(state.table.size, np.int64)
        for node in state.nodes():
            self._kinds[node.row] = kinds.index(models[node.name])

    def choice(self, shape: GpuPodShape, node: NodeInfo, cpu_milli: int) -> GpuChoice | None:
        return self._prospects[int(self._kinds[node.row])].choose(cpu_milli, self.percents(node), shape)

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        shape = published_shape_of(pod)
        cpu = (table.allocatable(CPU) - table.requested(CPU))[rows]
        left, kinds = self._left[rows], self._kinds[rows]
        scores = np.zeros(len(kinds), np.int64)
        for kind, prospect in enumerate(self._prospects):
            places = np.flatnonzero(kinds == kind)
            scores[places] = prospect.score_column(cpu[places], left[places], shape)
        return np.maximum(scores, 0)


class OpenbRank(Plugin):
    """Breaks ties: the lower a node's rank, the better; it counts below anything else."""

    name = "OpenbRank"
    scope = ROW

    def __init__(self, rank: Mapping[str, int]) -> None:
        self._rank = rank

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return len(self._rank) - self._rank[node.name]

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        return table.node_column(self.name, np.int64, lambda node: len(self._rank) - self._rank[node.name])[rows]


def _fgd_scorer(expected: Sequence[TypicalPod], model: str) -> FgdScorer:
    return FgdScorer(expected, lambda shape: shape.accepts_model(model))


def _without_models(shape: GpuPodShape) -> GpuPodShape:
    """Drop the models, which NodeAffinity checks."""
    return GpuPodShape(shape.cpu_milli, shape.gpu_milli, shape.gpu_count) if shape.gpu_spec else shape


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
