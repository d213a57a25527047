"""The Deployment controller moves pods from one template to the next through ReplicaSets."""

from __future__ import annotations

from datetime import datetime

import msgspec

from koord.api.apps import Deployment, DeploymentStatus, ReplicaSet
from koord.api.builtin import DEPLOYMENTS, REPLICA_SETS
from koord.api.core import Pod
from koord.embedded.workloads import revision, rollout, rollout_status
from koord.embedded.workloads.context import Context
from koord.embedded.workloads.deployment_decision import NewSet, Plan, SetChange, View, decide, new_set
from koord.embedded.workloads.expectation import Expectations
from koord.embedded.workloads.freshness import Written
from koord.embedded.workloads.ownership import (
    apply_claims,
    controlled_by,
    decide_claims,
    index_by_controller,
    index_by_selector,
    orphans,
    owned,
    selecting,
)
from koord.embedded.workloads.pod_state import finished
from koord.embedded.workloads.rollout import size
from koord.embedded.workloads.selecting import selector_of
from koord.embedded.workloads.status import difference, write_status
from koord.embedded.workloads.template import same_template
from koord.kube import recorder
from koord.kube.cache import Change, Key, key_of
from koord.kube.controller import Done, Outcome, Requeue, Retry
from koord.kube.refused import Refused
from koord.kube.verb import Plain
from koord.kube.workqueue import WorkQueue
from koord.values.selector import Selector


