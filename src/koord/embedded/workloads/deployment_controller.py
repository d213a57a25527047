"""The Deployment controller moves pods from one template to the next through ReplicaSets."""

from __future__ import annotations

from datetime import datetime

import msgspec

from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS, REPLICA_SETS
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.workload import Deployment, DeploymentStatus, ReplicaSet
from koord.embedded.workloads import deployment_plan, deployment_rollout
from koord.embedded.workloads.controller_context import (
    ControllerContext,
    ControllerExpectations,
    WrittenVersions,
    patch_status,
    status_patch,
    sync_result,
)
from koord.embedded.workloads.controller_ref import (
    claim_objects,
    controller_owner_of_kind,
    index_by_controller,
    index_by_selector,
    objects_selecting,
    owned_objects,
    spec_selector,
)
from koord.embedded.workloads.deployment_plan import (
    DeploymentPlan,
    DeploymentView,
    NewReplicaSet,
    ReplicaSetChange,
    decide_deployment,
    replica_set_body,
)
from koord.embedded.workloads.pod_control import desired_replicas, is_pod_finished, same_template
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, WorkQueue
from koord.kube.events import recorder
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.transport.api_error import ApiError


class DeploymentController:
    name = "deployment"

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._client = context.client
        self._deployments = context.informers.for_resource(DEPLOYMENTS)
        self._sets = context.informers.for_resource(REPLICA_SETS)
        self._pods = context.pods()
        self._queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name=self.name)
        self._expectations = ControllerExpectations(context.clock)
        self._written_versions = WrittenVersions()
        index_by_controller(self._sets)
        index_by_controller(self._pods)
        index_by_selector(self._deployments, spec_selector)
        self._deployments.add_event_handler(self._deployment_changed)
        self._sets.add_event_handler(self._set_changed)
        self._pods.add_event_handler(self._pod_changed)

    def _deployment_changed(self, change: ObjectChange[Deployment]) -> None:
        if change.kind == "deleted":
            self._expectations.forget(change.object.metadata.uid)
        self._queue.add(object_key(change.object))

    def _set_changed(self, change: ObjectChange[ReplicaSet]) -> None:
        meta = change.object.metadata
        above = controller_owner_of_kind(meta, DEPLOYMENTS)
        if above is not None:
            self._expectations.observed(above.uid, meta.uid)
        if change.kind == "deleted":
            self._written_versions.forget(meta.uid)
        for seen in (change.object, change.old):
            owner = controller_owner_of_kind(seen.metadata, DEPLOYMENTS) if seen is not None else None
            if owner is not None:
                self._queue.add((meta.namespace, owner.name))
        if change.kind != "deleted" and not any(ref.controller for ref in meta.owner_references):
            for candidate in objects_selecting(self._deployments, meta, spec_selector):
                self._queue.add(object_key(candidate))

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        """Enqueue a Deployment with the Recreate strategy, which waits for its last old pod to end."""
        pod = change.object
        if change.kind != "deleted" and not is_pod_finished(pod):
            return
        owner = controller_owner_of_kind(pod.metadata, REPLICA_SETS)
        replica_set = self._sets.get(pod.metadata.namespace, owner.name) if owner is not None else None
        above = controller_owner_of_kind(replica_set.metadata, DEPLOYMENTS) if replica_set is not None else None
        deployment = self._deployments.get(pod.metadata.namespace, above.name) if above is not None else None
        if deployment is not None and deployment.spec.strategy.type == deployment_rollout.RECREATE:
            self._queue.add(object_key(deployment))

    async def run(self) -> None:
        await self._context.run_controller(
            self.name, self._queue, self.reconcile, (self._deployments, self._sets, self._pods)
        )

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        deployment = self._deployments.get(*key)
        if deployment is None:
            return Done()
        held = await claim_objects(self._client, DEPLOYMENTS, deployment, spec_selector(deployment), self._sets)
        if not isinstance(held, tuple):
            return held
        if not self._expectations.fulfilled(deployment.metadata.uid) or any(map(self._written_versions.is_stale, held)):
            return Done()  # sizes are shared out between the sets: one old number would make the sum wrong
        seen = self.observe(deployment, held)
        return await self.apply(deployment, decide_deployment(seen), seen.now)

    def observe(self, deployment: Deployment, sets: tuple[ReplicaSet, ...]) -> DeploymentView:
        remain = False
        if deployment.spec.strategy.type == deployment_rollout.RECREATE:
            old = deployment_rollout.replica_set_family(deployment, sets).old
            remain = any(not is_pod_finished(pod) for s in old for pod in owned_objects(self._pods, s.metadata.uid))
        return DeploymentView(deployment=deployment, sets=sets, old_pods_remain=remain, now=self._context.now())

    async def apply(self, deployment: Deployment, plan: DeploymentPlan, now: datetime) -> ReconcileResult:
        """Write the ReplicaSets, then the Deployment's own revision and status. Requeue when a write is refused."""
        status = plan.status
        if plan.create is not None:
            made = await self._create_replica_set(deployment, plan.create, status, now)
            if isinstance(made, Requeue):
                return made
            status = made
        for change in plan.changes:
            refused = await self._patch_replica_set(deployment, change)
            if refused is not None:
                return Requeue(refused.message)
        for s in plan.remove:
            meta = s.metadata
            answer = await self._client.delete(
                REPLICA_SETS, meta.name, meta.namespace, uid=meta.uid, resource_version=meta.resource_version
            )
            if isinstance(answer, ApiError) and not answer.not_found:
                return Requeue(answer.message)
        meta = deployment.metadata
        number = deployment_rollout.revision_patch(deployment, plan.revision)
        if number is not None:
            written = await self._client.patch_object(DEPLOYMENTS, deployment, number, kind="merge")
            if isinstance(written, ApiError) and not written.not_found:
                return Requeue(written.message)
        patch = status_patch(deployment.status, status)
        ended = await self._context.update_status(DEPLOYMENTS, deployment, patch)
        return ended or sync_result(None, deployment_plan.next_deadline_check_s(deployment, status, now))

    async def _create_replica_set(
        self, deployment: Deployment, wanted: NewReplicaSet, status: DeploymentStatus, now: datetime
    ) -> DeploymentStatus | Requeue:
        body = replica_set_body(deployment, wanted)
        name = body["metadata"]["name"]
        uid = deployment.metadata.uid
        self._expectations.expect_creation(uid)
        answer: ReplicaSet | ApiError | None = None
        try:
            answer = await self._client.create(REPLICA_SETS, body)
        finally:
            if isinstance(answer, ReplicaSet):
                self._expectations.created(uid, answer.metadata.uid)
            else:
                self._expectations.creation_failed(uid)
        has_deadline = deployment_plan.progress_deadline_s(deployment) is not None
        if isinstance(answer, ApiError):
            if answer.already_exists:
                return await self._on_name_taken(deployment, name)
            message = f'Failed to create new replica set "{name}": {answer.message}'
            self._record_event(deployment, "ReplicaSetCreateError", message, warning=True)
            if has_deadline:
                conditions = deployment_plan.with_deployment_condition(
                    status.conditions,
                    deployment_plan.PROGRESSING,
                    "False",
                    "ReplicaSetCreateError",
                    answer.message,
                    now,
                )
                failed = msgspec.structs.replace(status, conditions=conditions)
                await patch_status(self._client, DEPLOYMENTS, deployment, status_patch(deployment.status, failed))
            return Requeue(answer.message)
        if wanted.replicas:
            message = f"Scaled up replica set {name} from 0 to {wanted.replicas}"
            self._record_event(deployment, "ScalingReplicaSet", message, answer)
        if not has_deadline:
            return status
        conditions = deployment_plan.with_deployment_condition(
            status.conditions,
            deployment_plan.PROGRESSING,
            "True",
            "NewReplicaSetCreated",
            f'Created new replica set "{name}"',
            now,
        )
        return msgspec.structs.replace(status, conditions=conditions)

    async def _on_name_taken(self, deployment: Deployment, name: str) -> Requeue:
        """Handle a name taken by the very ReplicaSet we want, still missing in the cache, or by another owner's."""
        meta = deployment.metadata
        live = await self._client.get(REPLICA_SETS, name, meta.namespace)
        if isinstance(live, ApiError):
            return Requeue(live.message)
        owner = controller_owner_of_kind(live.metadata, DEPLOYMENTS)
        if owner is not None and owner.uid == meta.uid and same_template(live.spec.template, deployment.spec.template):
            return Requeue(f"replica set {name} is not in the cache yet")
        collisions = (deployment.status.collision_count or 0) + 1
        patch = {"collisionCount": collisions}
        await patch_status(self._client, DEPLOYMENTS, deployment, patch, exactly=True)
        return Requeue(f"replica set {name} belongs to another template")

    async def _patch_replica_set(self, deployment: Deployment, change: ReplicaSetChange) -> ApiError | None:
        meta = change.set.metadata
        patch: Unstructured = {}
        if change.annotations:
            patch["metadata"] = {"annotations": change.annotations}
        spec: Unstructured = {}
        if change.replicas is not None:
            spec["replicas"] = change.replicas
        if change.min_ready_seconds is not None:
            spec["minReadySeconds"] = change.min_ready_seconds
        if spec:
            patch["spec"] = spec
        answer = await self._client.patch_object(REPLICA_SETS, change.set, patch, kind="merge", exactly=True)
        if isinstance(answer, ApiError):
            return answer
        self._written_versions.record(answer)
        before = desired_replicas(change.set)
        if change.replicas is not None and change.replicas != before:
            way = "up" if change.replicas > before else "down"
            message = f"Scaled {way} replica set {meta.name} from {before} to {change.replicas}"
            self._record_event(deployment, "ScalingReplicaSet", message, answer)
        return None

    def _record_event(
        self,
        deployment: Deployment,
        reason: str,
        message: str,
        about: ReplicaSet | None = None,
        *,
        warning: bool = False,
    ) -> None:
        related = recorder.object_reference(REPLICA_SETS, about) if about is not None else None
        regarding = recorder.object_reference(DEPLOYMENTS, deployment)
        type: recorder.EventType = "Warning" if warning else "Normal"
        self._context.recorder.record(regarding, type, reason, message, related=related)
