"""What plain pods pay for Koordinator's plugins: each beside Kubernetes' own and LoadAwareScheduling, then all of them.

On 5,000 nodes with their reports and topologies, 500 of them with GPUs. There are 2,000 reservations, 300 quotas and
200 gangs that have nothing to do with the pods. A decision is followed by everything that a placement calls, up to
Permit. Sides are asked in turn, in one process on one core; what is kept is the median over rounds.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from bench.devices import _machine
from bench.engine import NODES, _cluster, _distinct, _equal, _same_spec
from bench.load_aware import _LATER, PODS_PER_NODE, Reports, _report
from bench.numa import _topology
from bench.reservation import RESERVATIONS, _reservation
from koord.api.config.component import PluginSet
from koord.api.config.scheduler import configuration
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration, SchedulerPlugins
from koord.api.koordinator.scheduling import Device
from koord.api.koordinator.sigs_scheduling import ElasticQuota, PodGroup
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS, Pod
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.plugin_selection import KOORDINATOR_POINTS, plugin_set_at
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.extension_points import EXTENSION_POINTS
from koord.scheduler.framework.handle import SchedulerActions
from koord.scheduler.framework.runtime import run_nominate_reservation, run_permit, run_reserve, run_unreserve
from koord.scheduler.plugins.registry import REGISTRY

QUOTAS, GANGS, GPU_NODES = 300, 200, 500
ROUNDS = 11
OPTIONAL = ("NodeNUMAResource", "DeviceShare", "Reservation", "Coscheduling", "ElasticQuota", "SchedulingHint")
LOADS: tuple[tuple[str, Callable[[], Iterator[Pod]], int], ...] = (
    ("equal", _equal, 1_000),
    ("distinct", _distinct, 150),
    ("own_labels", _same_spec, 1_000),
)


class Handle:
    """Every kind of object is there from the start; pods come and go."""

    def __init__(self, state: ClusterState, found: dict[str, list[Any]]) -> None:
        self.state = state
        self.actions = SchedulerActions()
        self._found = found
        self._listers: dict[str, Reports] = {}

    def lister(self, resource: Resource[Any]) -> Any:
        known = self._listers.get(resource.kind)
        if known is None:
            known = self._listers[resource.kind] = Reports()
            for obj in self._found.get(resource.kind, ()):
                known.put(obj)
        return known

    def now(self) -> float:
        return _LATER


def _objects() -> dict[str, list[Any]]:
    names = [f"node-{i}" for i in range(NODES)]
    limits = {"cpu": "100", "memory": "400Gi"}
    return {
        "NodeMetric": [_report(i, 0, []) for i in range(NODES)],
        "NodeResourceTopology": [_topology(name) for name in names],
        "Device": [convert(_machine(name), Device) for name in names[:GPU_NODES]],
        "Reservation": [_reservation(i) for i in range(RESERVATIONS)],
        "ElasticQuota": [
            convert(
                {"metadata": {"name": f"q-{i}", "namespace": "q"}, "spec": {"min": limits, "max": limits}}, ElasticQuota
            )
            for i in range(QUOTAS)
        ],
        "PodGroup": [
            convert({"metadata": {"name": f"g-{i}", "namespace": "default"}, "spec": {"minMember": 4}}, PodGroup)
            for i in range(GANGS)
        ],
    }


def _configuration(kept: tuple[str, ...]) -> KubeSchedulerConfiguration:
    """The shipped profile with only these of Koordinator's plugins, beside LoadAwareScheduling."""
    given = configuration.configuration()
    out = {name for name in KOORDINATOR_POINTS if name not in ("LoadAwareScheduling", "DefaultPreBind", *kept)}

    def without(held: PluginSet) -> PluginSet:
        return msgspec.structs.replace(held, enabled=tuple(p for p in held.enabled if p.name not in out))

    plugins = configuration.plugins()
    plugins = SchedulerPlugins(**{point.name: without(plugin_set_at(point, plugins)) for point in EXTENSION_POINTS})
    (profile,) = given.profiles
    return msgspec.structs.replace(given, profiles=(msgspec.structs.replace(profile, plugins=plugins),))


class Side:
    def __init__(self, kept: tuple[str, ...], found: dict[str, list[Any]]) -> None:
        """Pods are seen before they are decided, as a watch shows them."""
        self.state = _cluster(NODES * PODS_PER_NODE)
        assembly = CompletedConfig.complete(_configuration(kept), REGISTRY)
        assert isinstance(assembly, CompletedConfig), assembly
        self.handle = Handle(self.state, found)
        (self.profile,) = assembly.make_profiles(self.handle)
        self.engine = SchedulingEngine(self.profile, self.state, seed=1)
        self._pods: Reports = self.handle.lister(PODS)

    def seen(self, pods: Iterator[Pod], count: int) -> list[PodInfo]:
        infos = []
        for pod, _ in zip(pods, range(count), strict=False):
            self._pods.put(pod)  # type: ignore[arg-type]
            infos.append(self.state.pod_info(pod))
        return infos

    def took(self, infos: list[PodInfo]) -> float:
        state, engine = self.state, self.engine
        engine.decide(infos[0])  # what was taken back after the last round is not to be paid for in this one
        done = []
        started = time.process_time()
        for info in infos:
            attempt = engine.decide(info)
            assert run_nominate_reservation(attempt) is None
            state.assume(info, attempt.node_name)
            assert run_reserve(attempt) is None
            assert run_permit(attempt) == {}
            done.append(attempt)
        took = time.process_time() - started
        for attempt in done:
            run_unreserve(attempt)
            state.forget(attempt.pod.uid)
        return took


def compared(sides: dict[str, Side], pods: Callable[[], Iterator[Pod]], count: int, rounds: int) -> dict[str, Any]:
    """The first side is what the others are held against."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            infos = side.seen(pods(), count)
            gc.collect()
            gc.freeze()
            times[name].append(side.took(infos))
    first = next(iter(sides))
    return {
        name: {
            "decisions_per_second": count / min(durations),
            "kept_percent": statistics.median(100 * a / b for a, b in zip(times[first], durations, strict=True)),
        }
        for name, durations in times.items()
    }


def run(rounds: int = ROUNDS) -> dict[str, Any]:
    found = _objects()
    kept = {"none": (), **{name: (name,) for name in OPTIONAL}, "all": OPTIONAL}
    sides = {name: Side(names, found) for name, names in kept.items()}
    results: dict[str, Any] = {"nodes": NODES, "reservations": RESERVATIONS, "quotas": QUOTAS, "gangs": GANGS}
    for name, pods, count in LOADS:
        results[name] = compared(sides, pods, count, rounds)
    return results
