"""The ReplicaSet controller keeps as many pods of a template alive as are wanted."""

from __future__ import annotations

from datetime import datetime

import msgspec

from koord.api.apps import ReplicaSet, ReplicaSetStatus
from koord.api.builtin import DEPLOYMENTS, PODS, REPLICA_SETS
from koord.api.core import Pod
from koord.api.part import PlainCondition
from koord.embedded.workloads.context import Context, seconds_until
from koord.embedded.workloads.expectation import Expectations
from koord.embedded.workloads.ownership import (
    apply_claims,
    controlled_by,
    decide_claims,
    index_by_controller,
    orphans,
    owned,
    reference,
)
from koord.embedded.workloads.pod_state import active, available, available_at, ready, terminating
from koord.embedded.workloads.pod_watch import PodWatch
from koord.embedded.workloads.pod_writer import BURST, PodWriter
from koord.embedded.workloads.ranking import victims
from koord.embedded.workloads.selecting import selector_of
from koord.embedded.workloads.status import difference, write_status
from koord.embedded.workloads.template import generated, labels_of, pod_from
from koord.kube.cache import Key
from koord.kube.controller import Done, Outcome, Requeue, Retry
from koord.kube.refused import Refused
from koord.kube.verb import Plain
from koord.kube.workqueue import WorkQueue
from koord.values.selector import Selector

FAILURE = "ReplicaFailure"
# The pods of a set this large change all the time: a short delay turns a burst of changes into one sync.
_LARGE = 50
_PATIENCE_PER_POD_S = 0.0005
_MOST_PATIENCE_S = 1.0


class View(msgspec.Struct, frozen=True, kw_only=True):
    set: ReplicaSet
    pods: tuple[Pod, ...]  # that the set owns and selects, whatever their state
    related: tuple[Pod, ...] = ()  # of all ReplicaSets of the same Deployment; read only when pods must be deleted
    settled: bool = True  # the cache shows all that was done so far
    leaving: frozenset[str] = frozenset()  # UIDs of pods that were deleted and still look alive
    now: datetime

    @property
    def alive(self) -> tuple[Pod, ...]:
        return tuple(pod for pod in self.pods if active(pod) and pod.metadata.uid not in self.leaving)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    create: int = 0
    delete: tuple[Pod, ...] = ()


def wanted(replica_set: ReplicaSet) -> int:
    replicas = replica_set.spec.replicas
    return 1 if replicas is None else replicas


def decide(seen: View) -> Plan:
    if not seen.settled or seen.set.metadata.deletion_timestamp is not None:
        return Plan()
    alive = seen.alive
    missing = wanted(seen.set) - len(alive)
    if missing > 0:
        return Plan(create=min(missing, BURST))
    if missing < 0:
        return Plan(delete=victims(alive, min(-missing, BURST), seen.related or seen.pods, seen.now))
    return Plan()


def decide_status(seen: View, plan: Plan, refused: Refused | None) -> ReplicaSetStatus:
    """Return the status. Pods that were just deleted no longer count: whoever decides on these numbers must
    not rely on them.
    """
    spec, old = seen.set.spec, seen.set.status
    gone = {pod.metadata.uid for pod in plan.delete} if refused is None else set()
    alive = [pod for pod in seen.alive if pod.metadata.uid not in gone]
    labels = labels_of(spec.template)
    return ReplicaSetStatus(
        replicas=len(alive),
        fully_labeled_replicas=sum(labels.items() <= pod.metadata.labels.items() for pod in alive),
        ready_replicas=sum(ready(pod) for pod in alive),
        available_replicas=sum(available(pod, spec.min_ready_seconds, seen.now) for pod in alive),
        terminating_replicas=sum(terminating(pod) or pod.metadata.uid in gone | seen.leaving for pod in seen.pods),
        observed_generation=seen.set.metadata.generation,
        conditions=_conditions(old.conditions, plan, refused, seen.now),
    )


def _conditions(
    old: tuple[PlainCondition, ...], plan: Plan, refused: Refused | None, now: datetime
) -> tuple[PlainCondition, ...]:
    """Keep the ReplicaFailure condition until a sync that wants a change succeeds, or nothing is wanted any
    more.
    """
    others = tuple(condition for condition in old if condition.type != FAILURE)
    if refused is None:
        return others
    known = next((condition for condition in old if condition.type == FAILURE), None)
    if known is not None:
        return old
    reason = "FailedCreate" if plan.create else "FailedDelete"
    failure = PlainCondition(
        type=FAILURE, status="True", last_transition_time=now, reason=reason, message=refused.message
    )
    return (*others, failure)


