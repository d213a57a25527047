"""This module decides whether a pod could run on another node: selectors, taints, requests and cordons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.node_codecs import parse_raw_allocatable
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_resources import pod_requests, resource_amounts
from koord.descheduler.framework.snapshot import ClusterSnapshot
from koord.policy.node_match import find_untolerated_taint, matches_node_affinity
from koord.values.selector import Selector


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
