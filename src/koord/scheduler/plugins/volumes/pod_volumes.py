"""PodVolumes is the decision for a pod's unbound claims on its node, with the writes that carry it out.

AssumedVolumes holds decisions that are not yet seen in the API. Others do the writing. The claims of a pod are found
and read here; listers find the objects.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from koord.api.kubernetes.builtin_kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from koord.api.kubernetes.volume import PersistentVolume, PersistentVolumeClaim
from koord.api.model import ObjectReference
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.verdict import ObjectPatch
from koord.values.go_format import quoted

SELECTED_NODE = "volume.kubernetes.io/selected-node"
_BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


class StaticBinding(msgspec.Struct, frozen=True):
    """A claim gets an existing volume. `after` is that volume as it will be."""

    claim: PersistentVolumeClaim
    before: PersistentVolume
    after: PersistentVolume

    @property
    def write(self) -> ObjectPatch | None:
        if self.after is self.before:
            return None
        meta, ref = self.after.metadata, self.after.spec.claim_ref
        assert ref is not None
        changed: dict[str, Any] = {"resourceVersion": meta.resource_version}
        if _BOUND_BY_CONTROLLER not in self.before.metadata.annotations and _BOUND_BY_CONTROLLER in meta.annotations:
            changed["annotations"] = {_BOUND_BY_CONTROLLER: "yes"}
        claim_ref = {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": ref.uid,
            "resourceVersion": ref.resource_version,
        }
        patch = {"metadata": changed, "spec": {"claimRef": claim_ref}}
        return ObjectPatch(PERSISTENT_VOLUMES, "", meta.name, patch)


class DynamicProvision(msgspec.Struct, frozen=True):
    """A volume is provisioned for a claim, for the node that is named to the provisioner."""

    before: PersistentVolumeClaim
    after: PersistentVolumeClaim

    @property
    def write(self) -> ObjectPatch | None:
        if self.after is self.before:
            return None
        meta = self.after.metadata
        annotations = {SELECTED_NODE: meta.annotations[SELECTED_NODE]}
        patch = {"metadata": {"resourceVersion": meta.resource_version, "annotations": annotations}}
        return ObjectPatch(PERSISTENT_VOLUME_CLAIMS, meta.namespace, meta.name, patch)


class PodVolumes(msgspec.Struct, frozen=True):
    node: str
    bindings: tuple[StaticBinding, ...] = ()
    provisions: tuple[DynamicProvision, ...] = ()

    def writes(self) -> tuple[ObjectPatch, ...]:
        """Return the writes in the order in which they are to be made. What is already so is not written."""
        found = [binding.write for binding in self.bindings] + [provision.write for provision in self.provisions]
        return tuple(write for write in found if write is not None)


def is_reserved_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Return whether the volume is reserved for that claim, by a user or since it was chosen."""
    ref, meta = volume.spec.claim_ref, claim.metadata
    if ref is None or (ref.namespace, ref.name) != (meta.namespace, meta.name):
        return False
    return ref.uid in ("", meta.uid)


def bind_volume(volume: PersistentVolume, claim: PersistentVolumeClaim) -> StaticBinding:
    meta, ref, annotations = claim.metadata, volume.spec.claim_ref, volume.metadata.annotations
    if is_reserved_for(volume, claim):
        if ref is not None and ref.uid == meta.uid:
            return StaticBinding(claim, volume, volume)
    else:
        annotations = {**annotations, _BOUND_BY_CONTROLLER: "yes"}
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
    return StaticBinding(claim, volume, after)


def provision_on_node(claim: PersistentVolumeClaim, node: str) -> DynamicProvision:
    annotations = claim.metadata.annotations
    if annotations.get(SELECTED_NODE) == node:
        return DynamicProvision(claim, claim)
    meta = msgspec.structs.replace(claim.metadata, annotations={**annotations, SELECTED_NODE: node})
    return DynamicProvision(claim, msgspec.structs.replace(claim, metadata=meta))


