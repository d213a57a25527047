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
from koord.policy.device.fragmentation import typical_pods
from koord.scheduler.assembly import Assembly
from koord.scheduler.framework.decision import Chosen
from koord.scheduler.framework.engine import Engine
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.registry import REGISTRY, Factory
from koord.scheduler.state.pod import PodInfo
from koord.sim.openb.published import OpenbBestFit, OpenbFGD, OpenbRank
from koord.sim.openb.scene import SCHEDULER, Scene, pod_of
from koord.sim.openb.trace import Order, Trace

KOORD, BEST_FIT, FGD = "koord", "BestFit", "FGD"
POLICIES = (KOORD, BEST_FIT, FGD)
_ABOVE_TIES = 100_000
_ENOUGH = ("NodeResourcesFit", "NodeAffinity")

_TELLING = 100  # pods
Told = Callable[[int], None]


class Run(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
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

    def at(self, load: int) -> float | None:
        return self.allocation.get(load)


def replay(trace: Trace, order: Order, policy: str, up_to: int | None = None, told: Told | None = None) -> Run:
    """Run the experiment. `up_to` is the load in percent after which to stop; `told` is called with the number of
    arrivals.
    """
    scene = Scene(trace.nodes)
    engine = _engine(scene, trace, order, policy)
    pods, capacity = scene.shelf("Pod"), trace.capacity_milli
    points = _Points(capacity)
    placed = allocated = arrived = 0
    started = time.process_time()
    for number, index in enumerate(order.pods):
        wanted = trace.pods[index]
        if up_to is not None and points.load_with(wanted.total_milli) > up_to:
            break
        pod = pod_of(wanted, number)
        pods.put(pod)
        arrived += 1
        if _placed(engine, scene, scene.state.info(pod)):
            placed += 1
            allocated += wanted.total_milli
        points.note(wanted.total_milli, allocated)
        if told is not None and arrived % _TELLING == 0:
            told(_TELLING)
    return Run(
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


def _placed(engine: Engine, scene: Scene, pod: PodInfo) -> bool:
    decision = engine.decide(pod)
    if not isinstance(decision, Chosen):
        return False
    scene.state.assume(pod, decision.node)
    node = scene.state.table.index[decision.node]
    for plugin in engine.profile.at("reserve"):
        refused = plugin.reserve(engine.cycle, pod, node)
        if refused is not None:
            raise RuntimeError(f"{plugin.name} took back its word on {pod.key} and {node.name}: {refused}")
    return True


class _Points:
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


def _engine(scene: Scene, trace: Trace, order: Order, policy: str) -> Engine:
    extra: dict[str, Factory] = {}
    if policy == KOORD:
        plugins = koord_plugins()
    else:
        plugins, extra = _published(trace, order, policy)
    config = convert({"profiles": [{"schedulerName": SCHEDULER, "plugins": plugins}]}, KubeSchedulerConfiguration)
    assembly = Assembly.of(config, {**REGISTRY, **extra})
    if not isinstance(assembly, Assembly):
        raise RuntimeError(f"the profile of {policy} is wrong: {'; '.join(map(str, assembly))}")
    (profile,) = assembly.profiles(scene)
    return Engine(profile, scene.state, seed=order.seed)


def koord_plugins() -> dict[str, Any]:
    """Return the plugins of koord's profile: Kubernetes' filters and DeviceShare; FragmentationAware alone ranks
    nodes.
    """
    return {
        "multiPoint": {"enabled": [{"name": "DeviceShare"}]},
        "score": {"disabled": [{"name": "*"}], "enabled": [{"name": "FragmentationAware"}]},
    }


def _published(trace: Trace, order: Order, policy: str) -> tuple[dict[str, Any], dict[str, Factory]]:
    """Return the plugins of a published policy: filters of CPU, memory, pod count and model; cards and scores as
    published.
    """
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
        "filter": {"enabled": [*({"name": one} for one in _ENOUGH), {"name": name}]},
        "score": {"enabled": [{"name": name, "weight": _ABOVE_TIES}, {"name": OpenbRank.name}]},
        "reserve": {"enabled": [{"name": name}]},
        "bind": {"enabled": [{"name": "DefaultBinder"}]},
    }
    return plugins, {name: score, OpenbRank.name: lambda args, handle: OpenbRank(rank)}
