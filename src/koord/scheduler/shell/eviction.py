"""Evict the victims of a preemption and pods of over-used quotas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from koord.api.part import ObjectReference
from koord.kube.client import Client
from koord.kube.noise import QuietLog
from koord.kube.outage import OUTAGE
from koord.kube.recorder import Recorder
from koord.kube.refused import Refused
from koord.scheduler.framework.decision import Preempt
from koord.scheduler.preemption.under_way import UnderWay
from koord.scheduler.shell.departure import Departure, Departures, Outcome
from koord.scheduler.shell.teller import about_pod
from koord.scheduler.shell.waiting import WaitingRoom
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.wire import PODS
from koord.telemetry.clock import Clock, now

_LOG = logging.getLogger(__name__)

_AT_A_TIME = 16
_TRIES = 3


class Evictor:
    """Delete the victims of preemptions, and evict pods for controllers.

    The preemptor is held back in the queue while its victims are deleted, except for the last: that deletion wakes it.
    `failed` is called when a victim could not be deleted and the preemptor should be tried again.
    """

    def __init__(
        self,
        client: Client,
        clock: Clock,
        recorders: Mapping[str, Recorder],
        room: WaitingRoom,
        under_way: UnderWay,
        *,
        failed: Callable[[PodInfo], None],
    ) -> None:
        self._client = client
        self._clock = clock
        self._recorders = recorders
        self._room = room
        self._under_way = under_way
        self._failed = failed
        self._turn = asyncio.Semaphore(_AT_A_TIME)
        self._tasks: set[asyncio.Task[None]] = set()
        self._quiet = QuietLog(_LOG, clock)
        self.evicted = 0
        self.departures = Departures()

    def carry_out(self, pod: PodInfo, plan: Preempt) -> None:
        victims = [victim for victim in plan.victims if not victim.deleting]
        if not victims:  # all are being deleted already, and that will wake the pod
            return
        self._under_way.begin(pod.uid)
        task = asyncio.create_task(self._all(pod, plan, victims), name=f"preempt-for-{pod.key}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def serves(self, scheduler: str) -> bool:
        """Return whether pods of that scheduler may be evicted by this process."""
        return scheduler in self._recorders

    async def revoke(self, victim: PodInfo, *, actor: str, rule: str, measured: str, threshold: str, why: str) -> bool:
        """Evict a pod within its disruption budgets; return whether the server accepted."""
        outcome: Outcome = "evicted"
        detail = ""
        async with self._turn:
            try:
                answer = await self._client.evict(victim.namespace, victim.name, uid=victim.uid)
            except OUTAGE as outage:
                outcome, detail = "failed", str(outage)
            else:
                if answer is not None and not (answer.not_found or answer.conflict):
                    outcome, detail = "refused", str(answer)
        numbers = {"measured": measured, "threshold": threshold, "why": why}
        self._account(victim, actor, rule, numbers, outcome, detail)
        if outcome != "evicted":
            self._quiet.warning("%s is not evicted by %s: %s", victim.key, actor, detail)
            return False
        self.evicted += 1
        note = f"{rule}: {measured}; {threshold}; {why}"
        self._recorders[victim.scheduler].record(_about(victim), "Warning", rule, note, action="Evicting")
        return True

    def _account(
        self, victim: PodInfo, actor: str, rule: str, numbers: Mapping[str, str], outcome: Outcome, detail: str = ""
    ) -> None:
        self.departures.add(
            Departure(
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

    async def _all(self, pod: PodInfo, plan: Preempt, victims: list[PodInfo]) -> None:
        *others, last = victims
        done = False
        try:
            results = await asyncio.gather(*(self._one(pod, plan, victim) for victim in others))
            self._under_way.last(pod.uid, last.uid)
            done = await self._one(pod, plan, last) and all(results)
        finally:
            self._under_way.end(pod.uid)
            if not done:
                self._failed(pod)

    async def _one(self, pod: PodInfo, plan: Preempt, victim: PodInfo) -> bool:
        gone = await self._let_go(pod, plan, victim)
        numbers = {
            "measured": f"priority {victim.priority}",
            "threshold": f"{pod.key} has priority {pod.priority}",
            "why": plan.why,
        }
        self._account(victim, plan.plugin, "Preemption", numbers, "evicted" if gone else "failed")
        return gone

    async def _let_go(self, pod: PodInfo, plan: Preempt, victim: PodInfo) -> bool:
        note = f"Preempted by pod {pod.uid} on node {plan.node}"
        if self._room.refuse(victim.uid, plan.plugin, "preempted"):
            self._tell(victim, pod, note)
            return True  # it only waited for its node: nothing runs that would have to be ended
        async with self._turn:
            for _ in range(_TRIES):
                try:
                    await self._mark(victim, pod)
                    answer = await self._client.delete(PODS, victim.name, victim.namespace, uid=victim.uid)
                except OUTAGE as outage:
                    self._quiet.warning("the victim %s is not deleted: %s", victim.key, outage)
                    return False
                if not isinstance(answer, Refused):
                    self.evicted += 1
                    self._tell(victim, pod, note)
                    return True
                if answer.not_found or answer.conflict:
                    return True  # it is gone, or another pod has its name now
                if not answer.too_many and answer.code < 500:
                    break
                await self._clock.sleep(answer.retry_after_s or 1.0)
            self._quiet.warning("the victim %s is not deleted: %s", victim.key, answer)
            return False

    async def _mark(self, victim: PodInfo, pod: PodInfo) -> None:
        """Write the DisruptionTarget condition that tells the victim's owner why; the deletion does not depend on it.

        """
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{pod.scheduler}: preempting to accommodate a higher priority pod",
            "lastTransitionTime": now(self._clock).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lastProbeTime": None,
        }
        patch = {"status": {"conditions": [condition]}}
        answer = await self._client.patch(
            PODS, victim.name, patch, victim.namespace, kind="strategic", subresource="status", uid=victim.uid
        )
        if isinstance(answer, Refused) and not (answer.not_found or answer.conflict):
            self._quiet.warning("the victim %s is not marked: %s", victim.key, answer)

    def _tell(self, victim: PodInfo, pod: PodInfo, note: str) -> None:
        self._recorders[pod.scheduler].record(
            _about(victim), "Normal", "Preempted", note, action="Preempting", related=about_pod(pod)
        )


def _about(pod: PodInfo) -> ObjectReference:
    return ObjectReference(api_version="v1", kind="Pod", namespace=pod.namespace, name=pod.name, uid=pod.uid)
