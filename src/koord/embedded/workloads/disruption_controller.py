"""The disruption controller computes how many of the pods that a PodDisruptionBudget selects may be disrupted now."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from koord.api.kubernetes import builtin_kinds
from koord.api.kubernetes.meta import Condition, OwnerReference
from koord.api.kubernetes.pod import Pod
from koord.api.kubernetes.pod_policy import PodDisruptionBudget, PodDisruptionBudgetStatus
from koord.embedded.workloads import controller_context, controller_ref
from koord.embedded.workloads.pod_control import is_pod_ready
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.events import recorder
from koord.kube.informer.cache import ObjectChange, ObjectKey, object_key
from koord.kube.transport.api_error import ApiError
from koord.values.int_or_string import IntOrStringError, scaled_value

# An eviction that was allowed and never came: after this long the pod counts again.
EVICTION_TIMEOUT_S = 120
_LABEL_INDEX = "labels"
# Pods come and go in bursts; a budget that is this much late refuses a little longer, never too little.
_BATCHING_S = 0.05
DISRUPTION_ALLOWED = "DisruptionAllowed"


class ControllerScale(msgspec.Struct, frozen=True):
    """The number of pods that a controller wants. `uid`: two ReplicaSets of one Deployment want the same pods."""

    uid: str
    replicas: int


class BudgetView(msgspec.Struct, frozen=True, kw_only=True):
    budget: PodDisruptionBudget
    pods: tuple[Pod, ...]  # that the budget selects
    scales: Mapping[str, ControllerScale] = {}  # by the UID of the pods' controllers
    now: datetime


class BudgetNumbers(msgspec.Struct, frozen=True):
    expected: int
    desired: int


class BudgetError(msgspec.Struct, frozen=True):
    message: str


def needs_controller_scale(budget: PodDisruptionBudget) -> bool:
    """Return whether the budget is relative to what controllers want, rather than a number of pods."""
    return budget.spec.max_unavailable is not None or isinstance(budget.spec.min_available, str)


def decide_budget_numbers(view: BudgetView) -> BudgetNumbers | BudgetError:
    spec = view.budget.spec
    expected = len(view.pods)
    if needs_controller_scale(view.budget):
        owners: dict[str, int] = {}
        for pod in view.pods:
            owner = controller_ref.controller_owner(pod.metadata)
            if owner is None:
                continue  # an unmanaged pod adds nothing to what is wanted; it is said in an event
            if owner.uid not in view.scales:
                return BudgetError(f'found no controllers for pod "{pod.metadata.name}"')
            scale = view.scales[owner.uid]
            owners[scale.uid] = scale.replicas
        expected = sum(owners.values())
    try:
        if spec.max_unavailable is not None:
            return BudgetNumbers(
                expected, max(0, expected - scaled_value(spec.max_unavailable, expected, round_up=True))
            )
        if spec.min_available is not None:
            return BudgetNumbers(expected, scaled_value(spec.min_available, expected, round_up=True))
    except IntOrStringError as error:
        return BudgetError(str(error))
    return BudgetNumbers(expected, 0)


def pending_disruptions(view: BudgetView) -> dict[str, datetime | None]:
    """Return the pods whose eviction was allowed but not seen yet, until the eviction times out."""
    known = view.budget.status.disrupted_pods
    if not known:
        return {}
    kept: dict[str, datetime | None] = {}
    for pod in view.pods:
        since = known.get(pod.metadata.name)
        if since is None or pod.metadata.deletion_timestamp is not None:
            continue
        if since + timedelta(seconds=EVICTION_TIMEOUT_S) > view.now:
            kept[pod.metadata.name] = since
    return kept


def decide_budget_status(view: BudgetView) -> PodDisruptionBudgetStatus:
    budget, old = view.budget, view.budget.status
    generation = budget.metadata.generation
    numbers = decide_budget_numbers(view)
    if isinstance(numbers, BudgetError):
        # A budget that cannot be counted allows nothing: closed is the safe side.
        condition = _condition(old.conditions, "False", "SyncFailed", numbers.message, generation, view.now)
        return msgspec.structs.replace(old, disruptions_allowed=0, observed_generation=generation, conditions=condition)
    disrupted = pending_disruptions(view)
    healthy = sum(
        is_pod_ready(pod) and pod.metadata.deletion_timestamp is None and pod.metadata.name not in disrupted
        for pod in view.pods
    )
    allowed = max(0, healthy - numbers.desired) if numbers.expected > 0 else 0
    status, reason = ("True", "SufficientPods") if allowed > 0 else ("False", "InsufficientPods")
    return PodDisruptionBudgetStatus(
        observed_generation=generation,
        disrupted_pods=disrupted,
        disruptions_allowed=allowed,
        current_healthy=healthy,
        desired_healthy=numbers.desired,
        expected_pods=numbers.expected,
        conditions=_condition(old.conditions, status, reason, "", generation, view.now),
    )


def _condition(
    old: tuple[Condition, ...], status: str, reason: str, message: str, generation: int, now: datetime
) -> tuple[Condition, ...]:
    known = next((condition for condition in old if condition.type == DISRUPTION_ALLOWED), None)
    since = known.last_transition_time if known is not None and known.status == status else now
    made = Condition(
        type=DISRUPTION_ALLOWED,
        status=status,
        reason=reason,
        message=message,
        observed_generation=generation,
        last_transition_time=since,
    )
    return (*(condition for condition in old if condition.type != DISRUPTION_ALLOWED), made)


class DisruptionController:
    name = "disruption"

    def __init__(self, context: controller_context.ControllerContext) -> None:
        self._context = context
        self._client = context.client
        informers = context.informers
        self._budgets = informers.for_resource(builtin_kinds.POD_DISRUPTION_BUDGETS)
        self._pods = context.pods()
        self._deployments = informers.for_resource(builtin_kinds.DEPLOYMENTS)
        self._sets = informers.for_resource(builtin_kinds.REPLICA_SETS)
        self._stateful = informers.for_resource(builtin_kinds.STATEFUL_SETS)
        self._replication = informers.for_resource(builtin_kinds.REPLICATION_CONTROLLERS)
        self._kinds: controller_context.ServedKinds | None = None
        self._queue: WorkQueue[ObjectKey] = WorkQueue(context.clock, name=self.name)
        controller_ref.index_by_selector(self._budgets, controller_ref.spec_selector)
        self._budgets.add_event_handler(self._budget_changed)
        self._pods.add_event_handler(self._pod_changed)

    def _budget_changed(self, change: ObjectChange[PodDisruptionBudget]) -> None:
        if not self._pods.has_index(_LABEL_INDEX):  # costs something for every pod, so only where someone asks
            self._pods.add_index(
                _LABEL_INDEX, lambda pod: controller_ref.label_index_keys(pod.metadata.namespace, pod.metadata.labels)
            )
        if change.old is None or change.old.spec != change.object.spec or change.object.status != change.old.status:
            self._queue.add(object_key(change.object))

    def _pod_changed(self, change: ObjectChange[Pod]) -> None:
        if not len(self._budgets):
            return
        found = controller_ref.objects_selecting(self._budgets, change.object.metadata, controller_ref.spec_selector)
        if change.old is not None and change.old.metadata.labels != change.object.metadata.labels:
            found += controller_ref.objects_selecting(self._budgets, change.old.metadata, controller_ref.spec_selector)
        for budget in found:
            self._queue.add_after(object_key(budget), _BATCHING_S)

    async def run(self) -> None:
        needs = (
            self._budgets, self._pods, self._deployments, self._sets, self._stateful, self._replication,
        )  # fmt: skip
        await self._context.run_controller(self.name, self._queue, self.reconcile, needs)

    async def reconcile(self, key: ObjectKey) -> ReconcileResult:
        budget = self._budgets.get(*key)
        if budget is None or budget.metadata.deletion_timestamp is not None:
            return Done()
        pods = self._selected_pods(budget)
        scales = await self._scales(pods) if needs_controller_scale(budget) else {}
        if isinstance(scales, ApiError):
            return Requeue(scales.message)
        view = BudgetView(budget=budget, pods=pods, scales=scales, now=self._context.now())
        status = decide_budget_status(view)
        self._record_events(view, status)
        patch = controller_context.status_patch(budget.status, status)
        # Evictions write the same status: over a newer one of theirs we would give away what they took.
        ended = await self._context.update_status(builtin_kinds.POD_DISRUPTION_BUDGETS, budget, patch, exactly=True)
        if ended is not None:
            return ended
        moments = [since for since in status.disrupted_pods.values() if since is not None]
        if not moments:
            return Done()
        return RequeueAfter(
            max(1.0, controller_context.seconds_until(min(moments) + timedelta(seconds=EVICTION_TIMEOUT_S), view.now))
        )

    def _selected_pods(self, budget: PodDisruptionBudget) -> tuple[Pod, ...]:
        selector = controller_ref.spec_selector(budget)
        value = controller_ref.selector_index_key(budget.metadata.namespace, selector)
        if not value:
            return ()
        return tuple(pod for pod in self._pods.by_index(_LABEL_INDEX, value) if selector.matches(pod.metadata.labels))

    async def _scales(self, pods: tuple[Pod, ...]) -> dict[str, ControllerScale] | ApiError:
        scales: dict[str, ControllerScale] = {}
        for pod in pods:
            owner = controller_ref.controller_owner(pod.metadata)
            if owner is None or owner.uid in scales:
                continue
            scale = await self._scale(pod, owner)
            if isinstance(scale, ApiError):
                return scale
            if scale is not None:
                scales[owner.uid] = scale
        return scales

    async def _scale(self, pod: Pod, owner: OwnerReference) -> ControllerScale | ApiError | None:
        """Return how many pods the controller wants; for a ReplicaSet of a Deployment, the Deployment's number."""
        where, meta = pod.metadata.namespace, pod.metadata
        if controller_ref.controller_owner_of_kind(meta, builtin_kinds.REPLICA_SETS):
            replica_set = self._sets.get(where, owner.name)
            if replica_set is None or replica_set.metadata.uid != owner.uid:
                return None
            above = controller_ref.controller_owner_of_kind(replica_set.metadata, builtin_kinds.DEPLOYMENTS)
            if above is None:
                return ControllerScale(owner.uid, _replicas_or_one(replica_set.spec.replicas))
            deployment = self._deployments.get(where, above.name)
            if deployment is None or deployment.metadata.uid != above.uid:
                return None
            return ControllerScale(above.uid, _replicas_or_one(deployment.spec.replicas))
        if controller_ref.controller_owner_of_kind(meta, builtin_kinds.STATEFUL_SETS):
            stateful = self._stateful.get(where, owner.name)
            return (
                ControllerScale(owner.uid, _replicas_or_one(stateful.spec.replicas)) if stateful is not None else None
            )
        if controller_ref.controller_owner_of_kind(meta, builtin_kinds.REPLICATION_CONTROLLERS):
            replication = self._replication.get(where, owner.name)
            return (
                ControllerScale(owner.uid, _replicas_or_one(replication.spec.replicas))
                if replication is not None
                else None
            )
        return await self._scale_of_other(where, owner)

    async def _scale_of_other(self, namespace: str, owner: OwnerReference) -> ControllerScale | ApiError | None:
        """Return the scale of an unknown kind from its scale subresource, if it has one."""
        kind = self._kinds.find(owner.api_version, owner.kind) if self._kinds is not None else None
        if kind is None:
            found = await controller_context.discover(self._client)
            if isinstance(found, ApiError):
                return found
            self._kinds = found
            kind = found.find(owner.api_version, owner.kind)
        if kind is None or "scale" not in kind.subresources:
            return None
        scale = await self._client.dynamic.get(kind.resource, owner.name, namespace, subresource="scale")
        if isinstance(scale, ApiError):
            return None if scale.not_found else scale
        return ControllerScale(owner.uid, int((scale.get("spec") or {}).get("replicas") or 0))

    def _record_events(self, view: BudgetView, status: PodDisruptionBudgetStatus) -> None:
        about = recorder.object_reference(builtin_kinds.POD_DISRUPTION_BUDGETS, view.budget)
        if not view.pods and view.budget.status.expected_pods != 0:
            self._context.recorder.record(about, "Normal", "NoPods", "No matching pods found")
        expired = [
            name
            for name, since in view.budget.status.disrupted_pods.items()
            if since is not None and since + timedelta(seconds=EVICTION_TIMEOUT_S) <= view.now
        ]
        for pod in view.pods:
            if pod.metadata.name in expired and pod.metadata.deletion_timestamp is None:
                message = f'Pod was expected by PDB "{about.namespace}/{about.name}" to be deleted but it wasn\'t'
                self._context.recorder.record(
                    recorder.object_reference(builtin_kinds.PODS, pod), "Warning", "NotDeleted", message
                )
        if needs_controller_scale(view.budget):
            alone = [pod.metadata.name for pod in view.pods if controller_ref.controller_owner(pod.metadata) is None]
            if alone:
                message = f"pods selected by this budget have no controller, so nobody wants them to be many: {alone}"
                self._context.recorder.record(about, "Warning", "UnmanagedPods", message)


def _replicas_or_one(replicas: int | None) -> int:
    return 1 if replicas is None else replicas
