"""PodVolumes is the decision for a pod's unbound claims on its node, with the writes that carry it out.

AssumedVolumes holds decisions that are not yet seen in the API. Others do the writing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koord.api.builtin import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from koord.api.part import ObjectReference
from koord.api.volume import PersistentVolume, PersistentVolumeClaim
from koord.scheduler.framework.work import Write

SELECTED_NODE = "volume.kubernetes.io/selected-node"
_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


class Binding(msgspec.Struct, frozen=True):
    """A claim gets an existing volume. `after` is that volume as it will be."""

    claim: PersistentVolumeClaim
    before: PersistentVolume
    after: PersistentVolume

    @property
    def write(self) -> Write | None:
        if self.after is self.before:
            return None
        meta, ref = self.after.metadata, self.after.spec.claim_ref
        assert ref is not None
        changed: dict[str, Any] = {"resourceVersion": meta.resource_version}
        if _BY_CONTROLLER not in self.before.metadata.annotations and _BY_CONTROLLER in meta.annotations:
            changed["annotations"] = {_BY_CONTROLLER: "yes"}
        claim_ref = {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": ref.uid,
            "resourceVersion": ref.resource_version,
        }
        patch = {"metadata": changed, "spec": {"claimRef": claim_ref}}
        return Write(PERSISTENT_VOLUMES, "", meta.name, patch)


class Provision(msgspec.Struct, frozen=True):
    """A volume is provisioned for a claim, for the node that is named to the provisioner."""

    before: PersistentVolumeClaim
    after: PersistentVolumeClaim

    @property
    def write(self) -> Write | None:
        if self.after is self.before:
            return None
        meta = self.after.metadata
        annotations = {SELECTED_NODE: meta.annotations[SELECTED_NODE]}
        patch = {"metadata": {"resourceVersion": meta.resource_version, "annotations": annotations}}
        return Write(PERSISTENT_VOLUME_CLAIMS, meta.namespace, meta.name, patch)


class Choice(msgspec.Struct, frozen=True):
    node: str
    bindings: tuple[Binding, ...] = ()
    provisions: tuple[Provision, ...] = ()

    def writes(self) -> tuple[Write, ...]:
        """Return the writes in the order in which they are to be made. What is already as it should be is not written.

        """
        found = [binding.write for binding in self.bindings] + [provision.write for provision in self.provisions]
        return tuple(write for write in found if write is not None)


def is_held_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Return whether the volume is reserved for that claim, by a user or since it was chosen."""
    ref, meta = volume.spec.claim_ref, claim.metadata
    if ref is None or (ref.namespace, ref.name) != (meta.namespace, meta.name):
        return False
    return ref.uid in ("", meta.uid)


def bound_to(volume: PersistentVolume, claim: PersistentVolumeClaim) -> Binding:
    meta, ref, annotations = claim.metadata, volume.spec.claim_ref, volume.metadata.annotations
    if is_held_for(volume, claim):
        if ref is not None and ref.uid == meta.uid:
            return Binding(claim, volume, volume)
    else:
        annotations = {**annotations, _BY_CONTROLLER: "yes"}
    wanted = ObjectReference(
        api_version="v1",
        kind="PersistentVolumeClaim",
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )
    after = msgspec.structs.replace(
        volume,
        metadata=msgspec.structs.replace(volume.metadata, annotations=annotations),
        spec=msgspec.structs.replace(volume.spec, claim_ref=wanted),
    )
    return Binding(claim, volume, after)


def provisioned_near(claim: PersistentVolumeClaim, node: str) -> Provision:
    annotations = claim.metadata.annotations
    if annotations.get(SELECTED_NODE) == node:
        return Provision(claim, claim)
    meta = msgspec.structs.replace(claim.metadata, annotations={**annotations, SELECTED_NODE: node})
    return Provision(claim, msgspec.structs.replace(claim, metadata=meta))
