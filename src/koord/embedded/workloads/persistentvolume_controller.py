"""The persistent volume controller binds volumes and claims, reclaims volumes and provisions them; pure functions
decide which volume a claim gets.

The scheduler prepares a binding that waits for a pod: it names the claim in a volume, or the node in the claim. This
controller completes it. A write goes over the version that was read; after a conflict the pair is looked at again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from koord.api.kubernetes.builtin_kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from koord.api.kubernetes.meta import label_selector_as_selector
from koord.api.kubernetes.volume import PersistentVolume, PersistentVolumeClaim, StorageClass
from koord.embedded.workloads.controller_context import ControllerContext, error_unless_gone
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, WorkQueue
from koord.kube.events.recorder import EventType, object_reference
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.transport.api_error import ApiError
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


_NO_DELETER = "no deletable volume plugin matched: only volumes of the simulated provisioner are deleted here"
_PHASES = {"available": "Available", "bound": "Bound", "released": "Released", "delete": "Released"}


class PersistentVolumeController:
    name = "persistentvolume"

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._claims = context.informers.for_resource(PERSISTENT_VOLUME_CLAIMS)
        self._volumes = context.informers.for_resource(PERSISTENT_VOLUMES)
        self._classes = context.informers.for_resource(STORAGE_CLASSES)
        self._claim_queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name="persistentvolume-claims")
        self._volume_queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name="persistentvolume-volumes")
        self._class_queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name="persistentvolume-class")
        self._class_queue.add(("", DEFAULT_CLASS))
        self._claims.add_event_handler(self._claim_changed)
        self._volumes.add_event_handler(self._volume_changed)
        self._classes.add_event_handler(self._class_changed)

    def _claim_changed(self, change: ObjectChange[PersistentVolumeClaim]) -> None:
        claim = change.object
        if change.kind != "deleted":
            self._claim_queue.add(object_key(claim))
        if claim.spec.volume_name:
            self._volume_queue.add(("", claim.spec.volume_name))
        if change.kind == "deleted":
            for volume in self._volumes.list():
                if is_claimed_by(volume, claim):
                    self._volume_queue.add(object_key(volume))

    def _volume_changed(self, change: ObjectChange[PersistentVolume]) -> None:
        volume = change.object
        if change.kind != "deleted":
            self._volume_queue.add(object_key(volume))
        ref = volume.spec.claim_ref
        if ref is not None:
            self._claim_queue.add((ref.namespace, ref.name))
        elif change.kind != "deleted":
            self._wake_pending(volume.spec.storage_class_name)

    def _class_changed(self, change: ObjectChange[StorageClass]) -> None:
        if change.kind == "added":
            self._wake_pending(change.object.metadata.name)

    def _wake_pending(self, class_name: str) -> None:
        for claim in self._claims.list():
            if not is_bound(claim) and storage_class_name(claim) == class_name:
                self._claim_queue.add(object_key(claim))

    async def run(self) -> None:
        needs = (self._claims, self._volumes, self._classes)
        async with asyncio.TaskGroup() as group:
            group.create_task(
                self._context.run_controller(
                    "persistentvolume-class", self._class_queue, self._ensure_default_class, needs, 1
                )
            )
            # One worker binds: two claims must not be given one volume.
            group.create_task(
                self._context.run_controller("persistentvolume-claims", self._claim_queue, self._sync_claim, needs, 1)
            )
            group.create_task(
                self._context.run_controller("persistentvolume-volumes", self._volume_queue, self._sync_volume, needs)
            )

    async def _ensure_default_class(self, key: ObjectKey) -> ReconcileResult:
        """Create the class whose volumes are provisioned here, as the default unless another one is."""
        if self._classes.get(*key) is not None:
            return Done()
        notes = (found.metadata.annotations for found in self._classes.list())
        is_default = not any(found.get(DEFAULT_CLASS_MARK) == "true" for found in notes)
        body: Unstructured = {
            "metadata": {"name": key[1], "annotations": {DEFAULT_CLASS_MARK: "true" if is_default else "false"}},
            "provisioner": PROVISIONER,
            "reclaimPolicy": "Delete",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowVolumeExpansion": True,
        }
        answer = await self._client.create(STORAGE_CLASSES, body)
        return Requeue(answer.message) if isinstance(answer, ApiError) and not answer.already_exists else Done()

    # Claims ------------------------------------------------------------------------------------------------------

    async def _sync_claim(self, key: ObjectKey) -> ReconcileResult:
        claim = self._claims.get(*key)
        if claim is None or claim.metadata.deletion_timestamp is not None:
            return Done()
        if is_bound(claim):
            return await self._check_bound(claim)
        storage_class = self._classes.get("", storage_class_name(claim))
        if claim.spec.volume_name:
            volume = self._volumes.get("", claim.spec.volume_name)
            if volume is None or (volume.spec.claim_ref is not None and not is_claimed_by(volume, claim)):
                return await self._set_claim_phase(claim, "Pending")
            return await self._bind(volume, claim)
        found = find_volume(claim, self._volumes.list(), prebound_only=waits_for_consumer(claim, storage_class))
        if found is not None:
            return await self._bind(found, claim)
        wait = decide_claim_wait(claim, storage_class)
        if wait is None:
            assert storage_class is not None, "a volume is provisioned by a class"
            return await self._provision(claim, storage_class)
        self._record(claim, wait.type, wait.reason, wait.message)
        is_external = wait.reason == "ExternalProvisioning" and storage_class is not None
        if is_external and claim.metadata.annotations.get(STORAGE_PROVISIONER) is None:
            assert storage_class is not None, "it has a provisioner"
            notes = {STORAGE_PROVISIONER: storage_class.provisioner}
            answer = await self._client.patch_object(
                PERSISTENT_VOLUME_CLAIMS, claim, {"metadata": {"annotations": notes}}, kind="merge"
            )
            if (refused := error_unless_gone(answer)) is not None:
                return Requeue(refused.message)
        return await self._set_claim_phase(claim, "Pending")

    async def _check_bound(self, claim: PersistentVolumeClaim) -> ReconcileResult:
        volume = self._volumes.get("", claim.spec.volume_name)
        if volume is None:
            answer = await self._client.get(PERSISTENT_VOLUMES, claim.spec.volume_name)
            if not isinstance(answer, ApiError):
                return Requeue("the volume is not in the cache yet")
            if not answer.not_found:
                return Requeue(answer.message)
            if claim.status.phase != "Lost":
                message = "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
                self._record(claim, "Warning", "ClaimLost", message)
            return await self._set_claim_phase(claim, "Lost")
        if not is_claimed_by(volume, claim):
            if volume.spec.claim_ref is not None:
                return await self._set_claim_phase(claim, "Lost")
            return await self._bind(volume, claim)
        own = volume.metadata.annotations.get(PROVISIONED_BY) == PROVISIONER
        if own and is_grown(claim, volume):
            size = claim.spec.resources.requests["storage"]
            patch = {"spec": {"capacity": {"storage": size}}}
            answer = await self._client.patch_object(PERSISTENT_VOLUMES, volume, patch, kind="merge")
            return Requeue(answer.message) if isinstance(answer, ApiError) else Done()  # its change wakes the claim
        return await self._complete(volume, claim)

    async def _provision(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> ReconcileResult:
        made = await self._client.create(PERSISTENT_VOLUMES, provisioned_volume(claim, storage_class))
        if isinstance(made, ApiError):
            return Done() if made.already_exists else Requeue(made.message)  # the watch shows what is there
        message = f"Successfully provisioned volume {made.metadata.name}"
        self._record(claim, "Normal", "ProvisioningSucceeded", message)
        return await self._bind(made, claim)

    async def _bind(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> ReconcileResult:
        """Name each in the other: first the claim in the volume, over the version that was read."""
        ref = volume.spec.claim_ref
        if ref is None or not ref.uid:
            patch: Unstructured = {"spec": {"claimRef": claim_reference(claim)}}
            if ref is None:
                patch["metadata"] = {"annotations": {BOUND_BY_CONTROLLER: "yes"}}
            answer = await self._client.patch_object(PERSISTENT_VOLUMES, volume, patch, kind="merge", exactly=True)
            if isinstance(answer, ApiError):
                return Requeue(answer.message)
            volume = answer
        notes = {BIND_COMPLETED: "yes"}
        change: Unstructured = {"metadata": {"annotations": notes}}
        if not claim.spec.volume_name:
            notes[BOUND_BY_CONTROLLER] = "yes"
            change["spec"] = {"volumeName": volume.metadata.name}
        if not is_bound(claim) or not claim.spec.volume_name:
            answer_of_claim = await self._client.patch_object(
                PERSISTENT_VOLUME_CLAIMS, claim, change, kind="merge", exactly=True
            )
            if isinstance(answer_of_claim, ApiError):
                return Done() if answer_of_claim.not_found else Requeue(answer_of_claim.message)
            claim = answer_of_claim
        return await self._complete(volume, claim)

    async def _complete(self, volume: PersistentVolume, claim: PersistentVolumeClaim) -> ReconcileResult:
        """Write the statuses of a bound pair."""
        ended = await self._set_volume_phase(volume, "Bound")
        if ended is not None:
            return ended
        capacity = {key: str(value) for key, value in volume.spec.capacity.items()}
        held = {key: str(value) for key, value in claim.status.capacity.items()}
        if (claim.status.phase, claim.status.access_modes, held) == ("Bound", volume.spec.access_modes, capacity):
            return Done()
        status = {"phase": "Bound", "accessModes": list(volume.spec.access_modes), "capacity": capacity}
        return await self._context.update_status(PERSISTENT_VOLUME_CLAIMS, claim, status) or Done()

    async def _set_claim_phase(self, claim: PersistentVolumeClaim, phase: str) -> ReconcileResult:
        if claim.status.phase == phase:
            return Done()
        return await self._context.update_status(PERSISTENT_VOLUME_CLAIMS, claim, {"phase": phase}) or Done()

    def _record(self, claim: PersistentVolumeClaim, type: EventType, reason: str, message: str) -> None:
        self._context.recorder.record(object_reference(PERSISTENT_VOLUME_CLAIMS, claim), type, reason, message)

    # Volumes -----------------------------------------------------------------------------------------------------

    async def _sync_volume(self, key: ObjectKey) -> ReconcileResult:
        volume = self._volumes.get(*key)
        if volume is None:
            return Done()
        claim: PersistentVolumeClaim | None = None
        ref = volume.spec.claim_ref
        if ref is not None:
            answer = await self._client.get(PERSISTENT_VOLUME_CLAIMS, ref.name, ref.namespace)
            if isinstance(answer, ApiError) and not answer.not_found:
                return Requeue(answer.message)
            claim = None if isinstance(answer, ApiError) else answer
        fate = decide_volume(volume, claim)
        if fate == "bind":
            assert ref is not None, "it names a claim"
            self._claim_queue.add((ref.namespace, ref.name))
            return Done()
        if fate == "free":
            return await self._free(volume)
        if fate == "failed":
            return await self._set_volume_phase(volume, "Failed", _NO_DELETER) or Done()
        ended = await self._set_volume_phase(volume, _PHASES[fate])
        if ended is not None or fate != "delete" or volume.metadata.deletion_timestamp is not None:
            return ended or Done()
        gone = await self._client.delete(PERSISTENT_VOLUMES, volume.metadata.name, uid=volume.metadata.uid)
        refused = error_unless_gone(gone)
        return Done() if refused is None else Requeue(refused.message)

    async def _free(self, volume: PersistentVolume) -> ReconcileResult:
        """Make a volume available again, for any claim."""
        patch = {"metadata": {"annotations": {BOUND_BY_CONTROLLER: None}}, "spec": {"claimRef": None}}
        answer = await self._client.patch_object(PERSISTENT_VOLUMES, volume, patch, kind="merge", exactly=True)
        if isinstance(answer, ApiError):
            return Done() if answer.not_found else Requeue(answer.message)
        return await self._set_volume_phase(answer, "Available") or Done()

    async def _set_volume_phase(
        self, volume: PersistentVolume, phase: str, message: str = ""
    ) -> ReconcileResult | None:
        if (volume.status.phase, volume.status.message) == (phase, message):
            return None
        status: Unstructured = {"phase": phase, "message": message or None}
        return await self._context.update_status(PERSISTENT_VOLUMES, volume, status)
