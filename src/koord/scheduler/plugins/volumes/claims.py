"""This module finds the PersistentVolumeClaims of a pod and reads their fields; listers find the objects."""

from __future__ import annotations

import msgspec

from koord.api.kubernetes.volume import PersistentVolume, PersistentVolumeClaim
from koord.scheduler.cache.pod_info import PodInfo
from koord.values.go_format import quoted

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
    return tuple(reference.claim for reference in claim_references(pod) if not reference.ephemeral)


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