def next_look_s(seen: View) -> float | None:
    """Return the seconds until the next ready pod becomes available, or None."""
    wait = seen.set.spec.min_ready_seconds
    moments = [at for pod in seen.pods if active(pod) and (at := available_at(pod, wait)) is not None and at > seen.now]
    return seconds_until(min(moments), seen.now) if wait and moments else None


class ReplicaSets:
    name = "replicaset"

    def __init__(self, context: Context) -> None:
        self._context = context
        self._chance = context.chance(self.name)
        self._sets = context.informers.of(REPLICA_SETS)
        self._queue: WorkQueue[Key] = WorkQueue(context.clock, name=self.name)
        self._expectations = Expectations(context.clock)
        self._writer = PodWriter(context, REPLICA_SETS, self._expectations)
        index_by_controller(self._sets)
        watch = PodWatch(context, self._sets, self._expectations, _selector, self._wake)
        self._pods = watch.pods

    def _wake(self, key: Key) -> None:
        replica_set = self._sets.get(*key)
        if replica_set is not None and wanted(replica_set) >= _LARGE:
            self._queue.add_after(key, min(_MOST_PATIENCE_S, wanted(replica_set) * _PATIENCE_PER_POD_S))
        else:
            self._queue.add(key)

    async def run(self) -> None:
        await self._context.work(self.name, self._queue, self.reconcile, (self._sets, self._pods))

    def observe(self, replica_set: ReplicaSet, pods: tuple[Pod, ...]) -> View:
        excess = sum(active(pod) for pod in pods) > wanted(replica_set)
        return View(
            set=replica_set,
            pods=pods,
            related=self._related(replica_set) if excess else (),
            settled=self._expectations.fulfilled(replica_set.metadata.uid),
            leaving=self._expectations.leaving(replica_set.metadata.uid),
            now=self._context.now(),
        )

    def _related(self, replica_set: ReplicaSet) -> tuple[Pod, ...]:
        owner = controlled_by(replica_set.metadata, DEPLOYMENTS)
        family = owned(self._sets, owner.uid) if owner is not None else [replica_set]
        return tuple(pod for member in family for pod in owned(self._pods, member.metadata.uid))

    async def reconcile(self, key: Key) -> Outcome:
        replica_set = self._sets.get(*key)
        if replica_set is None:
            return Done()
        selector = _selector(replica_set)
        mine = owned(self._pods, replica_set.metadata.uid)
        claims = decide_claims(replica_set, selector, mine, orphans(self._pods, key[0], selector))
        if claims.adopt or claims.release:
            refused = await apply_claims(self._context.client, REPLICA_SETS, replica_set, PODS, claims)
            return Done() if refused is None else Requeue(refused.message)
        seen = self.observe(replica_set, claims.held)
        plan = decide(seen)
        refused = await self._apply(replica_set, plan)
        status = decide_status(seen, plan, refused)
        patch = difference(replica_set.status, status)
        answer = await write_status(self._context.client, REPLICA_SETS, replica_set, patch)
        if isinstance(answer, Refused) and not answer.not_found:
            return Requeue(answer.message)
        if refused is not None:
            return Requeue(refused.message)
        wait = next_look_s(seen)
        return Done() if wait is None else Retry(wait)

    async def _apply(self, replica_set: ReplicaSet, plan: Plan) -> Refused | None:
        if plan.create:
            _, refused = await self._writer.create(replica_set, [lambda: self._pod(replica_set)] * plan.create)
            return refused
        if plan.delete:
            return await self._writer.delete(replica_set, plan.delete)
        return None

    def _pod(self, replica_set: ReplicaSet) -> Plain:
        meta = replica_set.metadata
        return pod_from(
            replica_set.spec.template,
            name=generated(f"{meta.name}-", self._chance),
            generate_name=f"{meta.name}-",
            namespace=meta.namespace,
            owner=reference(REPLICA_SETS, replica_set),
        )


def _selector(replica_set: ReplicaSet) -> Selector:
    return selector_of(replica_set.spec.selector)