class AssumedVolumes:
    """The assumed volumes of all profiles. A pod that leaves its node, for whatever reason, takes its decisions
    with it.

    An assumption is valid while the watch shows the very revision that it was made on; anything newer replaces
    it.
    """

    def __init__(self, state: ClusterState) -> None:
        self.version = 0
        self._by_pod: dict[str, PodVolumes] = {}  # by uid of the pod
        self._volumes: dict[str, tuple[str, PersistentVolume]] = {}  # by name: uid of the pod, and what will be
        self._claims: dict[tuple[str, str], tuple[str, PersistentVolumeClaim]] = {}
        state.add_placement_listener(self._on_placement)

    def volume(self, shown: PersistentVolume) -> PersistentVolume:
        known = self._volumes.get(shown.metadata.name)
        return known[1] if known is not None and _is_same_revision(known[1], shown) else shown

    def claim(self, shown: PersistentVolumeClaim) -> PersistentVolumeClaim:
        known = self._claims.get((shown.metadata.namespace, shown.metadata.name))
        return known[1] if known is not None and _is_same_revision(known[1], shown) else shown

    def get(self, uid: str) -> PodVolumes | None:
        return self._by_pod.get(uid)

    def assume(self, uid: str, pod_volumes: PodVolumes) -> None:
        self.revert(uid)
        self.version += 1
        self._by_pod[uid] = pod_volumes
        for binding in pod_volumes.bindings:
            if binding.write is not None:
                self._volumes[binding.after.metadata.name] = uid, binding.after
        for provision in pod_volumes.provisions:
            if provision.write is not None:
                meta = provision.after.metadata
                self._claims[meta.namespace, meta.name] = uid, provision.after

    def revert(self, uid: str) -> None:
        pod_volumes = self._by_pod.pop(uid, None)
        if pod_volumes is None:
            return
        self.version += 1
        for binding in pod_volumes.bindings:
            name = binding.after.metadata.name
            if self._volumes.get(name, ("",))[0] == uid:
                del self._volumes[name]
        for provision in pod_volumes.provisions:
            key = provision.after.metadata.namespace, provision.after.metadata.name
            if self._claims.get(key, ("",))[0] == uid:
                del self._claims[key]

    def _on_placement(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        if what == "remove" and self._by_pod:
            self.revert(pod.uid)


def _is_same_revision(a: PersistentVolume | PersistentVolumeClaim, b: PersistentVolume | PersistentVolumeClaim) -> bool:
    return (a.metadata.uid, a.metadata.resource_version) == (b.metadata.uid, b.metadata.resource_version)


_MEMO = "volumes/claims"
_BETA_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"


class ClaimReference(msgspec.Struct, frozen=True):
    """One volume of a pod that is backed by a claim."""

    claim: str
    ephemeral: bool  # made for the pod from a template in it


def claim_references(pod: PodInfo) -> tuple[ClaimReference, ...]:
    """Return the claims in the order of the pod's volumes. Only ephemeral claims differ within a pod template."""
    parsed: tuple[tuple[str, bool], ...] | None = pod.shape.memo.get(_MEMO)
    if parsed is None:
        parsed = pod.shape.memo[_MEMO] = tuple(
            (v.name, True) if v.persistent_volume_claim is None else (v.persistent_volume_claim.claim_name, False)
            for v in pod.shape.spec.volumes
            if v.persistent_volume_claim is not None or v.ephemeral is not None
        )
    if not parsed:
        return ()
    return tuple(ClaimReference(f"{pod.name}-{name}" if made else name, made) for name, made in parsed)


def named_claims(pod: PodInfo) -> tuple[str, ...]:
    """Return the claims that the pod names itself."""
    references = claim_references(pod)
    return tuple(r.claim for r in references if not r.ephemeral) if references else ()


def uses_claim(pod: PodInfo, claim: PersistentVolumeClaim) -> bool:
    """Return whether one of the pod's volumes is backed by that claim."""
    meta = claim.metadata
    return meta.namespace == pod.namespace and any(reference.claim == meta.name for reference in claim_references(pod))


def names_claim(pod: PodInfo, claim: PersistentVolumeClaim) -> bool:
    """Return whether the pod names that claim itself, without the claims that are made for the pod."""
    return claim.metadata.namespace == pod.namespace and claim.metadata.name in named_claims(pod)


def storage_class_of(obj: PersistentVolumeClaim | PersistentVolume) -> str:
    """Return the storage class; the beta annotation still takes precedence over the field."""
    old = obj.metadata.annotations.get(_BETA_STORAGE_CLASS)
    return old if old is not None else obj.spec.storage_class_name or ""


def is_bound(claim: PersistentVolumeClaim) -> bool:
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def is_owned_by_pod(claim: PersistentVolumeClaim, pod: PodInfo) -> bool:
    owner = next((o for o in claim.metadata.owner_references if o.controller), None)
    return owner is not None and owner.uid == pod.uid


def not_owner_message(claim: PersistentVolumeClaim, pod: PodInfo) -> str:
    meta = claim.metadata
    return f"PVC {meta.namespace}/{meta.name} was not created for pod {pod.key} (pod is not owner)"


def not_found_message(kind: str, name: str) -> str:
    """Return the API's message for an object that does not exist."""
    return f"{kind} {quoted(name)} not found"


CLAIM_KIND = "persistentvolumeclaim"
VOLUME_KIND = "persistentvolume"
STORAGE_CLASS_KIND = "storageclass.storage.k8s.io"
