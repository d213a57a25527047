"""Devices: the engine with DeviceShare over 5,000 nodes of 8 GPUs, 2 NUMA nodes and 4 PCIe switches, on one core.

A decision ends with its cards chosen and promised. Equal pods share one class; distinct ones are each judged on every
node anew. Beside it, what plain pods pay for the plugin, what reading a Device object costs, and forty shares of one
node from their creation to their binding on an embedded cluster.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.engine import NODES
from bench.load_aware import Reports
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.koordinator.custom_kinds import DEVICES
from koord.api.koordinator.protocol import A_DEVICE_ALLOCATE_HINT, A_DEVICE_JOINT_ALLOCATE
from koord.api.koordinator.scheduling import Device
from koord.api.kubernetes.builtin_kinds import NODES as NODE_KIND
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.handle import SchedulerActions
from koord.scheduler.framework.runtime import run_reserve, run_unreserve
from koord.scheduler.plugins.device_share.plugin import DeviceShare
from koord.scheduler.plugins.registry import REGISTRY
from koord.scheduler.scheduler import Scheduler, StandaloneScheduler
from koord.telemetry.clock import WallClock

GPU, RDMA = "koordinator.sh/gpu", "koordinator.sh/rdma"
CORE, MEMORY, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"
ROUNDS = 2
SHARES = 40
_ROOM = {"cpu": "128", "memory": "1024Gi", "pods": "250", GPU: "800", CORE: "800", RATIO: "800", RDMA: "400"}
_ROOM |= {MEMORY: "640Gi"}


class Handle:
    def __init__(self, state: ClusterState) -> None:
        self.state = state
        self.actions = SchedulerActions()
        self.devices = Reports()

    def lister(self, resource: Resource[Any]) -> Any:
        return self.devices if resource.kind == "Device" else Reports()

    def now(self) -> float:
        return 0.0


def _machine(name: str) -> dict[str, Any]:
    place = [{"socketID": s // 2, "nodeID": s // 2, "pcieID": str(s)} for s in range(4)]
    cards = [
        {
            "type": "gpu",
            "id": f"GPU-{name}-{minor}",
            "minor": minor,
            "health": True,
            "resources": {CORE: "100", RATIO: "100", MEMORY: "80Gi"},
            "topology": place[minor // 2],
        }
        for minor in range(8)
    ]
    nets = [
        {
            "type": "rdma",
            "id": f"0000:{31 + s:02x}:00.0",
            "minor": s,
            "health": True,
            "resources": {RDMA: "100"},
            "topology": place[s],
            "vfGroups": [{"vfs": [{"minor": v, "busID": f"0000:{31 + s:02x}:00.{v + 2}"} for v in range(4)]}],
        }
        for s in range(4)
    ]
    return {"metadata": {"name": name}, "spec": {"devices": cards + nets}}


def _pod(i: int, cpu: str, asked: dict[str, str], annotations: dict[str, Any]) -> Pod:
    noted = {key: json.dumps(value) for key, value in annotations.items()}
    container = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": cpu, **asked}}}
    meta = {"name": f"pod-{i}", "namespace": "default", "uid": f"uid-{i}", "annotations": noted}
    return convert({"metadata": meta, "spec": {"containers": [container]}}, Pod)


def _engine(state: ClusterState, handle: Handle, *, devices: bool) -> SchedulingEngine:
    enabled = [{"name": DeviceShare.name}] if devices else []
    profile = {"schedulerName": "default-scheduler", "plugins": {"multiPoint": {"enabled": enabled}}}
    assembly = CompletedConfig.complete(convert({"profiles": [profile]}, KubeSchedulerConfiguration), REGISTRY)
    assert isinstance(assembly, CompletedConfig), assembly
    (made,) = assembly.make_profiles(handle)
    return SchedulingEngine(made, state, seed=1)


def _rate(engine: SchedulingEngine, state: ClusterState, infos: list[PodInfo]) -> float:
    attempts = []
    gc.collect()
    gc.freeze()
    started = time.process_time()
    for info in infos:
        attempt = engine.decide(info)
        state.assume(info, attempt.node_name)
        refused = run_reserve(attempt)
        assert refused is None, refused
        attempts.append(attempt)
    took = time.process_time() - started
    for attempt in attempts:
        run_unreserve(attempt)
        state.forget(attempt.pod.uid)
    return len(infos) / took


Made = Callable[[int], Pod]
_JOINT = {
    A_DEVICE_JOINT_ALLOCATE: {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"},
    A_DEVICE_ALLOCATE_HINT: {"rdma": {"vfSelector": {}}},
}
_PAIRS = {A_DEVICE_ALLOCATE_HINT: {"gpu": {"requiredTopologyScope": "PCIe"}}}
_CASES: dict[str, tuple[Made, int]] = {
    "equal_whole_cards": (lambda i: _pod(i, "1", {GPU: "100"}, {}), 2_000),
    "equal_shares": (lambda i: _pod(i, "1", {GPU: "25"}, {}), 2_000),
    "distinct_shares": (lambda i: _pod(i, "1", {CORE: str(1 + i % 97), MEMORY: str((i + 1) << 20)}, {}), 300),
    "distinct_whole_cards": (lambda i: _pod(i, f"{i + 1}m", {GPU: str(100 * (1 + i % 4))}, {}), 300),
    "distinct_pairs_on_a_switch": (lambda i: _pod(i, f"{i + 1}m", {GPU: "200"}, _PAIRS), 300),
    "distinct_with_network": (lambda i: _pod(i, f"{i + 1}m", {GPU: str(100 * (1 + i % 4)), RDMA: "1"}, _JOINT), 300),
}
_PLAIN: dict[str, tuple[Made, int]] = {
    "equal": (lambda i: _pod(i, "1", {}, {}), 2_000),
    "distinct": (lambda i: _pod(i, f"{i + 1}m", {}, {}), 300),
}


def _plain(
    engines: tuple[SchedulingEngine, SchedulingEngine], state: ClusterState
) -> Iterator[tuple[str, dict[str, float]]]:
    """Without and with the plugin, in turn, so that both meet the same machine."""
    for name, (made, count) in _PLAIN.items():
        infos = [state.pod_info(made(i)) for i in range(count)]
        rounds = [[_rate(engine, state, infos) for engine in engines] for _ in range(7)]
        kept = statistics.median(100 * with_it / without for without, with_it in rounds)
        yield name, {"decisions_per_second": max(round[1] for round in rounds), "kept_percent": kept}


async def _forty() -> float:
    """Seconds of wall time from the first creation until the last of them is seen bound."""
    cluster = EmbeddedCluster(ClusterSettings(http=False), [])
    await cluster.start()
    client = cluster.client
    assert client is not None
    unwrap(
        await client.create(NODE_KIND, {"metadata": {"name": "n"}, "status": {"allocatable": _ROOM, "capacity": _ROOM}})
    )
    unwrap(await client.create(DEVICES, _machine("n")))
    clock = WallClock()
    informers = InformerFactory(client, clock)
    enabled = {"multiPoint": {"enabled": [{"name": DeviceShare.name}]}}
    profile = {"schedulerName": "default-scheduler", "plugins": enabled}
    assembly = CompletedConfig.complete(convert({"profiles": [profile]}, KubeSchedulerConfiguration), REGISTRY)
    assert isinstance(assembly, CompletedConfig), assembly
    leading = StandaloneScheduler(Scheduler(client, informers, clock, assembly, seed=1))
    await leading.start()
    informers.start()
    await leading.scheduler.wait_synced()
    container = {"name": "c", "image": "app:1", "resources": {"requests": {GPU: "20"}, "limits": {GPU: "20"}}}
    started = time.perf_counter()
    for i in range(SHARES):
        meta = {"name": f"p-{i}", "namespace": "default"}
        unwrap(await client.create(PODS, {"metadata": meta, "spec": {"containers": [container]}}))
    while not all(pod.spec.node_name for pod in unwrap(await client.list(PODS)).items):  # noqa: ASYNC110 - it is watched
        await asyncio.sleep(0.005)
    took = time.perf_counter() - started
    await leading.stop()
    await informers.stop()
    await cluster.stop()
    return took


def run() -> dict[str, Any]:
    state = ClusterState()
    for i in range(NODES):
        state.set_node(convert({"metadata": {"name": f"n{i}"}, "status": {"allocatable": _ROOM}}, Node))
    handle = Handle(state)
    machines = [convert(_machine(f"n{i}"), Device) for i in range(NODES)]
    engines = _engine(state, handle, devices=False), _engine(state, handle, devices=True)
    started = time.process_time()
    for machine in machines:
        handle.devices.put(machine)  # type: ignore[arg-type]
    results: dict[str, Any] = {"nodes": NODES, "microseconds_per_device_object": 0.0}
    results["microseconds_per_device_object"] = 1e6 * (time.process_time() - started) / NODES
    results["decisions_per_second"] = {
        name: max(_rate(engines[1], state, [state.pod_info(made(i)) for i in range(count)]) for _ in range(ROUNDS))
        for name, (made, count) in _CASES.items()
    }
    results["plain_pods"] = dict(_plain(engines, state))
    results["forty_shares_of_one_node_seconds"] = min(asyncio.run(_forty()) for _ in range(ROUNDS))
    return results
