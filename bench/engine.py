"""The engine alone, default profile, one core: decisions with their promises, no API server, no queue.

Equal pods share one class; distinct ones differ in what they ask for, so each is judged on every node anew. Then the
same with a hundred times as many pods running that have nothing to do with them, and on larger clusters, with the
memory that the state and the results of a few classes take.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.kubernetes.node import Node
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration.completed_config import CompletedConfig, ValidationHandle
from koord.scheduler.framework.decision import ChosenNode
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.plugins.registry import REGISTRY

NODES = 5_000
# nodes -> equal pods and distinct pods to decide
LARGE = {20_000: (5_000, 600), 100_000: (1_000, 50)}


def _node(i: int) -> Node:
    allocatable = {"cpu": "64", "memory": "256Gi", "pods": "250", "ephemeral-storage": "200Gi"}
    labels = {"kubernetes.io/hostname": f"node-{i}", "topology.kubernetes.io/zone": f"zone-{i % 3}"}
    body = {"metadata": {"name": f"node-{i}", "labels": labels}, "status": {"allocatable": allocatable}}
    return convert(body, Node)


def _pod(i: int, cpu: str, labels: dict[str, str], node: str = "") -> Pod:
    container = {"name": "c", "image": "app:1", "resources": {"requests": {"cpu": cpu, "memory": "256Mi"}}}
    meta = {"name": f"pod-{i}", "namespace": "default", "uid": f"uid-{node}-{i}", "labels": labels}
    return convert({"metadata": meta, "spec": {"containers": [container], "nodeName": node}}, Pod)


def _engine(state: ClusterState) -> SchedulingEngine:
    assembly = CompletedConfig.complete(KubeSchedulerConfiguration(), REGISTRY)
    assert isinstance(assembly, CompletedConfig), assembly
    handle = ValidationHandle()
    handle.state = state
    (profile,) = assembly.make_profiles(handle)
    return SchedulingEngine(profile, state, seed=1)


def _drained(engine: SchedulingEngine, state: ClusterState, pods: Iterator[Pod], count: int) -> float:
    infos = [state.pod_info(pod) for pod, _ in zip(pods, range(count), strict=False)]
    gc.collect()
    gc.freeze()
    started = time.process_time()
    for info in infos:
        decision = engine.decide(info).decision
        assert isinstance(decision, ChosenNode), decision
        state.assume(info, decision.node)
    took = time.process_time() - started
    for info in infos:
        state.forget(info.uid)
    return count / took


def _equal() -> Iterator[Pod]:
    i = 0
    while True:
        yield _pod(i, "100m", {"app": "equal"})
        i += 1


def _distinct() -> Iterator[Pod]:
    i = 0
    while True:
        yield _pod(i, f"{100 + i}m", {"app": f"app-{i}"})
        i += 1


def _same_spec() -> Iterator[Pod]:
    """One spec, but labels of their own: pods of many small services."""
    i = 0
    while True:
        yield _pod(i, "100m", {"app": f"app-{i}"})
        i += 1


def _cluster(running: int, nodes: int = NODES) -> ClusterState:
    state = ClusterState()
    for i in range(nodes):
        state.set_node(_node(i))
    for i in range(running):
        state.set_pod(_pod(i, "50m", {"app": f"old-{i % 500}"}, f"node-{i % nodes}"))
    return state


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def _large(nodes: int, equal: int, distinct: int) -> dict[str, Any]:
    """Decide on a larger cluster with one running pod a node."""
    before = _resident_bytes()
    state = _cluster(nodes, nodes)
    held = _resident_bytes()
    found: dict[str, Any] = {"state_bytes_per_node": (held - before) / nodes}
    for name, pods, count in (("equal", _equal, equal), ("distinct", _distinct, distinct)):
        engine = _engine(state)
        found[name] = {
            "decisions_per_second": _drained(engine, state, pods(), count),
            "engine_bytes_per_node": (_resident_bytes() - held) / nodes,
        }
        for _ in range(2):
            again = _drained(_engine(state), state, pods(), count)
            found[name]["decisions_per_second"] = max(found[name]["decisions_per_second"], again)
    return found


def run() -> dict[str, Any]:
    large = {}
    for nodes, counts in LARGE.items():
        with ProcessPoolExecutor(1, get_context("spawn")) as process:  # one each, so that no memory is used again
            large[f"{nodes}_nodes"] = process.submit(_large, nodes, *counts).result()
    empty, busy = _cluster(500), _cluster(50_000)
    results: dict[str, Any] = {"nodes": NODES}
    for name, pods, count in (
        ("equal", _equal, 20_000),
        ("distinct", _distinct, 3_000),
        ("own_labels", _same_spec, 5_000),
    ):
        plain = max(_drained(_engine(empty), empty, pods(), count) for _ in range(3))
        crowded = max(_drained(_engine(busy), busy, pods(), count) for _ in range(3))
        results[name] = {
            "decisions_per_second": plain,
            "with_100x_unrelated_pods": crowded,
            "slower_percent": 100 * (plain / crowded - 1),
        }
    return {**results, "large": large}
