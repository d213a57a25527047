"""VolumeZone keeps a pod on nodes in the zone and region that the labels of its bound volumes name."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from koord.api.builtin import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from koord.api.volume import PersistentVolume
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, UPDATE, Event, Happened
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, Only, Reject, Skip, unresolvable
from koord.scheduler.plugins.volumes.claims import (
    MISSING_CLAIM,
    MISSING_CLASS,
    MISSING_VOLUME,
    class_of,
    missing,
    named_claims,
    names,
)
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.values.quotation import quoted

_ZONE, _REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
_OLD_ZONE, _OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
_KEYS = (_OLD_ZONE, _OLD_REGION, _ZONE, _REGION)
_TODAY = {_OLD_ZONE: _ZONE, _OLD_REGION: _REGION}
_BETWEEN_ZONES = "__"
WAITS = "WaitForFirstConsumer"
_REFUSAL = unresolvable("node(s) had no available volume zone")


class Place(msgspec.Struct, frozen=True):
    """A label of a volume that nodes must share, with the accepted values."""

    key: str
    values: frozenset[str]

    def matches(self, node: NodeInfo) -> bool:
        value = node.labels.get(self.key)
        if value is None:
            value = node.labels.get(_TODAY.get(self.key, self.key))
        return value in self.values


def places(volume: PersistentVolume) -> tuple[Place, ...]:
    """Return the zone labels of a volume. A label with an empty part among its zones is ignored."""
    found = []
    for key in _KEYS:
        value = volume.metadata.labels.get(key)
        if value is not None:
            zones = frozenset(zone.strip() for zone in value.split(_BETWEEN_ZONES))
            if "" not in zones:
                found.append(Place(key, zones))
    return tuple(found)


class VolumeZone(Plugin):
    name = "VolumeZone"
    scope = ROW
    reads_pods = "nothing"
    wakes_on = (
        Event("StorageClass", ADD),
        Event("Node", ADD),
        Event("Node", UPDATE, "labels"),
        Event("PersistentVolumeClaim", ADD),
        Event("PersistentVolumeClaim", UPDATE),
        Event("PersistentVolume", ADD),
        Event("PersistentVolume", UPDATE),
    )

    def __init__(self, handle: Handle) -> None:
        self._claims = handle.lister(PERSISTENT_VOLUME_CLAIMS)
        self._volumes = handle.lister(PERSISTENT_VOLUMES)
        self._classes = handle.lister(STORAGE_CLASSES)

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        kind, old, new = happened.event.kind, happened.old, happened.new
        if kind == "StorageClass":
            return bool(new.volume_binding_mode == WAITS)
        if kind == "PersistentVolumeClaim":
            return names(pod, new)
        if kind == "PersistentVolume":
            return old is None or places(old) != places(new)
        return True

    def signature(self, pod: PodInfo) -> Hashable:
        """Return all that the plugin reads beyond a node: the zones of the pod's volumes, or why these are unknown."""
        return self._places(pod)

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | Only | Fault | None:
        found = self._places(pod)
        if isinstance(found, Reject):
            return found
        if not found:
            return SKIP
        cycle.keep(self.name, found)
        return None

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        if not any(key in node.labels for key in _KEYS):
            return None  # a cluster of one zone need not label its nodes
        wanted: tuple[Place, ...] = cycle.of(self.name, tuple)
        return None if all(place.matches(node) for place in wanted) else _REFUSAL

    def _places(self, pod: PodInfo) -> tuple[Place, ...] | Reject:
        found: tuple[Place, ...] = ()
        for name in named_claims(pod):
            if not name:
                return unresolvable("PersistentVolumeClaim had no name")
            claim = self._claims.get(pod.namespace, name)
            if claim is None:
                return unresolvable(missing(MISSING_CLAIM, name))
            if not claim.spec.volume_name:
                refused = self._waits(class_of(claim))
                if refused is not None:
                    return refused
                continue
            volume = self._volumes.get("", claim.spec.volume_name)
            if volume is None:
                return unresolvable(missing(MISSING_VOLUME, claim.spec.volume_name))
            found += places(volume)
        return found

    def _waits(self, name: str) -> Reject | None:
        """Return why a claim without a volume cannot be used; one that is bound for its first consumer is no matter
        here.
        """
        if not name:
            return unresolvable("PersistentVolumeClaim had no pv name and storageClass name")
        storage_class = self._classes.get("", name)
        if storage_class is None:
            return unresolvable(missing(MISSING_CLASS, name))
        if storage_class.volume_binding_mode is None:
            return unresolvable(f"VolumeBindingMode not set for StorageClass {quoted(name)}")
        return None if storage_class.volume_binding_mode == WAITS else unresolvable("PersistentVolume had no name")
