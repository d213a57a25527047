"""Represent a node with the pods on it."""

from __future__ import annotations

from collections.abc import Mapping

from koord.api.node import Node
from koord.scheduler.state.allocatable import allocatable
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.shape import HostPort

PODS = "pods"
_NO_LABELS: Mapping[str, str] = {}


class NodeInfo:
    """Hold one node, its pods and their sums. Only the cluster state that owns it changes it; dry runs work on a
    `copy`.
    """

    __slots__ = (
        "allocatable",
        "allowed_pods",
        "name",
        "node",
        "nonzero_cpu",
        "nonzero_memory",
        "pods",
        "ports",
        "requested",
        "row",
    )

    def __init__(self, name: str, row: int) -> None:
        self.name = name
        self.row = row
        self.node: Node | None = None  # None: pods are bound to it, but the node itself is not (or no longer) known
        self.allocatable: dict[str, int] = {}
        self.allowed_pods = 0
        self.pods: dict[str, PodInfo] = {}  # by uid
        self.requested: dict[str, int] = {}
        self.nonzero_cpu = 0
        self.nonzero_memory = 0
        self.ports: dict[HostPort, int] = {}  # host port -> pods that hold it

    def set_node(self, node: Node | None) -> None:
        self.node = node
        self.allocatable = allocatable(node) if node else {}
        self.allowed_pods = self.allocatable.pop(PODS, 0)

    @property
    def labels(self) -> Mapping[str, str]:
        return self.node.metadata.labels if self.node is not None else _NO_LABELS

    def add(self, pod: PodInfo) -> None:
        self.pods[pod.uid] = pod
        self._count(pod, 1)

    def remove(self, uid: str) -> PodInfo | None:
        pod = self.pods.pop(uid, None)
        if pod is not None:
            self._count(pod, -1)
        return pod

    def _count(self, pod: PodInfo, sign: int) -> None:
        held = pod.held
        requests = pod.requests if held is None else held.requests
        for name, amount in requests.items():
            left = self.requested.get(name, 0) + sign * amount
            if left:
                self.requested[name] = left
            else:
                self.requested.pop(name, None)
        counted = pod.shape if held is None else held
        self.nonzero_cpu += sign * counted.nonzero_cpu
        self.nonzero_memory += sign * counted.nonzero_memory
        for port in pod.shape.host_ports:
            holders = self.ports.get(port, 0) + sign
            if holders:
                self.ports[port] = holders
            else:
                self.ports.pop(port, None)

    def copy(self) -> NodeInfo:
        other = NodeInfo(self.name, self.row)
        other.node = self.node
        other.allocatable = self.allocatable
        other.allowed_pods = self.allowed_pods
        other.pods = dict(self.pods)
        other.requested = dict(self.requested)
        other.nonzero_cpu = self.nonzero_cpu
        other.nonzero_memory = self.nonzero_memory
        other.ports = dict(self.ports)
        return other

    def __repr__(self) -> str:
        return f"NodeInfo({self.name}, {len(self.pods)} pods)"
