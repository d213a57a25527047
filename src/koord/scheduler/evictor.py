"""Evict pods for preemption and for quotas that are over-used, and record every eviction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import ClassVar

import msgspec

from koord.api.kubernetes.rbac import RbacRule
from koord.api.model import ObjectReference
from koord.kube.client.eviction import EvictionResult, delete_pod, evict_pod
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.policy.eviction import EVICTED, FAILED, KOORD_SCHEDULER, EvictionLedger, EvictionRecord, record_annotations
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS
from koord.scheduler.framework.decision import PreemptionPlan
from koord.scheduler.metrics import MetricsRecorder
from koord.scheduler.preemption.evaluator import PreemptionsInProgress
from koord.scheduler.status_reporter import event_subject_of
from koord.scheduler.waiting_pods import WaitingPods
from koord.telemetry.clock import Clock, now
from koord.values import timestamp

PREEMPTION = "Preemption"  # the rule

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
        metrics: MetricsRecorder,
    ) -> None:
        self._metrics = metrics
        self._client = client
        self._clock = clock
        self._recorders = recorders
        self._waiting_pods = waiting_pods
        self._in_progress = in_progress
        self._on_failed = failed
        self._semaphore = asyncio.Semaphore(_MAX_CONCURRENT_EVICTIONS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._quiet = RateLimitedLog(_LOG, clock)
        self.ledger = EvictionLedger()

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

    async def evict(self, victim: PodInfo, record: EvictionRecord) -> bool:
        """Evict a pod within its disruption budgets; return whether the server accepted."""
        async with self._semaphore:
            result = await evict_pod(self._client, victim.namespace, victim.name, uid=victim.uid)
        record = record.concluded(self._clock.time(), result.outcome, result.detail)
        self.ledger.add(record)
        if not result.evicted:
            self._quiet.warning("%s is not evicted by %s: %s", victim.key, record.plugin, result.error_text)
            return False
        note = f"{record.rule}: {record.measured}; {record.threshold}; {record.why_this_pod}"
        self._recorders[victim.scheduler].record(
            _victim_reference(victim),
            "Warning",
            record.rule,
            note,
            action="Evicting",
            annotations=record_annotations(record),
        )
        return True

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _evict_all(self, pod: PodInfo, plan: PreemptionPlan, victims: list[PodInfo]) -> None:
        *others, last = victims
        done = False
        began = self._clock.monotonic()
        try:
            results = await asyncio.gather(*(self._preempt_one(pod, plan, victim) for victim in others))
            self._in_progress.begin_last_victim(pod.uid, last.uid)
            done = await self._preempt_one(pod, plan, last) and all(results)
        finally:
            self._in_progress.end(pod.uid)
            self._metrics.victims_ended("success" if done else "error", self._clock.monotonic() - began)
            if not done:
                self._on_failed(pod)

    async def _preempt_one(self, pod: PodInfo, plan: PreemptionPlan, victim: PodInfo) -> bool:
        if self._waiting_pods.reject(victim.uid, plan.plugin, "preempted"):
            # It only waited for its node: nothing runs that would have to be ended.
            result = EvictionResult(outcome=EVICTED, detail="it waited for its node and was rejected there")
        else:
            result = await self._delete_victim(pod, victim)
        record = _preemption_record(pod, plan, victim).concluded(self._clock.time(), result.outcome, result.detail)
        self.ledger.add(record)
        if not result.evicted:
            self._quiet.warning("the victim %s is not deleted: %s", victim.key, result.error_text)
        elif not result.was_gone:
            self._recorders[pod.scheduler].record(
                _victim_reference(victim),
                "Normal",
                "Preempted",
                f"Preempted by pod {pod.uid} on node {plan.node}",
                action="Preempting",
                related=event_subject_of(pod),
                annotations=record_annotations(record),
            )
        return result.evicted

    async def _delete_victim(self, pod: PodInfo, victim: PodInfo) -> EvictionResult:
        result = EvictionResult(outcome=FAILED)
        async with self._semaphore:
            for _ in range(_DELETE_TRIES):
                try:
                    await self._write_disruption_target(victim, pod)
                except TRANSIENT_ERRORS as outage:
                    return EvictionResult(outcome=FAILED, detail=str(outage))
                result = await delete_pod(self._client, victim.namespace, victim.name, uid=victim.uid)
                if result.error is None or not result.may_pass:
                    break
                await self._clock.sleep(result.error.retry_after_s or 1.0)
        return result

    async def _write_disruption_target(self, victim: PodInfo, pod: PodInfo) -> None:
        """Write the DisruptionTarget condition that tells the victim's owner why; deletion does not depend on it."""
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


def victim_record(victim: PodInfo, *, plugin: str, rule: str) -> EvictionRecord:
    """Begin the record of a pod that the scheduler evicts."""
    return EvictionRecord(
        actor=KOORD_SCHEDULER,
        plugin=plugin,
        rule=rule,
        namespace=victim.namespace,
        name=victim.name,
        uid=victim.uid,
        node=victim.node_name,
    )


def _preemption_record(pod: PodInfo, plan: PreemptionPlan, victim: PodInfo) -> EvictionRecord:
    subject = event_subject_of(pod)
    preemptor = f"{subject.namespace}/{subject.name}" if subject.namespace else subject.name
    place = next(number for number, one in enumerate(plan.victims, 1) if one.uid == victim.uid)
    return msgspec.structs.replace(
        victim_record(victim, plugin=plan.plugin, rule=PREEMPTION),
        reason=f"Preempted by pod {pod.uid} on node {plan.node}",
        measured=f"priority {victim.priority}",
        threshold=f"{pod.key} has priority {pod.priority}",
        rank=f"{place} of {len(plan.victims)} victims, the most important first",
        why_this_pod=plan.why,
        request=f"{subject.kind} {preemptor}",
        request_uid=pod.uid,
    )


def _victim_reference(pod: PodInfo) -> ObjectReference:
    return ObjectReference(api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid)
