"""Define the cluster events that may make a rejected pod fit, and classify an update of a pod or a node into them.

Parts of an update that no plugin can wait for make no event.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koord.api.kubernetes.node import Node
from koord.scheduler.cache.node_info import node_allocatable
from koord.scheduler.cache.pod_info import PodInfo

# Kinds of events as plugins name them in `wakes_on`. An update of a Node or a Pod says which part changed.
ADD = "add"
UPDATE = "update"
DELETE = "delete"

# Parts of a Node and of a Pod whose change is told apart, with the names that Kubernetes' metrics have for them.
NODE_PARTS = {
    "allocatable": "UpdateNodeAllocatable",
    "labels": "UpdateNodeLabel",
    "taints": "UpdateNodeTaint",
    "unschedulable": "UpdateNodeTaint",  # only when it became schedulable
    "conditions": "UpdateNodeCondition",
    "annotations": "UpdateNodeAnnotation",
}
POD_PARTS = {
    "labels": "UpdatePodLabel",
    "scale-down": "UpdatePodScaleDown",  # some request became smaller
    "gates": "UpdatePodSchedulingGatesEliminated",  # the last scheduling gate is gone
    "tolerations": "UpdatePodToleration",
    "claims": "UpdatePodGeneratedResourceClaim",
}
_ACTION_NAMES = {ADD: "Add", UPDATE: "Update", DELETE: "Delete"}
_API_GROUPS = {
    "CSINode": "storage.k8s.io/",
    "CSIDriver": "storage.k8s.io/",
    "VolumeAttachment": "storage.k8s.io/",
    "CSIStorageCapacity": "storage.k8s.io/",
    "StorageClass": "storage.k8s.io/",
    "ResourceClaim": "resource.k8s.io/",
    "ResourceSlice": "resource.k8s.io/",
    "DeviceClass": "resource.k8s.io/",
}


class ClusterEvent(msgspec.Struct, frozen=True):
    """Name a kind and what happens to it, such as ("Node", "add"). An empty part matches every part of an update."""

    kind: str
    action: str
    part: str = ""  # a key of NODE_PARTS or POD_PARTS

    def covers(self, other: ClusterEvent) -> bool:
        """Return whether a plugin that registered this event is to hear of the other one."""
        return self.kind == other.kind and self.action == other.action and self.part in ("", other.part)


class ObjectEvent(msgspec.Struct, frozen=True):
    """Carry an event with its objects, for queueing hints that look closer.

    A Pod comes as PodInfo, placed or not; everything else as the object that the informer delivered. `old` is None
    after an add, `new` after a delete.
    """

    event: ClusterEvent
    old: Any = None
    new: Any = None

    @property
    def metric_label(self) -> str:
        """Return the event's name in Kubernetes' metrics."""
        kind, action, part = self.event.kind, self.event.action, self.event.part
        if kind == "Pod":
            waiting = self.new is not None and not self.new.node_name
            return f"{'UnschedulablePod' if waiting else 'AssignedPod'}{POD_PARTS.get(part) or _ACTION_NAMES[action]}"
        if kind == "Node":
            return f"Node{NODE_PARTS.get(part) or _ACTION_NAMES[action]}"
        return f"{_API_GROUPS.get(kind, '')}{kind}{_ACTION_NAMES[action]}"


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
