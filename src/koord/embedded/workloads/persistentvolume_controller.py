"""The persistent volume controller binds volumes and claims, reclaims volumes, and provisions those of its own class.

The scheduler prepares a binding that waits for a pod: it names the claim in a volume, or the node in the claim. This
controller completes it. A write goes over the version that was read; after a conflict the pair is looked at again.
"""

from __future__ import annotations

import asyncio

from koord.api.kubernetes.builtin_kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from koord.api.kubernetes.volume import PersistentVolume, PersistentVolumeClaim, StorageClass
from koord.embedded.workloads.controller_context import ControllerContext, error_unless_gone
from koord.embedded.workloads.persistentvolume_plan import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    DEFAULT_CLASS,
    DEFAULT_CLASS_MARK,
    PROVISIONED_BY,
    PROVISIONER,
    STORAGE_PROVISIONER,
    claim_reference,
    decide_claim_wait,
    decide_volume,
    find_volume,
    is_bound,
    is_claimed_by,
    is_grown,
    provisioned_volume,
    storage_class_name,
    waits_for_consumer,
)
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, WorkQueue
from koord.kube.events.recorder import EventType, object_reference
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.transport.api_error import ApiError

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
