"""Evict pods for preemption and for quotas that are over-used, and record every eviction."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Literal

import msgspec

from koord.api.kubernetes.rbac import RbacRule
from koord.api.model import ObjectReference
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS
from koord.scheduler.framework.decision import PreemptionPlan
from koord.scheduler.preemption.evaluator import PreemptionsInProgress
from koord.scheduler.status_reporter import event_subject_of
from koord.scheduler.waiting_pods import WaitingPods
from koord.telemetry.clock import Clock, now
from koord.values import timestamp

MAX_EVICTION_RECORDS = 500

EvictionOutcome = Literal["evicted", "refused", "failed"]  # the server said no; there was no answer


class SchedulerEvictionRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Record one eviction: who wanted it, by which rule, on which numbers, why this pod, and what came of it."""

    at: float
    actor: str  # the plugin
    rule: str
    pod: str  # namespace/name
    uid: str
    node: str
    measured: str
    threshold: str
    why: str
    outcome: EvictionOutcome
    detail: str = ""


class SchedulerEvictionLog:
    """Keep the newest eviction records: what is older is in events and in the log."""

    def __init__(self, most: int = MAX_EVICTION_RECORDS) -> None:
        self._records: deque[SchedulerEvictionRecord] = deque(maxlen=most)

    def add(self, record: SchedulerEvictionRecord) -> None:
        self._records.append(record)

    def __iter__(self) -> Iterator[SchedulerEvictionRecord]:
        """Iterate over the records, newest first."""
        return reversed(self._records)

    def __len__(self) -> int:
        return len(self._records)


_LOG = logging.getLogger(__name__)

_MAX_CONCURRENT_EVICTIONS = 16
_DELETE_TRIES = 3


