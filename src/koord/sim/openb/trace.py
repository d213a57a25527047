"""The published openb trace: nodes, pods, arrival orders and published results, and the cluster that they make without
an API server: nodes with Device objects, and pods that request GPUs.

The files are not part of koord; whatever is missing or wrong is reported in a sentence.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from koord.api.koordinator.protocol import L_GPU_MODEL
from koord.api.koordinator.resource_name import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from koord.api.koordinator.scheduling import Device
from koord.api.kubernetes.affinity import NodeSelectorRequirement
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.resource import Resource
from koord.api.model import convert
from koord.policy.node_match import required_node_selector
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodShape
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.framework.handle import SchedulerActions
from koord.scheduler.plugins.fragmentation_aware.fragmentation import GpuPodShape

NODES = "openb_node_list_gpu_node.csv"
PODS = "openb_pod_list_{variant}.csv"
ORDER = "orders/order_{variant}_seed{seed}.json"
ALLOCATION = "published_analysis_allo_discrete.csv"
TUNED_PERCENT = 130  # of the capacity of all cards: how much the pods that arrive ask for
SOURCE = "cluster-trace-gpu-v2023 of github.com/alibaba/clusterdata"


class TraceError(Exception):
    """A trace file is missing, or not what it should be."""


class TraceNode(msgspec.Struct, frozen=True):
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class TracePod(msgspec.Struct, frozen=True):
    """A pod of the trace. `gpu_milli` is of each card."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    models: tuple[str, ...] = ()

    @property
    def total_milli(self) -> int:
        return self.gpus * self.gpu_milli

    @property
    def shape(self) -> GpuPodShape:
        return GpuPodShape(self.cpu_milli, self.gpu_milli if self.gpus else 0, self.gpus, "|".join(self.models))


class OpenbTrace(msgspec.Struct, frozen=True):
    """Nodes and pods, both sorted by name, as orders count them."""

    variant: str
    nodes: tuple[TraceNode, ...]
    pods: tuple[TracePod, ...]

    @property
    def capacity_milli(self) -> int:
        return 1000 * sum(node.gpus for node in self.nodes)


class ArrivalOrder(msgspec.Struct, frozen=True):
    """An arrival order. `pods`: which arrives next, by index; `node_rank`: of each node, the lowest wins a tie."""

    seed: int
    pods: Sequence[int]
    node_rank: Sequence[int]
    published: bool = False  # the very order of the published run


def read_trace(folder: Path, variant: str) -> OpenbTrace:
    nodes = [
        TraceNode(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
        for row in _rows(folder / NODES, ("sn", "cpu_milli", "memory_mib", "gpu", "model"))
    ]
    columns = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
    pods = [_pod(row) for row in _rows(folder / PODS.format(variant=variant), columns)]
    by_name = lambda one: one.name  # noqa: E731
    return OpenbTrace(variant, tuple(sorted(nodes, key=by_name)), tuple(sorted(pods, key=by_name)))


def _pod(row: dict[str, str]) -> TracePod:
    """Read a pod. A list of five columns, as some variants have it, names no models."""
    spec = row.get("gpu_spec") or ""
    return TracePod(
        row["name"],
        int(row["cpu_milli"]),
        int(row["memory_mib"]),
        int(row["num_gpu"]),
        int(row["gpu_milli"]),
        tuple(spec.split("|")) if spec else (),
    )


def read_order(folder: Path, trace: OpenbTrace, seed: int) -> ArrivalOrder:
    """Return the published order where there is a file of it, otherwise a random one by the same rules."""
    path = folder / ORDER.format(variant=trace.variant, seed=seed)
    if not path.exists():
        return random_order(trace, seed)
    try:
        found = msgspec.convert({**json.loads(path.read_text()), "seed": seed}, _OrderFile)
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: {error}") from error
    if max(found.pods, default=0) >= len(trace.pods) or len(found.node_rank) != len(trace.nodes):
        raise TraceError(f"{path}: is the order of another trace: it counts other pods or nodes")
    return ArrivalOrder(seed, found.pods, found.node_rank, published=True)


class _OrderFile(msgspec.Struct):
    pods: list[int]
    node_rank: list[int]


def random_order(trace: OpenbTrace, seed: int, percent: int = TUNED_PERCENT) -> ArrivalOrder:
    """Draw an order: all pods once in any order, then more at random until they request `percent` of all cards.

    Where they request more to begin with, some are left out.
    """
    chance = np.random.default_rng(seed)
    most = percent * trace.capacity_milli // 100
    pods: list[int] = chance.permutation(len(trace.pods)).tolist()
    total = sum(pod.total_milli for pod in trace.pods)
    while total > most:
        total -= trace.pods[pods.pop(int(chance.integers(len(pods))))].total_milli
    if trace.pods and any(pod.total_milli for pod in trace.pods):
        while True:
            drawn = int(chance.integers(len(trace.pods)))
            if total + trace.pods[drawn].gpu_milli > most:
                break
            pods.append(drawn)
            total += trace.pods[drawn].total_milli
    return ArrivalOrder(seed, pods, chance.permutation(len(trace.nodes)).tolist())


def read_published(folder: Path, variant: str, policy: str, seed: int) -> dict[int, float]:
    """Return allocation in percent by load in percent, of one published run; empty when there is none."""
    path = folder / ALLOCATION
    if not path.exists():
        return {}
    for row in _rows(path, ("workload", "sc_policy", "seed")):
        if (
            row["workload"] == f"openb_pod_list_{variant}"
            and row["sc_policy"].partition("-")[2] == policy
            and row["seed"] == str(seed)
        ):
            return {int(name): float(value) for name, value in row.items() if name.isdigit() and value}
    return {}


def variants_in(folder: Path) -> list[str]:
    prefix, suffix = PODS.split("{variant}")
    return sorted(path.name[len(prefix) : -len(suffix)] for path in folder.glob(prefix + "*" + suffix))


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, Any]]:
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        there = variants_in(path.parent)
        hint = f"the variants there are {', '.join(there)}" if there else f"it comes with {SOURCE}"
        raise TraceError(f"{path} is not there; {hint}") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    missing = [name for name in columns if not rows or name not in rows[0]]
    if missing:
        raise TraceError(f"{path}: has no column {', '.join(missing)}, or no rows")
    return rows


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
