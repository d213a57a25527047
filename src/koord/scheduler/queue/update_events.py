"""Classify an update of a pod or a node into cluster events. Parts that no plugin can wait for make no event."""

from __future__ import annotations

from koord.api.kubernetes.node import Node
from koord.scheduler.cache.node_info import node_allocatable
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import UPDATE, ClusterEvent

_POD_CHANGED = ClusterEvent("Pod", UPDATE)


def pod_update_events(old: PodInfo, new: PodInfo) -> tuple[ClusterEvent, ...]:
    """Return the events of a pod update, as precise as possible; a change without a name of its own has no part."""
    parts = []
    if old.labels != new.labels:
        parts.append("labels")
    if any(new.requests.get(name, 0) < amount for name, amount in old.requests.items()):
        parts.append("scale-down")
    if old.gates and not new.gates:
        parts.append("gates")
    # Tolerations of a living pod can be added to, and nothing else.
    if len(old.shape.spec.tolerations) != len(new.shape.spec.tolerations):
        parts.append("tolerations")
    if old.claims != new.claims:
        parts.append("claims")
    return tuple(ClusterEvent("Pod", UPDATE, part) for part in parts) or (_POD_CHANGED,)


def may_open_gate(old: PodInfo, new: PodInfo) -> bool:
    """Return whether more than the pod's status and bookkeeping changed, so that a gate may have opened."""
    return (
        old.shape is not new.shape
        or old.labels != new.labels
        or old.annotations != new.annotations
        or old.gates != new.gates
        or old.claims != new.claims
        or old.deleting != new.deleting
    )


def node_update_events(old: Node, new: Node) -> tuple[ClusterEvent, ...]:
    """Return the events of a node update; empty when nothing changed that a pod could wait for, such as a heartbeat."""
    parts = []
    if old.spec.unschedulable and not new.spec.unschedulable:
        parts.append("unschedulable")
    if _may_change_allocatable(old, new) and node_allocatable(old) != node_allocatable(
        new
    ):  # "1" and "1000m" are the same amount
        parts.append("allocatable")
    if old.metadata.labels != new.metadata.labels:
        parts.append("labels")
    if old.spec.taints != new.spec.taints:
        parts.append("taints")
    if _conditions(old) != _conditions(new):
        parts.append("conditions")
    if old.metadata.annotations != new.metadata.annotations:
        parts.append("annotations")
    return tuple(ClusterEvent("Node", UPDATE, part) for part in parts)


def _may_change_allocatable(old: Node, new: Node) -> bool:
    """Return whether allocatable may differ; what a node keeps for the system is stated in an annotation."""
    return old.status.allocatable != new.status.allocatable or old.metadata.annotations != new.metadata.annotations


def _conditions(node: Node) -> dict[str, str]:
    return {condition.type: condition.status for condition in node.status.conditions}