class Deployments:
    name = "deployment"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._client = context.client
        self._deployments = context.informers.of(DEPLOYMENTS)
        self._sets = context.informers.of(REPLICA_SETS)
        self._pods = context.pods()
        self._queue: WorkQueue[Key] = WorkQueue(context.clock, name=self.name)
        self._expectations = Expectations(context.clock)
        self._written = Written()
        index_by_controller(self._sets)
        index_by_controller(self._pods)
        index_by_selector(self._deployments, _selector)
        self._deployments.on(self._deployment_changed)
        self._sets.on(self._set_changed)
        self._pods.on(self._pod_changed)

    def _deployment_changed(self, change: Change[Deployment]) -> None:
        if change.kind == "deleted":
            self._expectations.forget(change.object.metadata.uid)
        self._queue.add(key_of(change.object))

    def _set_changed(self, change: Change[ReplicaSet]) -> None:
        meta = change.object.metadata
        above = controlled_by(meta, DEPLOYMENTS)
        if above is not None:
            self._expectations.saw(above.uid, meta.uid)
        if change.kind == "deleted":
            self._written.forget(meta.uid)
        for seen in (change.object, change.old):
            owner = controlled_by(seen.metadata, DEPLOYMENTS) if seen is not None else None
            if owner is not None:
                self._queue.add((meta.namespace, owner.name))
        if change.kind != "deleted" and not any(ref.controller for ref in meta.owner_references):
            for candidate in selecting(self._deployments, meta, _selector):
                self._queue.add(key_of(candidate))

    def _pod_changed(self, change: Change[Pod]) -> None:
        """Enqueue a Deployment with the Recreate strategy, which waits for its last old pod to end."""
        pod = change.object
        if change.kind != "deleted" and not finished(pod):
            return
        owner = controlled_by(pod.metadata, REPLICA_SETS)
        replica_set = self._sets.get(pod.metadata.namespace, owner.name) if owner is not None else None
        above = controlled_by(replica_set.metadata, DEPLOYMENTS) if replica_set is not None else None
        deployment = self._deployments.get(pod.metadata.namespace, above.name) if above is not None else None
        if deployment is not None and deployment.spec.strategy.type == rollout.RECREATE:
            self._queue.add(key_of(deployment))

    async def run(self) -> None:
        await self._context.work(self.name, self._queue, self.reconcile, (self._deployments, self._sets, self._pods))

    async def reconcile(self, key: Key) -> Outcome:
        deployment = self._deployments.get(*key)
        if deployment is None:
            return Done()
        selector = _selector(deployment)
        claims = decide_claims(
            deployment,
            selector,
            owned(self._sets, deployment.metadata.uid),
            orphans(self._sets, key[0], selector),
        )
        if claims.adopt or claims.release:
            refused = await apply_claims(self._client, DEPLOYMENTS, deployment, REPLICA_SETS, claims)
            return Done() if refused is None else Requeue(refused.message)
        if not self._expectations.fulfilled(deployment.metadata.uid) or any(map(self._written.outdated, claims.held)):
            return Done()  # sizes are shared out between the sets: one old number would make the sum wrong
        seen = self.observe(deployment, claims.held)
        return await self.apply(deployment, decide(seen), seen.now)

    def observe(self, deployment: Deployment, sets: tuple[ReplicaSet, ...]) -> View:
        remain = False
        if deployment.spec.strategy.type == rollout.RECREATE:
            old = rollout.family_of(deployment, sets).old
            remain = any(not finished(pod) for s in old for pod in owned(self._pods, s.metadata.uid))
        return View(deployment=deployment, sets=sets, old_pods_remain=remain, now=self._context.now())

    async def apply(self, deployment: Deployment, plan: Plan, now: datetime) -> Outcome:
        """Write the ReplicaSets first, then the Deployment's own revision and status. Requeue when a write is
        refused.
        """
        status = plan.status
        if plan.make is not None:
            made = await self._make(deployment, plan.make, status, now)
            if isinstance(made, Requeue):
                return made
            status = made
        for change in plan.changes:
            refused = await self._change(deployment, change)
            if refused is not None:
                return Requeue(refused.message)
        for s in plan.remove:
            meta = s.metadata
            answer = await self._client.delete(
                REPLICA_SETS, meta.name, meta.namespace, uid=meta.uid, resource_version=meta.resource_version
            )
            if isinstance(answer, Refused) and not answer.not_found:
                return Requeue(answer.message)
        meta = deployment.metadata
        number = revision.revision_patch(deployment, plan.revision)
        if number is not None:
            written = await self._client.patch(
                DEPLOYMENTS, meta.name, number, meta.namespace, kind="merge", uid=meta.uid
            )
            if isinstance(written, Refused) and not written.not_found:
                return Requeue(written.message)
        patch = difference(deployment.status, status)
        told = await write_status(self._client, DEPLOYMENTS, deployment, patch)
        if isinstance(told, Refused) and not told.not_found:
            return Requeue(told.message)
        wait = rollout_status.next_look_s(deployment, status, now)
        return Done() if wait is None else Retry(wait)

    async def _make(
        self, deployment: Deployment, wanted: NewSet, status: DeploymentStatus, now: datetime
    ) -> DeploymentStatus | Requeue:
        body = new_set(deployment, wanted)
        name = body["metadata"]["name"]
        uid = deployment.metadata.uid
        self._expectations.creating(uid)
        answer: ReplicaSet | Refused | None = None
        try:
            answer = await self._client.create(REPLICA_SETS, body)
        finally:
            if isinstance(answer, ReplicaSet):
                self._expectations.created(uid, answer.metadata.uid)
            else:
                self._expectations.not_created(uid)
        has_deadline = rollout_status.deadline_s(deployment) is not None
        if isinstance(answer, Refused):
            if answer.already_exists:
                return await self._met(deployment, name)
            message = f'Failed to create new replica set "{name}": {answer.message}'
            self._tell(deployment, "ReplicaSetCreateError", message, warning=True)
            if has_deadline:
                conditions = rollout_status.with_condition(
                    status.conditions, rollout_status.PROGRESSING, "False", "ReplicaSetCreateError", answer.message, now
                )
                failed = msgspec.structs.replace(status, conditions=conditions)
                await write_status(self._client, DEPLOYMENTS, deployment, difference(deployment.status, failed))
            return Requeue(answer.message)
        if wanted.replicas:
            message = f"Scaled up replica set {name} from 0 to {wanted.replicas}"
            self._tell(deployment, "ScalingReplicaSet", message, answer)
        if not has_deadline:
            return status
        conditions = rollout_status.with_condition(
            status.conditions,
            rollout_status.PROGRESSING,
            "True",
            "NewReplicaSetCreated",
            f'Created new replica set "{name}"',
            now,
        )
        return msgspec.structs.replace(status, conditions=conditions)

    async def _met(self, deployment: Deployment, name: str) -> Requeue:
        """Handle a taken name: by the very ReplicaSet we want, which the cache does not show yet, or by another
        owner's.
        """
        meta = deployment.metadata
        live = await self._client.get(REPLICA_SETS, name, meta.namespace)
        if isinstance(live, Refused):
            return Requeue(live.message)
        owner = controlled_by(live.metadata, DEPLOYMENTS)
        if owner is not None and owner.uid == meta.uid and same_template(live.spec.template, deployment.spec.template):
            return Requeue(f"replica set {name} is not in the cache yet")
        collisions = (deployment.status.collision_count or 0) + 1
        patch = {"collisionCount": collisions}
        await write_status(self._client, DEPLOYMENTS, deployment, patch, exactly=True)
        return Requeue(f"replica set {name} belongs to another template")

    async def _change(self, deployment: Deployment, change: SetChange) -> Refused | None:
        meta = change.set.metadata
        patch: Plain = {}
        if change.annotations:
            patch["metadata"] = {"annotations": change.annotations}
        spec: Plain = {}
        if change.replicas is not None:
            spec["replicas"] = change.replicas
        if change.min_ready_seconds is not None:
            spec["minReadySeconds"] = change.min_ready_seconds
        if spec:
            patch["spec"] = spec
        answer = await self._client.patch(
            REPLICA_SETS,
            meta.name,
            patch,
            meta.namespace,
            kind="merge",
            uid=meta.uid,
            resource_version=meta.resource_version,
        )
        if isinstance(answer, Refused):
            return answer
        self._written.note(answer)
        before = size(change.set)
        if change.replicas is not None and change.replicas != before:
            way = "up" if change.replicas > before else "down"
            message = f"Scaled {way} replica set {meta.name} from {before} to {change.replicas}"
            self._tell(deployment, "ScalingReplicaSet", message, answer)
        return None

    def _tell(
        self,
        deployment: Deployment,
        reason: str,
        message: str,
        about: ReplicaSet | None = None,
        *,
        warning: bool = False,
    ) -> None:
        related = recorder.reference(REPLICA_SETS, about) if about is not None else None
        regarding = recorder.reference(DEPLOYMENTS, deployment)
        type: recorder.EventType = "Warning" if warning else "Normal"
        self._context.recorder.record(regarding, type, reason, message, related=related)


def _selector(deployment: Deployment) -> Selector:
    return selector_of(deployment.spec.selector)
