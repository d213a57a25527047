"""The ReplicaSet controller keeps as many pods of a template alive as are wanted.

So does the one of ReplicationControllers, which are ReplicaSets of an older form.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS, REPLICA_SETS, REPLICATION_CONTROLLERS
from koord.api.kubernetes.core_v1 import ReplicationController
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.resource import Resource
from koord.api.kubernetes.workload import ReplicaSet, ReplicaSetSpec, ReplicaSetStatus
from koord.api.model import LegacyCondition
from koord.embedded.workloads import controller_ref, pod_control
from koord.embedded.workloads.controller_context import (
    ControllerContext,
    ControllerExpectations,
    status_patch,
    sync_result,
)
from koord.embedded.workloads.pod_control import (
    BURST_REPLICAS,
    OwnedPodWatch,
    PodControl,
    desired_replicas,
    generate_name,
    is_pod_active,
    pod_from_template,
    template_labels,
)
from koord.kube.client.request_builder import Unstructured
from koord.kube.controller.controller import Done, ReconcileResult, WorkQueue
from koord.kube.informer.cache import ObjectKey
from koord.kube.transport.api_error import ApiError
from koord.values.selector import Selector

REPLICA_FAILURE = "ReplicaFailure"
# The pods of a set this large change all the time: a short delay turns a burst of changes into one sync.
_LARGE_SET = 50
_BATCHING_PER_POD_S = 0.0005
_MAX_BATCHING_S = 1.0


class ReplicaSetView(msgspec.Struct, frozen=True, kw_only=True):
    set: ReplicaSet
    pods: tuple[Pod, ...]  # that the set owns and selects, whatever their state
    related: tuple[Pod, ...] = ()  # of all ReplicaSets of the same Deployment; read only when pods must be deleted
    expectations_met: bool = True  # the cache shows all that was done so far
    leaving: frozenset[str] = frozenset()  # UIDs of pods that were deleted and still look alive
    now: datetime

    @property
    def alive(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.pods if is_pod_active(pod) and pod.metadata.uid not in self.leaving)


class ReplicaSetPlan(msgspec.Struct, frozen=True, kw_only=True):
    create: int = 0
    delete: tuple[Pod, ...] = ()


def decide_replicas(view: ReplicaSetView) -> ReplicaSetPlan:
    if not view.expectations_met or view.set.metadata.deletion_timestamp is not None:
        return ReplicaSetPlan()
    alive = view.alive
    missing = desired_replicas(view.set) - len(alive)
    if missing > 0:
        return ReplicaSetPlan(create=min(missing, BURST_REPLICAS))
    if missing < 0:
        return ReplicaSetPlan(
            delete=pod_control.pods_to_delete(alive, min(-missing, BURST_REPLICAS), view.related or view.pods, view.now)
        )
    return ReplicaSetPlan()


def decide_replica_set_status(view: ReplicaSetView, plan: ReplicaSetPlan, refused: ApiError | None) -> ReplicaSetStatus:
    """Return the status. Pods that were just deleted no longer count: decisions must not rely on them."""
    spec, old = view.set.spec, view.set.status
    gone = {pod.metadata.uid for pod in plan.delete} if refused is None else set()
    alive = [pod for pod in view.alive if pod.metadata.uid not in gone]
    labels = template_labels(spec.template)
    return ReplicaSetStatus(
        replicas=len(alive),
        fully_labeled_replicas=sum(labels.items() <= pod.metadata.labels.items() for pod in alive),
        ready_replicas=sum(pod_control.is_pod_ready(pod) for pod in alive),
        available_replicas=sum(pod_control.is_pod_available(pod, spec.min_ready_seconds, view.now) for pod in alive),
        terminating_replicas=sum(
            pod_control.is_pod_terminating(pod) or pod.metadata.uid in gone | view.leaving for pod in view.pods
        ),
        observed_generation=view.set.metadata.generation,
        conditions=_conditions(old.conditions, plan, refused, view.now),
    )


def _conditions(
    old: tuple[LegacyCondition, ...], plan: ReplicaSetPlan, refused: ApiError | None, now: datetime
) -> tuple[LegacyCondition, ...]:
    """Keep the ReplicaFailure condition until a sync that wants a change succeeds, or nothing is wanted any more."""
    others = tuple(condition for condition in old if condition.type != REPLICA_FAILURE)
    if refused is None:
        return others
    known = next((condition for condition in old if condition.type == REPLICA_FAILURE), None)
    if known is not None:
        return old
    reason = "FailedCreate" if plan.create else "FailedDelete"
    failure = LegacyCondition(
        type=REPLICA_FAILURE, status="True", last_transition_time=now, reason=reason, message=refused.message
    )
    return (*others, failure)


class ReplicaSetController:
    name = "replicaset"
    resource: Resource[Any] = REPLICA_SETS

    def as_replica_set(self, owner: Any) -> ReplicaSet:
        replica_set: ReplicaSet = owner
        return replica_set

    def _selector(self, owner: Any) -> Selector:
        return controller_ref.spec_selector(self.as_replica_set(owner))

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._rng = context.rng_for(self.name)
        self._sets = context.informers.for_resource(self.resource)
        self._queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name=self.name)
        self._expectations = ControllerExpectations(context.clock)
        self._writer = PodControl(context, self.resource, self._expectations)
        controller_ref.index_by_controller(self._sets)
        watch = OwnedPodWatch(context, self._sets, self._expectations, self._selector, self._enqueue)
        self._pods = watch.pods

    def _enqueue(self, key: ObjectKey) -> None:
        owner = self._sets.get(*key)
        if owner is not None and desired_replicas(owner) >= _LARGE_SET:
            self._queue.add_after(key, min(_MAX_BATCHING_S, desired_replicas(owner) * _BATCHING_PER_POD_S))
        else:
            self._queue.add(key)

    async def run(self) -> None:
        await self._context.run_controller(self.name, self._queue, self.reconcile, (self._sets, self._pods))

    def observe(self, replica_set: ReplicaSet, pods: tuple[Pod, ...]) -> ReplicaSetView:
        excess = sum(is_pod_active(pod) for pod in pods) > desired_replicas(replica_set)
        return ReplicaSetView(
            set=replica_set,
            pods=pods,
            related=self._related(replica_set) if excess else (),
            expectations_met=self._expectations.fulfilled(replica_set.metadata.uid),
            leaving=self._expectations.pending_deletions(replica_set.metadata.uid),
            now=self._context.now(),
        )

    def _related(self, replica_set: ReplicaSet) -> tuple[Pod, ...]:
        owner = controller_ref.controller_owner_of_kind(replica_set.metadata, DEPLOYMENTS)
        family = controller_ref.owned_objects(self._sets, owner.uid) if owner is not None else [replica_set]
        return tuple(pod for member in family for pod in controller_ref.owned_objects(self._pods, member.metadata.uid))

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        owner = self._sets.get(*key)
        if owner is None:
            return Done()
        held = await controller_ref.claim_objects(
            self._context.client, self.resource, owner, self._selector(owner), self._pods
        )
        if not isinstance(held, tuple):
            return held
        replica_set = self.as_replica_set(owner)
        view = self.observe(replica_set, held)
        plan = decide_replicas(view)
        refused = await self._apply(replica_set, plan)
        status = decide_replica_set_status(view, plan, refused)
        patch = status_patch(replica_set.status, status)
        if self.resource is not REPLICA_SETS:
            patch.pop("terminatingReplicas", None)  # which the older form does not have
        ended = await self._context.update_status(self.resource, owner, patch)
        if ended is not None:
            return ended
        active = (pod for pod in view.pods if is_pod_active(pod))
        return sync_result(refused, pod_control.next_available_s(active, replica_set.spec.min_ready_seconds, view.now))

    async def _apply(self, replica_set: ReplicaSet, plan: ReplicaSetPlan) -> ApiError | None:
        if plan.create:
            _, refused = await self._writer.create(replica_set, [lambda: self._pod(replica_set)] * plan.create)
            return refused
        if plan.delete:
            return await self._writer.delete(replica_set, plan.delete)
        return None

    def _pod(self, replica_set: ReplicaSet) -> Unstructured:
        meta = replica_set.metadata
        return pod_from_template(
            replica_set.spec.template,
            name=generate_name(f"{meta.name}-", self._rng),
            generate_name=f"{meta.name}-",
            namespace=meta.namespace,
            owner=controller_ref.controller_reference(self.resource, replica_set),
        )


class ReplicationControllerController(ReplicaSetController):
    name = "replicationcontroller"
    resource = REPLICATION_CONTROLLERS

    def as_replica_set(self, owner: ReplicationController) -> ReplicaSet:
        spec, status = owner.spec, owner.status
        return ReplicaSet(
            metadata=owner.metadata,
            spec=ReplicaSetSpec(
                replicas=spec.replicas,
                min_ready_seconds=spec.min_ready_seconds,
                selector=LabelSelector(match_labels=spec.selector),
                template=spec.template or {},
            ),
            status=ReplicaSetStatus(
                replicas=status.replicas,
                fully_labeled_replicas=status.fully_labeled_replicas,
                ready_replicas=status.ready_replicas,
                available_replicas=status.available_replicas,
                observed_generation=status.observed_generation,
                conditions=status.conditions,
            ),
        )