class SchedulerEvictor:
    """Delete the victims of preemptions, and evict pods for controllers.

    The preemptor is held back in the queue while its victims are deleted, except for the last: that deletion wakes it.
    `failed` is called when a victim could not be deleted and the preemptor should be tried again.
    """

    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("pods",), ("delete",)),  # preemption
        RbacRule("", ("pods/eviction",), ("create",)),  # pods of overused quotas
        RbacRule("", ("pods/status",), ("patch",)),  # the condition of a victim
    )

    def __init__(
        self,
        client: Client,
        clock: Clock,
        recorders: Mapping[str, EventRecorder],
        waiting_pods: WaitingPods,
        in_progress: PreemptionsInProgress,
        *,
        failed: Callable[[PodInfo], None],
    ) -> None:
        self._client = client
        self._clock = clock
        self._recorders = recorders
        self._waiting_pods = waiting_pods
        self._in_progress = in_progress
        self._on_failed = failed
        self._semaphore = asyncio.Semaphore(_MAX_CONCURRENT_EVICTIONS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._quiet = RateLimitedLog(_LOG, clock)
        self.evicted_count = 0
        self.evictions = SchedulerEvictionLog()

    def execute_preemption(self, pod: PodInfo, plan: PreemptionPlan) -> None:
        victims = [victim for victim in plan.victims if not victim.deleting]
        if not victims:  # all are being deleted already, and that will wake the pod
            return
        self._in_progress.begin(pod.uid)
        task = asyncio.create_task(self._evict_all(pod, plan, victims), name=f"preempt-for-{pod.key}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def serves_scheduler(self, scheduler: str) -> bool:
        """Return whether pods of that scheduler may be evicted by this process."""
        return scheduler in self._recorders

    async def evict(self, victim: PodInfo, *, actor: str, rule: str, measured: str, threshold: str, why: str) -> bool:
        """Evict a pod within its disruption budgets; return whether the server accepted."""
        outcome: EvictionOutcome = "evicted"
        detail = ""
        async with self._semaphore:
            try:
                answer = await self._client.evict(victim.namespace, victim.name, uid=victim.uid)
            except TRANSIENT_ERRORS as outage:
                outcome, detail = "failed", str(outage)
            else:
                if answer is not None and not (answer.not_found or answer.conflict):
                    outcome, detail = "refused", str(answer)
        numbers = {"measured": measured, "threshold": threshold, "why": why}
        self._record(victim, actor, rule, numbers, outcome, detail)
        if outcome != "evicted":
            self._quiet.warning("%s is not evicted by %s: %s", victim.key, actor, detail)
            return False
        self.evicted_count += 1
        note = f"{rule}: {measured}; {threshold}; {why}"
        self._recorders[victim.scheduler].record(_victim_reference(victim), "Warning", rule, note, action="Evicting")
        return True

    def _record(
        self,
        victim: PodInfo,
        actor: str,
        rule: str,
        numbers: Mapping[str, str],
        outcome: EvictionOutcome,
        detail: str = "",
    ) -> None:
        self.evictions.add(
            SchedulerEvictionRecord(
                at=self._clock.time(),
                actor=actor,
                rule=rule,
                pod=victim.key,
                uid=victim.uid,
                node=victim.node_name,
                outcome=outcome,
                detail=detail,
                **numbers,
            )
        )

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _evict_all(self, pod: PodInfo, plan: PreemptionPlan, victims: list[PodInfo]) -> None:
        *others, last = victims
        done = False
        try:
            results = await asyncio.gather(*(self._evict_one(pod, plan, victim) for victim in others))
            self._in_progress.begin_last_victim(pod.uid, last.uid)
            done = await self._evict_one(pod, plan, last) and all(results)
        finally:
            self._in_progress.end(pod.uid)
            if not done:
                self._on_failed(pod)

    async def _evict_one(self, pod: PodInfo, plan: PreemptionPlan, victim: PodInfo) -> bool:
        gone = await self._delete_victim(pod, plan, victim)
        numbers = {
            "measured": f"priority {victim.priority}",
            "threshold": f"{pod.key} has priority {pod.priority}",
            "why": plan.why,
        }
        self._record(victim, plan.plugin, "Preemption", numbers, "evicted" if gone else "failed")
        return gone

    async def _delete_victim(self, pod: PodInfo, plan: PreemptionPlan, victim: PodInfo) -> bool:
        note = f"Preempted by pod {pod.uid} on node {plan.node}"
        if self._waiting_pods.reject(victim.uid, plan.plugin, "preempted"):
            self._record_event(victim, pod, note)
            return True  # it only waited for its node: nothing runs that would have to be ended
        async with self._semaphore:
            for _ in range(_DELETE_TRIES):
                try:
                    await self._write_disruption_target(victim, pod)
                    answer = await self._client.delete(PODS, victim.name, victim.namespace, uid=victim.uid)
                except TRANSIENT_ERRORS as outage:
                    self._quiet.warning("the victim %s is not deleted: %s", victim.key, outage)
                    return False
                if not isinstance(answer, ApiError):
                    self.evicted_count += 1
                    self._record_event(victim, pod, note)
                    return True
                if answer.not_found or answer.conflict:
                    return True  # it is gone, or another pod has its name now
                if not answer.too_many and answer.code < 500:
                    break
                await self._clock.sleep(answer.retry_after_s or 1.0)
            self._quiet.warning("the victim %s is not deleted: %s", victim.key, answer)
            return False

    async def _write_disruption_target(self, victim: PodInfo, pod: PodInfo) -> None:
        """Write the DisruptionTarget condition that tells the victim's owner why; the deletion does not
        depend on it.
        """
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{pod.scheduler}: preempting to accommodate a higher priority pod",
            "lastTransitionTime": timestamp.text(now(self._clock)),
            "lastProbeTime": None,
        }
        patch = {"status": {"conditions": [condition]}}
        answer = await self._client.patch(
            PODS, victim.name, patch, victim.namespace, kind="strategic", subresource="status", uid=victim.uid
        )
        if isinstance(answer, ApiError) and not (answer.not_found or answer.conflict):
            self._quiet.warning("the victim %s is not marked: %s", victim.key, answer)

    def _record_event(self, victim: PodInfo, pod: PodInfo, note: str) -> None:
        self._recorders[pod.scheduler].record(
            _victim_reference(victim), "Normal", "Preempted", note, action="Preempting", related=event_subject_of(pod)
        )


def _victim_reference(pod: PodInfo) -> ObjectReference:
    return ObjectReference(api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid)
