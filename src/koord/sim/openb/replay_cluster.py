"""The trace as a cluster without an API server: nodes with Device objects, and pods that request GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from koord.api.koordinator.protocol import L_GPU_MODEL
from koord.api.koordinator.resource_name import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from koord.api.koordinator.scheduling import Device
from koord.api.kubernetes.affinity import NodeSelectorRequirement
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.policy.node_match import required_node_selector
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.cache.pod_shape import PodShape
from koord.scheduler.framework.handle import SchedulerActions
from koord.sim.openb.trace import TraceNode, TracePod

SCHEDULER = "default-scheduler"
PODS_PER_NODE = 1001
_CARD_MEMORY = 16 << 30
_NAMESPACE = "openb"


class ReplayLister:
    """A lister that can be written to."""

    def __init__(self) -> None:
        self.version = 0
        self._held: dict[tuple[str, str], Any] = {}
        self._callbacks: list[Callable[[Any, Any], None]] = []

    def put(self, obj: Any) -> None:
        key = (obj.metadata.namespace, obj.metadata.name)
        old = self._held.get(key)
        self._held[key] = obj
        self.version += 1
        for callback in self._callbacks:
            callback(old, obj)

    def get(self, namespace: str, name: str) -> Any:
        return self._held.get((namespace, name))

    def list(self, namespace: str | None = None) -> Sequence[Any]:
        return [obj for key, obj in self._held.items() if namespace in (None, key[0])]

    def on_change(self, callback: Callable[[Any, Any], None]) -> None:
        self._callbacks.append(callback)
        for known in self._held.values():
            callback(None, known)


class ReplayCluster:
    """A cluster without an API server: the framework handle of its scheduler's plugins."""

    def __init__(self, nodes: Sequence[TraceNode]) -> None:
        self.state = ClusterState()
        self.actions = SchedulerActions()
        self._shelves: dict[str, ReplayLister] = {}
        devices = self.lister_of_kind("Device")
        for node in nodes:
            self.state.set_node(build_node(node))
            devices.put(build_device(node))

    def lister_of_kind(self, kind: str) -> ReplayLister:
        return self._shelves.setdefault(kind, ReplayLister())

    def lister(self, resource: Resource[Any]) -> Any:
        return self.lister_of_kind(resource.kind)

    def now(self) -> float:
        return 0.0


def build_node(node: TraceNode) -> Node:
    room = {"cpu": f"{node.cpu_milli}m", "memory": f"{node.memory_mib}Mi", "pods": str(PODS_PER_NODE)}
    if node.gpus:
        room |= {name: str(100 * node.gpus) for name in (GPU, GPU_CORE, GPU_MEMORY_RATIO)}
        room[GPU_MEMORY] = str(_CARD_MEMORY * node.gpus)
    labels = {L_GPU_MODEL: node.model} if node.model else {}
    return convert({"metadata": {"name": node.name, "labels": labels}, "status": {"allocatable": room}}, Node)


def build_device(node: TraceNode) -> Device:
    resources = {GPU_CORE: "100", GPU_MEMORY_RATIO: "100", GPU_MEMORY: str(_CARD_MEMORY)}
    cards = [
        {"type": "gpu", "id": f"{node.name}-{minor}", "minor": minor, "health": True, "resources": resources}
        for minor in range(node.gpus)
    ]
    labels = {L_GPU_MODEL: node.model} if node.model else {}
    return convert({"metadata": {"name": node.name, "labels": labels}, "spec": {"devices": cards}}, Device)


def build_pod(pod: TracePod, number: int) -> Pod:
    """Build the `number`-th pod to arrive: the same pod of the trace may come more than once."""
    asked = {"cpu": f"{pod.cpu_milli}m", "memory": f"{pod.memory_mib}Mi"}
    if pod.gpus:
        percent = str(pod.total_milli // 10)
        asked |= {GPU_CORE: percent, GPU_MEMORY_RATIO: percent}
    spec: dict[str, Any] = {"schedulerName": SCHEDULER}
    spec["containers"] = [{"name": "c", "resources": {"requests": asked}}]
    if pod.models:
        expression = {"key": L_GPU_MODEL, "operator": "In", "values": list(pod.models)}
        required = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    meta = {"name": f"{pod.name}-{number}", "namespace": _NAMESPACE, "uid": f"{pod.name}-{number}"}
    return convert({"metadata": meta, "spec": spec}, Pod)


def required_models(shape: PodShape) -> tuple[str, ...]:
    """Return the models that `build_pod` wrote into the required node affinity."""
    required = required_node_selector(shape.spec)
    terms = required.node_selector_terms if required is not None else ()
    found: list[NodeSelectorRequirement] = [one for term in terms for one in term.match_expressions]
    return tuple(value for one in found if one.key == L_GPU_MODEL for value in one.values)
