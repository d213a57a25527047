"""Define the cluster events that may make a rejected pod fit."""

from __future__ import annotations

from typing import Any

import msgspec

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
