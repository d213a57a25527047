"""NodeVolumeLimits rejects nodes that cannot have more volumes of a CSI driver attached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import ClassVar

import msgspec

from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.kubernetes.volume import CSINode, PersistentVolumeClaim
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import CLUSTER, SKIP, Fault, PreFilterResult, Reject, Skip, reject, unresolvable
from koord.scheduler.plugins.volumes import pod_volumes


class CsiVolume(msgspec.Struct, frozen=True):
    """A volume as its driver knows it. One that does not exist yet is identified by its claim."""

    driver: str
    handle: str
    claim: str = ""


class VolumeAttachments:
    """Finds the CSI volumes behind claims, and those attached to nodes according to VolumeAttachments."""

    def __init__(self, handle: Handle) -> None:
        self._claims = handle.lister(builtin_kinds.PERSISTENT_VOLUME_CLAIMS)
        self._volumes = handle.lister(builtin_kinds.PERSISTENT_VOLUMES)
        self._classes = handle.lister(builtin_kinds.STORAGE_CLASSES)
        self._attachments = handle.lister(builtin_kinds.VOLUME_ATTACHMENTS)
        self._by_node: dict[str, set[CsiVolume]] = {}
        self._read: Hashable = None

    @property
    def version(self) -> Hashable:
        """Return a value that changes with everything that is read here."""
        return self._claims.version, self._volumes.version, self._classes.version, self._attachments.version

    def volumes_to_attach(self, pod: PodInfo) -> frozenset[CsiVolume] | str:
        """Return the volumes that a new pod needs attached, or a message if one of its claims cannot be used."""
        found: set[CsiVolume] = set()
        for mention in pod_volumes.claim_references(pod):
            if not mention.claim:
                return "PersistentVolumeClaim had no name"
            claim = self._claims.get(pod.namespace, mention.claim)
            if claim is None:
                known = pod_volumes.not_found_message(pod_volumes.CLAIM_KIND, mention.claim)
                return f"looking up PVC {pod.namespace}/{mention.claim}: {known}"
            if mention.ephemeral and not pod_volumes.is_owned_by_pod(claim, pod):
                return pod_volumes.not_owner_message(claim, pod)
            found |= self._volume_of_claim(claim)
        return frozenset(found)

    def volumes_of_placed_pod(self, pod: PodInfo) -> set[CsiVolume]:
        """Return the volumes that a placed pod has attached. Claims that are gone, or not its own, do not count."""
        found: set[CsiVolume] = set()
        for mention in pod_volumes.claim_references(pod):
            claim = self._claims.get(pod.namespace, mention.claim)
            if claim is not None and not (mention.ephemeral and not pod_volumes.is_owned_by_pod(claim, pod)):
                found |= self._volume_of_claim(claim)
        return found

    def attached_to_node(self, node: str) -> set[CsiVolume]:
        """Return the volumes that are attached to the node, whether a pod needs them or not."""
        now = (self._attachments.version, self._volumes.version)
        if self._read != now:
            self._by_node, self._read = self._read_attachments(), now
        return self._by_node.get(node, set())

    def _read_attachments(self) -> dict[str, set[CsiVolume]]:
        found: dict[str, set[CsiVolume]] = {}
        for each in self._attachments.list():
            name = each.spec.source.persistent_volume_name
            volume = self._volumes.get("", name) if name is not None and each.spec.attacher else None
            if volume is not None and volume.spec.csi is not None:
                there = found.setdefault(each.spec.node_name, set())
                there.add(CsiVolume(each.spec.attacher, volume.spec.csi.volume_handle))
        return found

    def _volume_of_claim(self, claim: PersistentVolumeClaim) -> set[CsiVolume]:
        """Return at most one volume: none for volumes that no CSI driver attaches."""
        name = claim.spec.volume_name
        volume = self._volumes.get("", name) if name else None
        if volume is not None:
            csi = volume.spec.csi
            return {CsiVolume(csi.driver, csi.volume_handle)} if csi and csi.driver and csi.volume_handle else set()
        storage_class = self._classes.get("", pod_volumes.storage_class_of(claim))
        if storage_class is None or not storage_class.provisioner:
            return set()
        return {CsiVolume(storage_class.provisioner, "", f"{claim.metadata.namespace}/{claim.metadata.name}")}


_MAX_VOLUME_COUNT = reject("node(s) exceed max volume count")


class NodeVolumeLimits(Plugin):
    name = "NodeVolumeLimits"
    scope = CLUSTER
    wakes_on = (
        ClusterEvent("CSINode", ADD),
        ClusterEvent("CSINode", UPDATE),
        ClusterEvent("Pod", DELETE),
        ClusterEvent("PersistentVolumeClaim", ADD),
        ClusterEvent("VolumeAttachment", DELETE),
    )

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("storage.k8s.io", ("csinodes", "storageclasses", "volumeattachments"), READ_VERBS),
    )

    def __init__(self, handle: Handle) -> None:
        self._attachments = VolumeAttachments(handle)
        self._nodes = handle.lister(builtin_kinds.CSI_NODES)
        self._limits: dict[str, dict[str, int]] = {}  # by node, then driver
        self._read = -1

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        kind, old, new = object_event.event.kind, object_event.old, object_event.new
        if kind == "CSINode":
            return old is None or _is_limit_raised(old, new)
        if kind == "PersistentVolumeClaim":
            return pod_volumes.uses_claim(pod, new)
        if kind == "VolumeAttachment":
            return bool(pod_volumes.named_claims(pod))
        return bool(old.node_name or old.nominated_node) and bool(pod_volumes.claim_references(old))

    def signature(self, pod: PodInfo) -> Hashable:
        return self._attachments.volumes_to_attach(pod) if pod_volumes.claim_references(pod) else None

    def epoch(self, cycle: CycleState) -> Hashable:
        """Return the versions of the objects that tell which volumes the pods on a node have attached."""
        return self._attachments.version, self._nodes.version

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Skip | PreFilterResult | Fault | None:
        if not pod_volumes.claim_references(pod):
            return SKIP
        wanted = self._attachments.volumes_to_attach(pod)
        if not wanted:
            return SKIP
        # An unusable claim is rejected per node: other plugins report it better in PreFilter, before that.
        cycle.write(self.name, unresolvable(wanted) if isinstance(wanted, str) else wanted)
        return None

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        wanted: frozenset[CsiVolume] | Reject = cycle.plugin_data[self.name]
        if isinstance(wanted, Reject):
            return wanted
        limits = self._by_node().get(node.name)
        if limits is None or all(volume.driver not in limits for volume in wanted):
            return None
        held: set[CsiVolume] = set()
        for other in node.pods.values():
            if pod_volumes.claim_references(other):
                held |= self._attachments.volumes_of_placed_pod(other)
        counts = Counter(volume.driver for volume in held | self._attachments.attached_to_node(node.name))
        new = Counter(volume.driver for volume in wanted - held)
        over = any(counts[driver] + more > limits.get(driver, counts[driver] + more) for driver, more in new.items())
        return _MAX_VOLUME_COUNT if over else None

    def _by_node(self) -> dict[str, dict[str, int]]:
        if self._read != self._nodes.version:
            self._limits = {node.metadata.name: _limits(node) for node in self._nodes.list()}
            self._read = self._nodes.version
        return self._limits


def _limits(node: CSINode) -> dict[str, int]:
    """Return the limit by driver; a driver that states none has none."""
    return {d.name: d.allocatable.count for d in node.spec.drivers if d.allocatable and d.allocatable.count is not None}


def _is_limit_raised(old: CSINode, new: CSINode) -> bool:
    before = _limits(old)
    return any(limit > before.get(driver, 0) for driver, limit in _limits(new).items())
