"""This module finds the PersistentVolumeClaims of a pod and reads their fields; listers find the objects."""

from __future__ import annotations

import msgspec

from koord.api.volume import PersistentVolume, PersistentVolumeClaim
from koord.scheduler.state.pod import PodInfo
from koord.values.quotation import quoted

_MEMO = "volumes/claims"
_CLASS = "volume.beta.kubernetes.io/storage-class"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"


class Mention(msgspec.Struct, frozen=True):
    """One volume of a pod that is backed by a claim."""

    claim: str
    ephemeral: bool  # made for the pod from a template in it


def mentions(pod: PodInfo) -> tuple[Mention, ...]:
    """Return the claims in the order of the pod's volumes. Only names of ephemeral claims differ within a pod
    template.
    """
    parsed: tuple[tuple[str, bool], ...] | None = pod.shape.memo.get(_MEMO)
    if parsed is None:
        parsed = pod.shape.memo[_MEMO] = tuple(
            (v.name, True) if v.persistent_volume_claim is None else (v.persistent_volume_claim.claim_name, False)
            for v in pod.shape.spec.volumes
            if v.persistent_volume_claim is not None or v.ephemeral is not None
        )
    if not parsed:
        return ()
    return tuple(Mention(f"{pod.name}-{name}" if made else name, made) for name, made in parsed)


def named_claims(pod: PodInfo) -> tuple[str, ...]:
    """Return the claims that the pod names itself."""
    return tuple(mention.claim for mention in mentions(pod) if not mention.ephemeral)


def uses(pod: PodInfo, claim: PersistentVolumeClaim) -> bool:
    """Return whether one of the pod's volumes is backed by that claim."""
    meta = claim.metadata
    return meta.namespace == pod.namespace and any(mention.claim == meta.name for mention in mentions(pod))


def names(pod: PodInfo, claim: PersistentVolumeClaim) -> bool:
    """Return whether the pod names that claim itself, without the claims that are made for the pod."""
    return claim.metadata.namespace == pod.namespace and claim.metadata.name in named_claims(pod)


def class_of(obj: PersistentVolumeClaim | PersistentVolume) -> str:
    """Return the storage class; the beta annotation still takes precedence over the field."""
    old = obj.metadata.annotations.get(_CLASS)
    return old if old is not None else obj.spec.storage_class_name or ""


def is_bound(claim: PersistentVolumeClaim) -> bool:
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def made_for(claim: PersistentVolumeClaim, pod: PodInfo) -> bool:
    owner = next((o for o in claim.metadata.owner_references if o.controller), None)
    return owner is not None and owner.uid == pod.uid


def not_made_for(claim: PersistentVolumeClaim, pod: PodInfo) -> str:
    meta = claim.metadata
    return f"PVC {meta.namespace}/{meta.name} was not created for pod {pod.key} (pod is not owner)"


def missing(kind: str, name: str) -> str:
    """Return the API's message for an object that does not exist."""
    return f"{kind} {quoted(name)} not found"


MISSING_CLAIM = "persistentvolumeclaim"
MISSING_VOLUME = "persistentvolume"
MISSING_CLASS = "storageclass.storage.k8s.io"
