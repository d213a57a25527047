"""NodeVolumeLimits rejects nodes that cannot have more volumes of a CSI driver attached."""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from koord.api.builtin import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    VOLUME_ATTACHMENTS,
)
from koord.api.volume import PersistentVolumeClaim
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.volumes.claims import (
    MISSING_CLAIM,
    class_of,
    made_for,
    mentions,
    missing,
    not_made_for,
)
from koord.scheduler.state.pod import PodInfo


class Attached(msgspec.Struct, frozen=True):
    """A volume as its driver knows it. One that does not exist yet is identified by its claim."""

    driver: str
    handle: str
    claim: str = ""


class Attachments:
    """Finds the CSI volumes behind claims, and those attached to nodes according to VolumeAttachments."""
    def __init__(self, handle: Handle) -> None:
        self._claims = handle.lister(PERSISTENT_VOLUME_CLAIMS)
        self._volumes = handle.lister(PERSISTENT_VOLUMES)
        self._classes = handle.lister(STORAGE_CLASSES)
        self._attachments = handle.lister(VOLUME_ATTACHMENTS)
        self._by_node: dict[str, set[Attached]] = {}
        self._read: Hashable = None

    @property
    def version(self) -> Hashable:
        """Return a value that changes with everything that is read here."""
        return self._claims.version, self._volumes.version, self._classes.version, self._attachments.version

    def wanted(self, pod: PodInfo) -> frozenset[Attached] | str:
        """Return the volumes that a new pod needs attached, or a message if one of its claims cannot be used."""
        found: set[Attached] = set()
        for mention in mentions(pod):
            if not mention.claim:
                return "PersistentVolumeClaim had no name"
            claim = self._claims.get(pod.namespace, mention.claim)
            if claim is None:
                known = missing(MISSING_CLAIM, mention.claim)
                return f"looking up PVC {pod.namespace}/{mention.claim}: {known}"
            if mention.ephemeral and not made_for(claim, pod):
                return not_made_for(claim, pod)
            found |= self._of(claim)
        return frozenset(found)

    def held(self, pod: PodInfo) -> set[Attached]:
        """Return the volumes that a placed pod has attached. Claims that are gone, or not its own, do not count."""
        found: set[Attached] = set()
        for mention in mentions(pod):
            claim = self._claims.get(pod.namespace, mention.claim)
            if claim is not None and not (mention.ephemeral and not made_for(claim, pod)):
                found |= self._of(claim)
        return found

    def on(self, node: str) -> set[Attached]:
        """Return the volumes that are attached to the node, whether a pod needs them or not."""
        now = (self._attachments.version, self._volumes.version)
        if self._read != now:
            self._by_node, self._read = self._listed(), now
        return self._by_node.get(node, set())

    def _listed(self) -> dict[str, set[Attached]]:
        found: dict[str, set[Attached]] = {}
        for each in self._attachments.list():
            name = each.spec.source.persistent_volume_name
            volume = self._volumes.get("", name) if name is not None and each.spec.attacher else None
            if volume is not None and volume.spec.csi is not None:
                there = found.setdefault(each.spec.node_name, set())
                there.add(Attached(each.spec.attacher, volume.spec.csi.volume_handle))
        return found

    def _of(self, claim: PersistentVolumeClaim) -> set[Attached]:
        """Return at most one volume: none for volumes that no CSI driver attaches."""
        name = claim.spec.volume_name
        volume = self._volumes.get("", name) if name else None
        if volume is not None:
            csi = volume.spec.csi
            return {Attached(csi.driver, csi.volume_handle)} if csi and csi.driver and csi.volume_handle else set()
        storage_class = self._classes.get("", class_of(claim))
        if storage_class is None or not storage_class.provisioner:
            return set()
        return {Attached(storage_class.provisioner, "", f"{claim.metadata.namespace}/{claim.metadata.name}")}
