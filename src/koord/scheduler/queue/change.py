"""Classify an update of a pod or a node into cluster events. Parts that no plugin can wait for make no event."""

from __future__ import annotations

from koord.api.node import Node
from koord.scheduler.framework.event import UPDATE, Event
from koord.scheduler.state.allocatable import allocatable
from koord.scheduler.state.pod import PodInfo

_POD_CHANGED = Event("Pod", UPDATE)


def pod_changes(old: PodInfo, new: PodInfo) -> tuple[Event, ...]:
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
    return tuple(Event("Pod", UPDATE, part) for part in parts) or (_POD_CHANGED,)


def differs(old: PodInfo, new: PodInfo) -> bool:
    """Return whether more than the pod's status and bookkeeping changed, so that a gate may have opened."""
    return (
        old.shape is not new.shape
        or old.labels != new.labels
        or old.annotations != new.annotations
        or old.gates != new.gates
        or old.claims != new.claims
        or old.deleting != new.deleting
    )


def node_changes(old: Node, new: Node) -> tuple[Event, ...]:
    """Return the events of a node update; empty when nothing changed that a pod could wait for, such as a heartbeat."""
    parts = []
    if old.spec.unschedulable and not new.spec.unschedulable:
        parts.append("unschedulable")
    if _may_hold_other(old, new) and allocatable(old) != allocatable(new):  # "1" and "1000m" are the same amount
        parts.append("allocatable")
    if old.metadata.labels != new.metadata.labels:
        parts.append("labels")
    if old.spec.taints != new.spec.taints:
        parts.append("taints")
    if _conditions(old) != _conditions(new):
        parts.append("conditions")
    if old.metadata.annotations != new.metadata.annotations:
        parts.append("annotations")
    return tuple(Event("Node", UPDATE, part) for part in parts)


def _may_hold_other(old: Node, new: Node) -> bool:
    """Return whether allocatable may differ; what a node keeps for the system is stated in an annotation."""
    return old.status.allocatable != new.status.allocatable or old.metadata.annotations != new.metadata.annotations


def _conditions(node: Node) -> dict[str, str]:
    return {condition.type: condition.status for condition in node.status.conditions}
