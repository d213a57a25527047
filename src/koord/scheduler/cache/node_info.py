"""Represent a node with the pods on it: the exact, per-node side of the cluster state.

Allocatable is read under current resource names and without what an annotation keeps for the system. The columns of the
node table mirror the sums kept here.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from koord.api.annotations import node_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import A_NODE_RESERVATION
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, CPU
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.scheduler.cache.pod_info import HostPort, PodInfo
from koord.scheduler.cache.pod_model import with_current_resource_names
from koord.values.cpuset import CPUSet, CPUSetError
from koord.values.resources import parse, to_units

_ALREADY_REDUCED = (BATCH_CPU, BATCH_MEMORY)  # the manager has taken the reserved part off these already


def node_allocatable(node: Node) -> dict[str, int]:
    found = dict(with_current_resource_names(resource_amounts(node.status.allocatable)))
    text = node.metadata.annotations.get(A_NODE_RESERVATION) if node.metadata.annotations else None
    if text is not None:
        for name, kept in _reserved_for_system(text):
            if name in found and name not in _ALREADY_REDUCED:
                found[name] = max(found[name] - kept, 0)
    return found


@lru_cache(maxsize=1024)
def _reserved_for_system(text: str) -> tuple[tuple[str, int], ...]:
    """Return what the annotation keeps for the system; nothing if it cannot be read: a node must not shrink then."""
    given = node_codecs.parse_node_reservation({A_NODE_RESERVATION: text})
    if given is None or isinstance(given, MalformedAnnotation) or not given.trims_allocatable:
        return ()
    kept = to_units(parse(given.resources))
    if given.reserved_cpus:
        try:
            kept[CPU] = 1000 * len(CPUSet.parse(given.reserved_cpus))
        except CPUSetError:
            return ()
    return tuple(kept.items())


PODS_RESOURCE = "pods"
_NO_LABELS: Mapping[str, str] = {}


class NodeInfo:
    """Hold one node, its pods and their sums. Only the owning cluster state changes it; dry runs work on a `copy`."""

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
        self.allocatable = node_allocatable(node) if node else {}
        self.allowed_pods = self.allocatable.pop(PODS_RESOURCE, 0)

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
