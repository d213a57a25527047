"""VolumeZone keeps a pod on nodes in the zone and region that the labels of its bound volumes name."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from koord.api.kubernetes.builtin_kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from koord.api.kubernetes.volume import PersistentVolume
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, PreFilterResult, Reject, Skip, unresolvable
from koord.scheduler.plugins.volumes import pod_volumes
from koord.values.go_format import quoted

_ZONE, _REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
_BETA_ZONE, _BETA_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
_KEYS = (_BETA_ZONE, _BETA_REGION, _ZONE, _REGION)
_GA_LABEL = {_BETA_ZONE: _ZONE, _BETA_REGION: _REGION}
_ZONE_SEPARATOR = "__"
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"
_ZONE_CONFLICT = unresolvable("node(s) had no available volume zone")


class ZoneLabel(msgspec.Struct, frozen=True):
    """A label of a volume that nodes must share, with the accepted values."""

    key: str
    values: frozenset[str]

    def matches(self, node: NodeInfo) -> bool:
        value = node.labels.get(self.key)
        if value is None:
            value = node.labels.get(_GA_LABEL.get(self.key, self.key))
        return value in self.values


def zone_labels(volume: PersistentVolume) -> tuple[ZoneLabel, ...]:
    """Return the zone labels of a volume. A label with an empty part among its zones is ignored."""
    found = []
    for key in _KEYS:
        value = volume.metadata.labels.get(key)
        if value is not None:
            zones = frozenset(zone.strip() for zone in value.split(_ZONE_SEPARATOR))
            if "" not in zones:
                found.append(ZoneLabel(key, zones))
    return tuple(found)


class VolumeZone(Plugin):
    name = "VolumeZone"
    scope = ROW
    reads_pods = "nothing"
    wakes_on = (
        ClusterEvent("StorageClass", ADD),
        ClusterEvent("Node", ADD),
        ClusterEvent("Node", UPDATE, "labels"),
        ClusterEvent("PersistentVolumeClaim", ADD),
        ClusterEvent("PersistentVolumeClaim", UPDATE),
        ClusterEvent("PersistentVolume", ADD),
        ClusterEvent("PersistentVolume", UPDATE),
    )

    def __init__(self, handle: Handle) -> None:
        self._claims = handle.lister(PERSISTENT_VOLUME_CLAIMS)
        self._volumes = handle.lister(PERSISTENT_VOLUMES)
        self._classes = handle.lister(STORAGE_CLASSES)

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        kind, old, new = object_event.event.kind, object_event.old, object_event.new
        if kind == "StorageClass":
            return bool(new.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER)
        if kind == "PersistentVolumeClaim":
            return pod_volumes.names_claim(pod, new)
        if kind == "PersistentVolume":
            return old is None or zone_labels(old) != zone_labels(new)
        return True

    def signature(self, pod: PodInfo) -> Hashable:
        """Return all that the plugin reads beyond a node: the zones of the pod's volumes, or why these are unknown."""
        return self._zone_labels(pod)

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Skip | PreFilterResult | Fault | None:
        found = self._zone_labels(pod)
        if isinstance(found, Reject):
            return found
        if not found:
            return SKIP
        cycle.write(self.name, found)
        return None

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        if not any(key in node.labels for key in _KEYS):
            return None  # a cluster of one zone need not label its nodes
        wanted: tuple[ZoneLabel, ...] = cycle.read(self.name, tuple)
        return None if all(place.matches(node) for place in wanted) else _ZONE_CONFLICT

    def _zone_labels(self, pod: PodInfo) -> tuple[ZoneLabel, ...] | Reject:
        found: tuple[ZoneLabel, ...] = ()
        for name in pod_volumes.named_claims(pod):
            if not name:
                return unresolvable("PersistentVolumeClaim had no name")
            claim = self._claims.get(pod.namespace, name)
            if claim is None:
                return unresolvable(pod_volumes.not_found_message(pod_volumes.CLAIM_KIND, name))
            if not claim.spec.volume_name:
                refused = self._check_unbound_claim(pod_volumes.storage_class_of(claim))
                if refused is not None:
                    return refused
                continue
            volume = self._volumes.get("", claim.spec.volume_name)
            if volume is None:
                return unresolvable(pod_volumes.not_found_message(pod_volumes.VOLUME_KIND, claim.spec.volume_name))
            found += zone_labels(volume)
        return found

    def _check_unbound_claim(self, name: str) -> Reject | None:
        """Return why a claim without a volume cannot be used; WaitForFirstConsumer is no matter here."""
        if not name:
            return unresolvable("PersistentVolumeClaim had no pv name and storageClass name")
        storage_class = self._classes.get("", name)
        if storage_class is None:
            return unresolvable(pod_volumes.not_found_message(pod_volumes.STORAGE_CLASS_KIND, name))
        if storage_class.volume_binding_mode is None:
            return unresolvable(f"VolumeBindingMode not set for StorageClass {quoted(name)}")
        return (
            None
            if storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER
            else unresolvable("PersistentVolume had no name")
        )
