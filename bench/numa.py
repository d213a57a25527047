"""CPUs and NUMA nodes from the engine alone, one core: LSR pods on 1,000 nodes of 128 CPUs, decided and promised.

`distinct` pods differ in what they ask for, so each is judged on every node anew; `single_numa_node` is the same on
nodes whose policy wants each pod within one NUMA node. Then pods that ask for none of it, on 5,000 nodes: Kubernetes'
default plugins without this one and with it.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.koordinator import custom_kinds
from koord.api.koordinator.sigs_scheduling import NodeResourceTopology
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration.completed_config import CompletedConfig, EmptyLister, ValidationHandle
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.runtime import run_reserve, run_unreserve
from koord.scheduler.plugins.registry import REGISTRY

NODES, CPUS, ZONES = 1_000, 128, 2
PLAIN_NODES = 5_000
ROUNDS = 9
_DETAIL = [{"id": n, "core": n // 2, "socket": n // 64, "node": n // 64} for n in range(CPUS)]


class Machines(EmptyLister[NodeResourceTopology]):
    def __init__(self, names: list[str]) -> None:
        self._held = {name: _topology(name) for name in names}

    def get(self, namespace: str, name: str) -> NodeResourceTopology | None:
        return self._held.get(name)


class Shown(ValidationHandle):
    def __init__(self, state: ClusterState, machines: Machines) -> None:
        super().__init__()
        self.state = state
        self._machines = machines

    def lister(self, resource: Resource[Any]) -> Any:
        return self._machines if resource is custom_kinds.NODE_RESOURCE_TOPOLOGIES else EmptyLister()


def _topology(name: str) -> NodeResourceTopology:
    room = {"cpu": str(CPUS // ZONES), "memory": "256Gi"}
    listed = [{"name": n, "capacity": v, "allocatable": v, "available": v} for n, v in room.items()]
    zones = [{"name": f"node-{n}", "type": "Node", "resources": listed} for n in range(ZONES)]
    written = {"node.koordinator.sh/cpu-topology": json.dumps({"detail": _DETAIL})}
    body = {"metadata": {"name": name, "annotations": written}, "topologyPolicies": ["None"], "zones": zones}
    return convert(body, NodeResourceTopology)


def _node(i: int, policy: str) -> Node:
    room = {"cpu": str(CPUS), "memory": "512Gi", "pods": "250"}
    labels = {"node.koordinator.sh/numa-topology-policy": policy} if policy else {}
    return convert({"metadata": {"name": f"node-{i}", "labels": labels}, "status": {"allocatable": room}}, Node)


def _pod(i: int, cpu: str, memory: str, qos: str, spec: str = "") -> Pod:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}}
    labels = {"koordinator.sh/qosClass": qos, "koordinator.sh/priority-class": "koord-prod"} if qos else {}
    written = {"scheduling.koordinator.sh/resource-spec": spec} if spec else {}
    meta = {"name": f"p-{i}", "namespace": "default", "uid": f"uid-{i}", "labels": labels, "annotations": written}
    return convert({"metadata": meta, "spec": {"containers": [container]}}, Pod)


def _distinct() -> Iterator[Pod]:
    i = 0
    while True:
        yield _pod(i, str(2 + 2 * (i % 4)), f"{256 + i}Mi", "LSR")
        i += 1


def _required() -> Iterator[Pod]:
    i = 0
    while True:
        yield _pod(i, str(2 + 2 * (i % 4)), f"{256 + i}Mi", "LSR", '{"requiredCPUBindPolicy":"FullPCPUs"}')
        i += 1


def _equal() -> Iterator[Pod]:
    i = 0
    while True:
        yield _pod(i, "4", "1Gi", "LSR")
        i += 1


def _plain_distinct() -> Iterator[Pod]:
    i = 0
    while True:
        yield _pod(i, f"{100 + i}m", "256Mi", "")
        i += 1


def _plain_equal() -> Iterator[Pod]:
    i = 0
    while True:
        yield _pod(i, "100m", "256Mi", "")
        i += 1


def _profile(handle: Shown, *, numa: bool) -> SchedulerProfile:
    """Kubernetes' default plugins, and this one beside them."""
    plugins = {"multiPoint": {"enabled": [{"name": "NodeNUMAResource"}] if numa else []}}
    config = convert(
        {"profiles": [{"schedulerName": "default-scheduler", "plugins": plugins}]}, KubeSchedulerConfiguration
    )
    assembly = CompletedConfig.complete(config, REGISTRY)
    assert isinstance(assembly, CompletedConfig), assembly
    (profile,) = assembly.make_profiles(handle)
    return profile


class Side:
    """An engine over its own cluster."""

    def __init__(self, nodes: int, *, policy: str = "", numa: bool = True) -> None:
        self.state = ClusterState()
        handle = Shown(self.state, Machines([f"node-{i}" for i in range(nodes)]))
        for i in range(nodes):
            self.state.set_node(_node(i, policy))
        self._profile = _profile(handle, numa=numa)
        self._engine = SchedulingEngine(self._profile, self.state, seed=1)

    def took(self, pods: Callable[[], Iterator[Pod]], count: int) -> float:
        """Seconds of deciding and promising so many pods, each finding what those before it left."""
        state, engine = self.state, self._engine
        infos = [state.pod_info(pod) for pod, _ in zip(pods(), range(count), strict=False)]
        engine.decide(infos[0])  # what is read of every node once is no cost of a pod
        gc.collect()
        gc.freeze()
        bound = []
        started = time.process_time()
        for info in infos:
            attempt = engine.decide(info)
            state.assume(info, attempt.node_name)
            refused = run_reserve(attempt)
            assert refused is None, refused
            bound.append(attempt)
        took = time.process_time() - started
        for attempt in bound:
            run_unreserve(attempt)
            state.forget(attempt.pod.uid)
        return took


def _rate(pods: Callable[[], Iterator[Pod]], count: int, policy: str = "") -> float:
    side = Side(NODES, policy=policy)
    return count / min(side.took(pods, count) for _ in range(2))


def _compared(without: Side, with_it: Side, pods: Callable[[], Iterator[Pod]], count: int) -> dict[str, Any]:
    """In turn, so that both meet the same machine. The rates are the best of each; what is kept is the median round."""
    rounds = [(without.took(pods, count), with_it.took(pods, count)) for _ in range(ROUNDS)]
    best = [count / min(column) for column in zip(*rounds, strict=True)]
    return {
        "without": best[0],
        "with": best[1],
        "kept_percent": statistics.median(100 * plain / ours for plain, ours in rounds),
    }


def run() -> dict[str, Any]:
    results: dict[str, Any] = {"nodes": NODES, "cpus_per_node": CPUS, "numa_nodes": ZONES}
    results["lsr_decisions_per_second"] = {
        "equal": _rate(_equal, 2_000),
        "distinct": _rate(_distinct, 1_000),
        "distinct_required_full_cores": _rate(_required, 1_000),
        "distinct_single_numa_node": _rate(_distinct, 500, "SingleNUMANode"),
    }
    without, with_it = Side(PLAIN_NODES, numa=False), Side(PLAIN_NODES)
    results["plain_pods"] = {
        "nodes": PLAIN_NODES,
        "equal": _compared(without, with_it, _plain_equal, 2_000),
        "distinct": _compared(without, with_it, _plain_distinct, 200),
    }
    return results
