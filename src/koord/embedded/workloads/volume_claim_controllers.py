"""The controllers of volume claims: one creates the claims of pods' ephemeral volumes, which are deleted with their
pod; one removes the protection finalizers of claims and volumes that are being deleted, once nobody uses them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from koord.api.kubernetes.builtin_kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PODS
from koord.api.kubernetes.meta import Object, ObjectMeta
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.resource import Resource
from koord.api.kubernetes.volume import PersistentVolume, PersistentVolumeClaim, Volume
from koord.embedded.workloads.controller_context import ControllerContext
from koord.embedded.workloads.controller_ref import controller_owner, controller_reference
from koord.embedded.workloads.pod_control import is_namespace_terminating, is_pod_active
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, WorkQueue
from koord.kube.events.recorder import object_reference
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.transport.api_error import ApiError


def ephemeral_claim(pod: Pod, volume: Volume) -> Unstructured:
    """Return the claim to create for an ephemeral volume: named after pod and volume, owned by the pod."""
    assert volume.ephemeral is not None, "the volume is ephemeral"
    template = volume.ephemeral.volume_claim_template or {}
    given = template.get("metadata") or {}
    meta: Unstructured = {
        "name": f"{pod.metadata.name}-{volume.name}",
        "ownerReferences": [controller_reference(PODS, pod)],
    }
    meta |= {key: {**given[key]} for key in ("labels", "annotations") if given.get(key)}
    return {"metadata": meta, "spec": template.get("spec") or {}}


def _is_owner(pod: Pod, claim: PersistentVolumeClaim) -> bool:
    owner = controller_owner(claim.metadata)
    return owner is not None and owner.uid == pod.metadata.uid


class EphemeralVolumeController:
    name = "ephemeral-volume"

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._pods = context.pods()
        self._queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name=self.name)
        self._pods.add_event_handler(self._pod_changed)

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        if change.kind == "added" and any(volume.ephemeral is not None for volume in change.object.spec.volumes):
            self._queue.add(object_key(change.object))

    async def run(self) -> None:
        await self._context.run_controller(self.name, self._queue, self.reconcile, (self._pods,))

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        pod = self._pods.get(*key)
        if pod is None or not is_pod_active(pod):
            return Done()
        for volume in pod.spec.volumes:
            if volume.ephemeral is None:
                continue
            refused = await self._ensure_claim(pod, ephemeral_claim(pod, volume))
            if refused is not None:
                return Done() if is_namespace_terminating(refused) else Requeue(refused.message)
        return Done()

    async def _ensure_claim(self, pod: Pod, body: Unstructured) -> ApiError | None:
        answer = await self._client.create(PERSISTENT_VOLUME_CLAIMS, body, pod.metadata.namespace)
        if not isinstance(answer, ApiError):
            return None
        message = f"ephemeral volume: {answer.message}"
        if answer.already_exists:
            name = body["metadata"]["name"]
            held = await self._client.get(PERSISTENT_VOLUME_CLAIMS, name, pod.metadata.namespace)
            if isinstance(held, ApiError) or _is_owner(pod, held):
                return held if isinstance(held, ApiError) else None
            message = f"PVC {pod.metadata.namespace}/{name} was not created for the pod: pod is not owner"
        self._context.recorder.record(object_reference(PODS, pod), "Warning", "FailedBinding", message)
        return answer


CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
VOLUME_FINALIZER = "kubernetes.io/pv-protection"
_CLAIM_INDEX = "claims"


def claims_in_use(pod: Pod) -> Iterable[str]:
    """Return the names of the claims that a pod uses. One without a node uses none: no kubelet starts it."""
    if not pod.spec.node_name:
        return []
    found = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            found.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            found.append(f"{pod.metadata.name}-{volume.name}")
    return found


def can_release_claim(claim: PersistentVolumeClaim, users: Iterable[Pod]) -> bool:
    return _awaits_release(claim.metadata, CLAIM_FINALIZER) and not list(users)


def can_release_volume(volume: PersistentVolume) -> bool:
    return _awaits_release(volume.metadata, VOLUME_FINALIZER) and volume.status.phase != "Bound"


def _awaits_release(meta: ObjectMeta, finalizer: str) -> bool:
    return meta.deletion_timestamp is not None and finalizer in meta.finalizers


class VolumeProtectionController:
    name = "volume-protection"

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._claims = context.informers.for_resource(PERSISTENT_VOLUME_CLAIMS)
        self._volumes = context.informers.for_resource(PERSISTENT_VOLUMES)
        self._pods = context.pods()
        self._claim_queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name="pvc-protection")
        self._volume_queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name="pv-protection")
        if not self._pods.has_index(_CLAIM_INDEX):
            self._pods.add_index(
                _CLAIM_INDEX, lambda pod: [f"{pod.metadata.namespace}/{name}" for name in claims_in_use(pod)]
            )
        self._claims.add_event_handler(self._claim_changed)
        self._volumes.add_event_handler(self._volume_changed)
        self._pods.add_event_handler(self._pod_changed)

    def _claim_changed(self, change: ObjectChange[PersistentVolumeClaim]) -> None:
        if change.kind != "deleted" and _awaits_release(change.object.metadata, CLAIM_FINALIZER):
            self._claim_queue.add(object_key(change.object))

    def _volume_changed(self, change: ObjectChange[PersistentVolume]) -> None:
        if change.kind != "deleted" and _awaits_release(change.object.metadata, VOLUME_FINALIZER):
            self._volume_queue.add(object_key(change.object))

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        if change.kind == "deleted" and change.object.spec.volumes:
            for name in claims_in_use(change.object):
                self._claim_queue.add((change.object.metadata.namespace, name))

    async def run(self) -> None:
        needs = (self._claims, self._volumes, self._pods)
        async with asyncio.TaskGroup() as group:
            group.create_task(
                self._context.run_controller("pvc-protection", self._claim_queue, self._release_claim, needs, 1)
            )
            group.create_task(
                self._context.run_controller("pv-protection", self._volume_queue, self._release_volume, needs, 1)
            )

    async def _release_claim(self, key: ObjectKey) -> ReconcileResult:
        claim = self._claims.get(*key)
        if claim is None or not can_release_claim(claim, self._pods.by_index(_CLAIM_INDEX, f"{key[0]}/{key[1]}")):
            return Done()
        return await self._remove_finalizer(PERSISTENT_VOLUME_CLAIMS, claim, CLAIM_FINALIZER)

    async def _release_volume(self, key: ObjectKey) -> ReconcileResult:
        volume = self._volumes.get(*key)
        if volume is None or not can_release_volume(volume):
            return Done()
        return await self._remove_finalizer(PERSISTENT_VOLUMES, volume, VOLUME_FINALIZER)

    async def _remove_finalizer(self, resource: Resource[Any], obj: Object, finalizer: str) -> ReconcileResult:
        patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [finalizer]}}
        answer = await self._client.patch_object(resource, obj, patch, kind="strategic")
        if isinstance(answer, ApiError) and not answer.not_found and not answer.conflict:
            return Requeue(answer.message)
        return Done()
