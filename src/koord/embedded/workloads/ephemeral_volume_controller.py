"""The ephemeral volume controller creates the claims of pods' ephemeral volumes. They are deleted with their pod."""

from __future__ import annotations

from koord.api.kubernetes.builtin_kinds import PERSISTENT_VOLUME_CLAIMS, PODS
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.volume import PersistentVolumeClaim, Volume
from koord.embedded.workloads.controller_context import ControllerContext
from koord.embedded.workloads.controller_ref import controller_owner, controller_reference
from koord.embedded.workloads.pod_control import is_namespace_terminating
from koord.embedded.workloads.pod_state import is_pod_active
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue
from koord.kube.controller.workqueue import WorkQueue
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
