"""The disruption controller computes how many of the pods that a PodDisruptionBudget selects may be
disrupted now.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from koord.api.builtin import (
    DEPLOYMENTS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
)
from koord.api.core import Pod
from koord.api.meta import Condition, OwnerReference
from koord.api.policy import PodDisruptionBudget, PodDisruptionBudgetStatus
from koord.embedded.workloads.context import Context, seconds_until
from koord.embedded.workloads.discovery import Kinds, discover
from koord.embedded.workloads.ownership import controlled_by, controller_of, index_by_selector, selecting
from koord.embedded.workloads.pod_state import ready
from koord.embedded.workloads.selecting import pin, pins, selector_of
from koord.embedded.workloads.status import difference, write_status
from koord.kube import recorder
from koord.kube.cache import Change, Key, key_of
from koord.kube.controller import Done, Outcome, Requeue, Retry
from koord.kube.refused import Refused
from koord.kube.workqueue import WorkQueue
from koord.values.int_or_string import IntOrStringError, scaled
from koord.values.selector import Selector

# An eviction that was allowed and never came: after this long the pod counts again.
EVICTION_S = 120
_LABELS = "labels"
# Pods come and go in bursts; a budget that is this much late refuses a little longer, never too little.
_PATIENCE_S = 0.05
ALLOWED = "DisruptionAllowed"


class Scale(msgspec.Struct, frozen=True):
    """The number of pods that a controller wants. `uid` names it: two ReplicaSets of one Deployment want the
    same pods.
    """

    uid: str
    replicas: int


class View(msgspec.Struct, frozen=True, kw_only=True):
    budget: PodDisruptionBudget
    pods: tuple[Pod, ...]  # that the budget selects
    scales: Mapping[str, Scale] = {}  # by the UID of the pods' controllers
    now: datetime


class Numbers(msgspec.Struct, frozen=True):
    expected: int
    desired: int


class Trouble(msgspec.Struct, frozen=True):
    message: str


def counts_controllers(budget: PodDisruptionBudget) -> bool:
    """Return whether the budget is relative to what controllers want, rather than a number of pods."""
    return budget.spec.max_unavailable is not None or isinstance(budget.spec.min_available, str)


def decide_numbers(seen: View) -> Numbers | Trouble:
    spec = seen.budget.spec
    expected = len(seen.pods)
    if counts_controllers(seen.budget):
        owners: dict[str, int] = {}
        for pod in seen.pods:
            owner = controller_of(pod.metadata)
            if owner is None:
                continue  # an unmanaged pod adds nothing to what is wanted; it is said in an event
            if owner.uid not in seen.scales:
                return Trouble(f'found no controllers for pod "{pod.metadata.name}"')
            scale = seen.scales[owner.uid]
            owners[scale.uid] = scale.replicas
        expected = sum(owners.values())
    try:
        if spec.max_unavailable is not None:
            return Numbers(expected, max(0, expected - scaled(spec.max_unavailable, expected, round_up=True)))
        if spec.min_available is not None:
            return Numbers(expected, scaled(spec.min_available, expected, round_up=True))
    except IntOrStringError as error:
        return Trouble(str(error))
    return Numbers(expected, 0)


def still_disrupted(seen: View) -> dict[str, datetime | None]:
    """Return the pods whose eviction was allowed but not seen yet, until the eviction times out."""
    known = seen.budget.status.disrupted_pods
    if not known:
        return {}
    kept: dict[str, datetime | None] = {}
    for pod in seen.pods:
        since = known.get(pod.metadata.name)
        if since is None or pod.metadata.deletion_timestamp is not None:
            continue
        if since + timedelta(seconds=EVICTION_S) > seen.now:
            kept[pod.metadata.name] = since
    return kept


def decide_status(seen: View) -> PodDisruptionBudgetStatus:
    budget, old = seen.budget, seen.budget.status
    generation = budget.metadata.generation
    numbers = decide_numbers(seen)
    if isinstance(numbers, Trouble):
        # A budget that cannot be counted allows nothing: closed is the safe side.
        condition = _condition(old.conditions, "False", "SyncFailed", numbers.message, generation, seen.now)
        return msgspec.structs.replace(old, disruptions_allowed=0, observed_generation=generation, conditions=condition)
    disrupted = still_disrupted(seen)
    healthy = sum(
        ready(pod) and pod.metadata.deletion_timestamp is None and pod.metadata.name not in disrupted
        for pod in seen.pods
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
        conditions=_condition(old.conditions, status, reason, "", generation, seen.now),
    )


def _condition(
    old: tuple[Condition, ...], status: str, reason: str, message: str, generation: int, now: datetime
) -> tuple[Condition, ...]:
    known = next((condition for condition in old if condition.type == ALLOWED), None)
    since = known.last_transition_time if known is not None and known.status == status else now
    made = Condition(
        type=ALLOWED,
        status=status,
        reason=reason,
        message=message,
        observed_generation=generation,
        last_transition_time=since,
    )
    return (*(condition for condition in old if condition.type != ALLOWED), made)


class Budgets:
    name = "disruption"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._client = context.client
        informers = context.informers
        self._budgets = informers.of(POD_DISRUPTION_BUDGETS)
        self._pods = context.pods()
        self._deployments = informers.of(DEPLOYMENTS)
        self._sets = informers.of(REPLICA_SETS)
        self._stateful = informers.of(STATEFUL_SETS)
        self._replication = informers.of(REPLICATION_CONTROLLERS)
        self._kinds: Kinds | None = None
        self._queue: WorkQueue[Key] = WorkQueue(context.clock, name=self.name)
        index_by_selector(self._budgets, _selector)
        self._budgets.on(self._budget_changed)
        self._pods.on(self._pod_changed)

    def _budget_changed(self, change: Change[PodDisruptionBudget]) -> None:
        if not self._pods.has_index(_LABELS):  # costs something for every pod, so only where someone asks
            self._pods.add_index(_LABELS, lambda pod: pins(pod.metadata.namespace, pod.metadata.labels))
        if change.old is None or change.old.spec != change.object.spec or change.object.status != change.old.status:
            self._queue.add(key_of(change.object))

    def _pod_changed(self, change: Change[Pod]) -> None:
        if not len(self._budgets):
            return
        found = selecting(self._budgets, change.object.metadata, _selector)
        if change.old is not None and change.old.metadata.labels != change.object.metadata.labels:
            found += selecting(self._budgets, change.old.metadata, _selector)
        for budget in found:
            self._queue.add_after(key_of(budget), _PATIENCE_S)

    async def run(self) -> None:
        needs = (
            self._budgets, self._pods, self._deployments, self._sets, self._stateful, self._replication,
        )  # fmt: skip
        await self._context.work(self.name, self._queue, self.reconcile, needs)

    async def reconcile(self, key: Key) -> Outcome:
        budget = self._budgets.get(*key)
        if budget is None or budget.metadata.deletion_timestamp is not None:
            return Done()
        pods = self._guarded(budget)
        scales = await self._scales(pods) if counts_controllers(budget) else {}
        if isinstance(scales, Refused):
            return Requeue(scales.message)
        seen = View(budget=budget, pods=pods, scales=scales, now=self._context.now())
        status = decide_status(seen)
        self._tell(seen, status)
        patch = difference(budget.status, status)
        # Evictions write the same status: over a newer one of theirs we would give away what they took.
        answer = await write_status(self._client, POD_DISRUPTION_BUDGETS, budget, patch, exactly=True)
        if isinstance(answer, Refused) and not answer.not_found:
            return Requeue(answer.message)
        moments = [since for since in status.disrupted_pods.values() if since is not None]
        if not moments:
            return Done()
        return Retry(max(1.0, seconds_until(min(moments) + timedelta(seconds=EVICTION_S), seen.now)))

    def _guarded(self, budget: PodDisruptionBudget) -> tuple[Pod, ...]:
        selector = _selector(budget)
        value = pin(budget.metadata.namespace, selector)
        if not value:
            return ()
        return tuple(pod for pod in self._pods.by_index(_LABELS, value) if selector.matches(pod.metadata.labels))

    async def _scales(self, pods: tuple[Pod, ...]) -> dict[str, Scale] | Refused:
        scales: dict[str, Scale] = {}
        for pod in pods:
            owner = controller_of(pod.metadata)
            if owner is None or owner.uid in scales:
                continue
            scale = await self._scale(pod, owner)
            if isinstance(scale, Refused):
                return scale
            if scale is not None:
                scales[owner.uid] = scale
        return scales

    async def _scale(self, pod: Pod, owner: OwnerReference) -> Scale | Refused | None:
        """Return how many pods the controller wants; for a ReplicaSet of a Deployment, the Deployment's number."""
        where, meta = pod.metadata.namespace, pod.metadata
        if controlled_by(meta, REPLICA_SETS):
            replica_set = self._sets.get(where, owner.name)
            if replica_set is None or replica_set.metadata.uid != owner.uid:
                return None
            above = controlled_by(replica_set.metadata, DEPLOYMENTS)
            if above is None:
                return Scale(owner.uid, _or_one(replica_set.spec.replicas))
            deployment = self._deployments.get(where, above.name)
            if deployment is None or deployment.metadata.uid != above.uid:
                return None
            return Scale(above.uid, _or_one(deployment.spec.replicas))
        if controlled_by(meta, STATEFUL_SETS):
            stateful = self._stateful.get(where, owner.name)
            return Scale(owner.uid, _or_one(stateful.spec.replicas)) if stateful is not None else None
        if controlled_by(meta, REPLICATION_CONTROLLERS):
            replication = self._replication.get(where, owner.name)
            return Scale(owner.uid, _or_one(replication.spec.replicas)) if replication is not None else None
        return await self._scale_of_other(where, owner)

    async def _scale_of_other(self, namespace: str, owner: OwnerReference) -> Scale | Refused | None:
        """Return the scale of an unknown kind from its scale subresource, if it has one."""
        kind = self._kinds.of(owner.api_version, owner.kind) if self._kinds is not None else None
        if kind is None:
            found = await discover(self._client)
            if isinstance(found, Refused):
                return found
            self._kinds = found
            kind = found.of(owner.api_version, owner.kind)
        if kind is None or "scale" not in kind.subresources:
            return None
        scale = await self._client.plain.get(kind.resource, owner.name, namespace, subresource="scale")
        if isinstance(scale, Refused):
            return None if scale.not_found else scale
        return Scale(owner.uid, int((scale.get("spec") or {}).get("replicas") or 0))

    def _tell(self, seen: View, status: PodDisruptionBudgetStatus) -> None:
        about = recorder.reference(POD_DISRUPTION_BUDGETS, seen.budget)
        if not seen.pods and seen.budget.status.expected_pods != 0:
            self._context.recorder.record(about, "Normal", "NoPods", "No matching pods found")
        expired = [
            name
            for name, since in seen.budget.status.disrupted_pods.items()
            if since is not None and since + timedelta(seconds=EVICTION_S) <= seen.now
        ]
        for pod in seen.pods:
            if pod.metadata.name in expired and pod.metadata.deletion_timestamp is None:
                message = f'Pod was expected by PDB "{about.namespace}/{about.name}" to be deleted but it wasn\'t'
                self._context.recorder.record(recorder.reference(PODS, pod), "Warning", "NotDeleted", message)
        if counts_controllers(seen.budget):
            alone = [pod.metadata.name for pod in seen.pods if controller_of(pod.metadata) is None]
            if alone:
                message = f"pods selected by this budget have no controller, so nobody wants them to be many: {alone}"
                self._context.recorder.record(about, "Warning", "UnmanagedPods", message)


def _selector(budget: PodDisruptionBudget) -> Selector:
    return selector_of(budget.spec.selector)


def _or_one(replicas: int | None) -> int:
    return 1 if replicas is None else replicas
