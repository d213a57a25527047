"""The cluster at one moment, as a round sees it, and whether a pod could run on another of its nodes (selectors,
taints, requests and cordons). Informers fill it in the program, listed objects in a dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.node_codecs import parse_raw_allocatable
from koord.api.koordinator.scheduling import PodMigrationJob
from koord.api.koordinator.slo import NodeMetric
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import pod_requests, resource_amounts
from koord.policy.node_match import find_untolerated_taint, matches_node_affinity
from koord.values.selector import Selector

TERMINAL_PHASES = ("Succeeded", "Failed")


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """The top controller of a pod: a Deployment rather than its ReplicaSet."""

    kind: str
    namespace: str
    name: str
    uid: str
    replicas: int  # asked for
    controller_uids: frozenset[str] = frozenset()  # uids that its pods name as their controller


class PodLookups(msgspec.Struct, frozen=True, kw_only=True):
    """Pod lookups that informer indexes already hold, so that a snapshot need not build its own."""

    by_node: Mapping[str, Sequence[Pod]]
    by_owner: Mapping[str, Sequence[Pod]]
    by_name: Mapping[tuple[str, str], Pod]


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The objects of one moment. `others` are objects of further kinds by plural name, as plugins requested them."""

    now_s: float
    nodes: Mapping[str, Node] = {}
    pods: Sequence[Pod] = ()
    metrics: Mapping[str, NodeMetric] = {}
    jobs: Sequence[PodMigrationJob] = ()
    workloads: Mapping[str, Workload] = {}  # by the uid that a pod names as its controller; absent: not found
    others: Mapping[str, Sequence[Any]] = {}
    lookups: PodLookups | None = None

    @cached_property
    def by_node(self) -> Mapping[str, Sequence[Pod]]:
        return self.lookups.by_node if self.lookups else _group_pods(self.pods, lambda pod: (pod.spec.node_name,))

    @cached_property
    def by_owner(self) -> Mapping[str, Sequence[Pod]]:
        """Return the pods by the uid of every owner."""
        return self.lookups.by_owner if self.lookups else _group_pods(self.pods, owner_uids)

    @cached_property
    def by_name(self) -> Mapping[tuple[str, str], Pod]:
        if self.lookups:
            return self.lookups.by_name
        return {(pod.metadata.namespace, pod.metadata.name): pod for pod in self.pods}

    @cached_property
    def _unavailable(self) -> dict[str, frozenset[str]]:
        return {}

    def unavailable_pod_uids(self, workload: Workload, owner: str) -> frozenset[str]:
        """Return the uids of the workload's pods that are not available; computed once per workload."""
        known = self._unavailable.get(workload.uid)
        if known is None:
            members = (pod for uid in workload.controller_uids or (owner,) for pod in self.by_owner.get(uid, ()))
            known = frozenset(pod.metadata.uid for pod in members if not is_available(pod))
            self._unavailable[workload.uid] = known
        return known

    def pods_on_node(self, node_name: str, *, ended: bool = False) -> list[Pod]:
        """Return the pods of a node, terminated ones only on request, by name so that equal clusters decide alike."""
        return sorted(self.iter_pods_on_node(node_name, ended=ended), key=namespaced_name)

    def iter_pods_on_node(self, node_name: str, *, ended: bool = False) -> Iterator[Pod]:
        """Iterate over the pods of a node in any order, for callers that only add up."""
        return (pod for pod in self.by_node.get(node_name, ()) if ended or pod.status.phase not in TERMINAL_PHASES)


def namespaced_name(pod: Pod) -> tuple[str, str]:
    return (pod.metadata.namespace, pod.metadata.name)


def owner_uids(pod: Pod) -> list[str]:
    return [owner.uid for owner in pod.metadata.owner_references]


def is_available(pod: Pod) -> bool:
    """Return whether a pod is active and ready."""
    if pod.status.phase in TERMINAL_PHASES or pod.metadata.deletion_timestamp is not None:
        return False
    return any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)


def _group_pods(pods: Iterable[Pod], keys: Callable[[Pod], Iterable[str]]) -> Mapping[str, Sequence[Pod]]:
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        for key in keys(pod):
            found.setdefault(key, []).append(pod)
    return found


def raw_allocatable(node: Node) -> Mapping[str, int]:
    """Return the allocatable before amplification where the node's annotation states it readably, else its status.

    Amounts are milli-units for cpu and units for all else.
    """
    stated = parse_raw_allocatable(node.metadata.annotations)
    if stated is None or isinstance(stated, MalformedAnnotation):
        return allocatable(node)  # not readable is the same as not said: status.allocatable stands
    return resource_amounts(stated)


def allocatable(node: Node) -> Mapping[str, int]:
    return resource_amounts(node.status.allocatable)


def placement_misfits(pod: Pod, node: Node) -> list[str]:
    """Return why the node does not take the pod, however much of it is free."""
    reasons = []
    if not matches_node_affinity(pod.spec, node):
        reasons.append("pod node selector does not match the node label")
    if find_untolerated_taint(pod.spec.tolerations, node.spec.taints) is not None:
        reasons.append("pod does not tolerate taints on the node")
    if node.spec.unschedulable:
        reasons.append("node is not schedulable")
    return reasons


class NodeFitChecker:
    """Checks pods of one snapshot against nodes. The free resources of a node are computed once."""

    def __init__(self, snapshot: ClusterSnapshot) -> None:
        self._snapshot = snapshot
        self._free: dict[str, dict[str, int]] = {}
        self._requests: dict[str, Mapping[str, int]] = {}

    def requests(self, pod: Pod) -> Mapping[str, int]:
        uid = pod.metadata.uid
        known = self._requests.get(uid)
        if known is None:
            known = self._requests[uid] = pod_requests(pod.spec, pod.status)
        return known

    def free(self, node: Node) -> dict[str, int]:
        """Return the node's allocatable less the requests of its pods."""
        name = node.metadata.name
        known = self._free.get(name)
        if known is None:
            known = dict(allocatable(node))
            for pod in self._snapshot.iter_pods_on_node(name):
                for resource, amount in self.requests(pod).items():
                    known[resource] = known.get(resource, 0) - amount
            self._free[name] = known
        return known

    def fits(self, pod: Pod, node: Node) -> bool:
        # The cheap questions first: this is asked of thousands of pairs. The number of pods is no request.
        if node.spec.unschedulable:
            return False
        free = self.free(node)
        if any(amount > free.get(name, 0) for name, amount in self.requests(pod).items()):
            return False
        if find_untolerated_taint(pod.spec.tolerations, node.spec.taints) is not None:
            return False
        return matches_node_affinity(pod.spec, node)

    def first_other_fit(self, pod: Pod, nodes: Iterable[Node]) -> Node | None:
        """Return the first node other than the pod's own that fits."""
        here = pod.spec.node_name
        return next((node for node in nodes if node.metadata.name != here and self.fits(pod, node)), None)

    def first_fit(self, pod: Pod, nodes: Iterable[Node]) -> Node | None:
        """Return the first node that fits, the pod's own included."""
        return next((node for node in nodes if self.fits(pod, node)), None)


class OtherNodeFitChecker:
    """Checks whether a pod fits another of the selected nodes of one snapshot."""

    def __init__(self, snapshot: ClusterSnapshot, chosen: Selector) -> None:
        self.snapshot = snapshot
        self._nodes = [node for node in snapshot.nodes.values() if chosen.matches(node.metadata.labels)]
        self._fit_checker = NodeFitChecker(snapshot)

    def fits(self, pod: Pod) -> bool:
        return self._fit_checker.first_other_fit(pod, self._nodes) is not None
