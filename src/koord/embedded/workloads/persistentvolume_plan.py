"""Decide how PersistentVolumes and claims are bound: which volume a claim gets, what becomes of a volume. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from koord.api.kubernetes.meta import label_selector_as_selector
from koord.api.kubernetes.volume import PersistentVolume, PersistentVolumeClaim, StorageClass
from koord.kube.client.request_builder import Unstructured
from koord.values.quantity import Quantity

PROVISIONER = "volumes.sim.koord.sh"
DEFAULT_CLASS = "standard"
DEFAULT_CLASS_MARK = "storageclass.kubernetes.io/is-default-class"
BETA_STORAGE_CLASS = "volume.beta.kubernetes.io/storage-class"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
_FILESYSTEM = "Filesystem"
_ZERO = Quantity.from_value(0)

VolumeFate: TypeAlias = Literal["available", "bound", "released", "delete", "free", "failed", "bind"]


class ClaimWait(msgspec.Struct, frozen=True):
    """The reason for which a claim stays pending, as an event tells it."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def storage_class_name(claim: PersistentVolumeClaim) -> str:
    stated = claim.metadata.annotations.get(BETA_STORAGE_CLASS)
    return stated if stated is not None else claim.spec.storage_class_name or ""


def volume_class_name(volume: PersistentVolume) -> str:
    stated = volume.metadata.annotations.get(BETA_STORAGE_CLASS)
    return stated if stated is not None else volume.spec.storage_class_name


def is_claimed_by(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Return whether a volume names this claim, by its UID where it states one."""
    ref, meta = volume.spec.claim_ref, claim.metadata
    return ref is not None and (ref.namespace, ref.name) == (meta.namespace, meta.name) and ref.uid in ("", meta.uid)


def is_bound(claim: PersistentVolumeClaim) -> bool:
    return BIND_COMPLETED in claim.metadata.annotations


def waits_for_consumer(claim: PersistentVolumeClaim, storage_class: StorageClass | None) -> bool:
    mode = storage_class.volume_binding_mode if storage_class is not None else None
    return mode == "WaitForFirstConsumer" and SELECTED_NODE not in claim.metadata.annotations


def find_volume(
    claim: PersistentVolumeClaim, volumes: Iterable[PersistentVolume], *, prebound_only: bool
) -> PersistentVolume | None:
    """Return the volume for a claim: one that names it, else the smallest that suits; the first by name of equals."""
    suiting: list[tuple[Quantity, str, PersistentVolume]] = []
    for volume in volumes:
        if volume.metadata.deletion_timestamp is not None:
            continue
        ref = volume.spec.claim_ref
        if ref is not None:
            if is_claimed_by(volume, claim):
                return volume
            continue
        if not prebound_only and volume.status.phase in ("", "Pending", "Available") and _suits(volume, claim):
            suiting.append((_size(volume.spec.capacity.get("storage")), volume.metadata.name, volume))
    return min(suiting, key=lambda found: found[:2])[2] if suiting else None


def _suits(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    spec, wanted = volume.spec, claim.spec
    selector = wanted.selector
    return (
        volume_class_name(volume) == storage_class_name(claim)
        and (spec.volume_mode or _FILESYSTEM) == (wanted.volume_mode or _FILESYSTEM)
        and set(wanted.access_modes) <= set(spec.access_modes)
        and (spec.volume_attributes_class_name or "") == (wanted.volume_attributes_class_name or "")
        and _size(spec.capacity.get("storage")) >= _size(wanted.resources.requests.get("storage"))
        and (selector is None or label_selector_as_selector(selector).matches(volume.metadata.labels))
    )


def _size(amount: object) -> Quantity:
    return Quantity.parse(amount) if isinstance(amount, str | int | float) else _ZERO


def is_grown(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    """Return whether a bound claim asks for more than its volume has."""
    return _size(claim.spec.resources.requests.get("storage")) > _size(volume.spec.capacity.get("storage"))


def decide_claim_wait(claim: PersistentVolumeClaim, storage_class: StorageClass | None) -> ClaimWait | None:
    """Return why a claim without a volume waits; None where a volume is provisioned for it here."""
    name = storage_class_name(claim)
    if not name:
        what = "no persistent volumes available for this claim and no storage class is set"
        return ClaimWait("Normal", "FailedBinding", what)
    if storage_class is None:
        what = f'storageclass.storage.k8s.io "{name}" not found'
        return ClaimWait("Warning", "ProvisioningFailed", what)
    if waits_for_consumer(claim, storage_class):
        what = "waiting for first consumer to be created before binding"
        return ClaimWait("Normal", "WaitForFirstConsumer", what)
    if storage_class.provisioner == NO_PROVISIONER:
        return ClaimWait("Normal", "FailedBinding", "no volume plugin matched name: kubernetes.io/no-provisioner")
    if storage_class.provisioner != PROVISIONER:
        what = (
            f"Waiting for a volume to be created either by the external provisioner '{storage_class.provisioner}' or "
            "manually by the system administrator. If volume creation is delayed, please verify that the provisioner "
            "is running and correctly registered."
        )
        return ClaimWait("Normal", "ExternalProvisioning", what)
    if claim.spec.selector is not None:
        return ClaimWait(
            "Warning", "ProvisioningFailed", "claim.spec.selector is not supported for provisioned volumes"
        )
    return None


def provisioned_volume(claim: PersistentVolumeClaim, storage_class: StorageClass) -> Unstructured:
    """Return the volume that the simulated provisioner makes for a claim. Every node can reach it."""
    name = f"pvc-{claim.metadata.uid}"
    spec: Unstructured = {
        "capacity": {"storage": claim.spec.resources.requests.get("storage", "0")},
        "accessModes": list(claim.spec.access_modes),
        "persistentVolumeReclaimPolicy": storage_class.reclaim_policy or "Delete",
        "storageClassName": storage_class.metadata.name,
        "volumeMode": claim.spec.volume_mode or _FILESYSTEM,
        "claimRef": claim_reference(claim),
        "csi": {"driver": PROVISIONER, "volumeHandle": name},
    }
    if storage_class.mount_options:
        spec["mountOptions"] = list(storage_class.mount_options)
    return {"metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}}, "spec": spec}


def claim_reference(claim: PersistentVolumeClaim) -> Unstructured:
    meta = claim.metadata
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": meta.namespace,
        "name": meta.name,
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
    }


def decide_volume(volume: PersistentVolume, claim: PersistentVolumeClaim | None) -> VolumeFate:
    """Decide what becomes of a volume; `claim` is the one that it names, None where there is no such claim now."""
    ref = volume.spec.claim_ref
    if ref is None:
        return "available"
    if not ref.uid:  # for a claim that may not be there yet
        return "available" if claim is None else "bind"
    if claim is not None and claim.metadata.uid == ref.uid:
        if claim.spec.volume_name == volume.metadata.name:
            return "bound" if is_bound(claim) else "bind"
        if not claim.spec.volume_name:
            return "bind"
        return "free" if BOUND_BY_CONTROLLER in volume.metadata.annotations else "released"
    match volume.spec.persistent_volume_reclaim_policy:
        case "Delete":
            own = volume.metadata.annotations.get(PROVISIONED_BY)
            if own is None:
                return "failed"
            return "delete" if own == PROVISIONER else "released"
        case "Recycle":
            return "free"  # nothing of a simulated volume is left to be removed
    return "released"
