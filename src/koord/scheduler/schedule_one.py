"""Run the scheduling loop: pop a pod, decide, assume its node, Reserve and Permit; then bind it in a task of its own.

    run -> schedule_one: decide -> assume, Reserve, Permit -> binding cycle: wait, PreBind, Bind -> on_bound
                            |                 |                                 |
                            +-----------------+---------------------------------+--> undo, handle_scheduling_failure

Everything here runs on one event loop and nothing in `schedule_one` awaits, so a decision and the assumption that
follows from it are one step: no other event can come between them.

A pod that extenders are interested in is tried in a task of its own, one such pod at a time, while the loop goes on
with the others (`_schedule_extended`): decide -> ask the extenders -> decide again with their results, which is one
step with the assumption again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec

from koord.scheduler.bind import Binder, BindingContext
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.evictor import SchedulerEvictor
from koord.scheduler.extended_attempt import decide_with_extenders
from koord.scheduler.extender import Extenders
from koord.scheduler.framework.attempt import (
    AttemptFailure,
    AttemptLog,
    AttemptRecord,
    SchedulingAttempt,
    describe_error,
    failure_of_decision,
    failure_of_rejection,
    plugin_that_raised,
)
from koord.scheduler.framework.binding_runtime import run_post_bind
from koord.scheduler.framework.cluster_event import DELETE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.decision import (
    AttemptError,
    ChosenNode,
    Decision,
    PreemptionPlan,
    Unschedulable,
)
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.plugin_timing import AttemptTimer
from koord.scheduler.framework.runtime import (
    PluginRejection,
    run_attempt_failed,
    run_nominate_reservation,
    run_permit,
    run_reserve,
    run_unreserve,
)
from koord.scheduler.framework.verdict import StatusWrite
from koord.scheduler.metrics import PointTimer
from koord.scheduler.preemption.extender_review import PreemptionReview
from koord.scheduler.queue.queued_pod import QueuedPod
from koord.scheduler.queue.scheduling_queue import SchedulingQueue
from koord.scheduler.scheduler_monitor import AttemptDump, SchedulerMonitor
from koord.scheduler.status_reporter import StatusReporter
from koord.scheduler.workload_auditor import WorkloadAuditor
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

# Attempts between two yields to the event loop: few enough that answers are read in time, enough to pay for it.
_ATTEMPTS_PER_YIELD = 8
# After so many pods in a row runner-up nodes are no longer recorded.
_RUSH_AFTER_ATTEMPTS = 32
RUNNERS_UP = 3
_POD_DELETED = ClusterEvent("Pod", DELETE)


class SchedulingLoop:
    def __init__(
        self,
        *,
        state: ClusterState,
        queue: SchedulingQueue,
        wakeup: asyncio.Event,
        latest_pod: Callable[[PodInfo], Pod | None],
        engines: Mapping[str, SchedulingEngine],
        binder: Binder,
        evictor: SchedulerEvictor,
        status_reporter: StatusReporter,
        attempt_log: AttemptLog,
        clock: Clock,
        point_timer: PointTimer,
        next_pod_plugin: Plugin | None = None,
        monitor: SchedulerMonitor | None = None,
        observe_next_pod_s: Callable[[float], None] | None = None,
        extenders: Extenders | None = None,
        dump: AttemptDump | None = None,
        auditor: WorkloadAuditor | None = None,
    ) -> None:
        """Create the loop.

        Who makes a queued pod schedulable sets `wakeup`. `latest_pod` returns a pod as the watch last showed it.
        `monitor` reports attempts that last too long; `observe_next_pod_s` receives the seconds that taking a plugin's
        choice from the queue took. `auditor` records what becomes of each workload.
        """
        self.monitor = monitor
        self._observe_next_pod_s = observe_next_pod_s
        self._point_timer = point_timer
        self._next_pod_plugin = next_pod_plugin
        self._state = state
        self._queue = queue
        self._wakeup = wakeup
        self._latest_pod = latest_pod
        self._engines = engines
        self._binder = binder
        self._evictor = evictor
        self._status_reporter = status_reporter
        self._attempt_log = attempt_log
        self._clock = clock
        self._extenders = extenders
        self._dump = dump or AttemptDump()
        self._auditor = auditor
        self._extended_attempt: asyncio.Task[None] | None = None
        self._rush = False
        self._binding_cycles: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Schedule pods one by one until cancelled."""
        while True:
            self._wakeup.clear()
            turn = 0
            while (queued := await self._next_pod()) is not None:
                self._rush = turn >= _RUSH_AFTER_ATTEMPTS
                if (self._extenders is not None and self._extenders.are_interested(queued.pod)) or not (
                    self.schedule_one(queued)
                ):
                    await self._start_extended(queued)
                turn += 1
                if turn % _ATTEMPTS_PER_YIELD == 0 and not (
                    self._next_pod_plugin is not None and self._next_pod_plugin.is_uninterruptible
                ):
                    await asyncio.sleep(0)
                if not self._binder.has_capacity:
                    await self._binder.wait_for_capacity()
            await self._wait_for_work()

    async def stop(self) -> None:
        """Cancel all binding cycles: nothing new is written; requests on the wire are for the next leader's watch."""
        tasks = list(self._binding_cycles)
        if self._extended_attempt is not None:
            tasks.append(self._extended_attempt)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _next_pod(self) -> QueuedPod | None:
        """Return the pod that a plugin wants next, else the head of the queue.

        The queue is asked only after pods rejected at Permit have released their resources. While extenders are asked
        about a pod of a round, nothing else is tried.
        """
        if (
            self._extended_attempt is not None
            and self._next_pod_plugin is not None
            and self._next_pod_plugin.is_in_round
        ):
            await asyncio.wait((self._extended_attempt,))
        now = self._clock.monotonic()
        before = ""
        while self._next_pod_plugin is not None and (uid := self._next_pod_plugin.next_pod()) not in (None, before):
            assert uid is not None
            before = uid
            chosen = self._queue.take(uid, now)
            if self._observe_next_pod_s is not None:
                self._observe_next_pod_s(self._clock.monotonic() - now)
            if chosen is not None:
                return chosen
        await self._binder.wait_for_releases()
        return self._queue.pop(now, hold_extended=self._extended_attempt is not None)

    async def _wait_for_work(self) -> None:
        """Wait until an event makes a pod schedulable or the next back-off is over."""
        until = self._queue.next_wakeup()
        if until is None:
            await self._wakeup.wait()
            return
        try:
            async with asyncio.timeout(max(until - self._clock.monotonic(), 0)):
                await self._wakeup.wait()
        except TimeoutError:
            return

    # One attempt -------------------------------------------------------------------------------------------------

    def schedule_one(self, queued: QueuedPod) -> bool:
        """Try a pod; return False if extenders must be asked about it after all, for the sake of its gang."""
        pod = queued.pod
        if self._skip_pod(pod):
            return True
        started = self._begin_attempt(queued)
        engine = self._engines[pod.scheduler]
        timer = self._point_timer if self._point_timer.start_if_sampled(pod.scheduler, started) else None
        decision: Decision
        try:
            # In a rush nobody looks at single pods, and recording the next best nodes would cost more than the
            # decision.
            attempt = engine.decide(pod, self._runners_up(), timer)
            decision = attempt.decision
            if isinstance(decision, Unschedulable):
                decision = engine.post_filter(attempt, self._review(), timer)
                if (context := attempt.post_filter_context) is not None and context.proposals:
                    return False
                if timer is not None:
                    timer.point_ended("PostFilter")
            failure = (
                self._assume_reserve_permit(attempt, queued, started, timer)
                if isinstance(decision, ChosenNode)
                else None
            )
        except Exception as error:  # noqa: BLE001 - a plugin's fault: this pod fails with its name, the scheduler lives
            decision, failure = self._attempt_raised(pod, error), None
        self._end_attempt(queued, pod, decision, failure, started)
        return True

    def _review(self) -> PreemptionReview | None:
        return None if self._extenders is None else PreemptionReview(self._extenders.reviews_preemption_for)

    def _runners_up(self) -> int:
        wanted = max(self._dump.top_scores - 1, 0)
        return wanted if self._rush else max(wanted, RUNNERS_UP)

    def _skip_pod(self, pod: PodInfo) -> bool:
        """Return whether there is nothing to do for the pod; its attempt is over then."""
        if pod.deleting:
            self._status_reporter.report_skipped(pod)
        elif self._state.placed_pod(pod.uid) is None:  # else it got its node some other way
            return False
        self._queue.done(pod.uid)
        return True

    def _begin_attempt(self, queued: QueuedPod) -> float:
        pod, started = queued.pod, self._clock.monotonic()
        if self.monitor is not None:
            self.monitor.dequeued(pod.uid, pod.key, pod.scheduler, queued.attempts, started)
            self.monitor.started(pod.uid, started)
        return started

    def _attempt_raised(self, pod: PodInfo, error: Exception) -> AttemptError:
        _LOG.error("an attempt at %s failed", pod.key, exc_info=error)
        self._engines[pod.scheduler].forget_class(pod)
        if self._state.is_assumed(pod.uid):
            self._state.forget(pod.uid)
        return AttemptError(plugin_that_raised(error), describe_error(error))

    def _end_attempt(
        self, queued: QueuedPod, pod: PodInfo, decision: Decision, failure: AttemptFailure | None, started: float
    ) -> None:
        took = self._clock.monotonic() - started
        self._attempt_log.put(
            AttemptRecord(
                pod=pod.key,
                uid=pod.uid,
                scheduler=pod.scheduler,
                number=queued.attempts,
                at=self._clock.time(),
                took_s=took,
                decision=decision,
                result="binding",
            )
        )
        self._dump.write(pod, decision, self._clock.time())
        if failure is None and not isinstance(decision, ChosenNode):
            failure = failure_of_decision(decision)
        if self._auditor is not None:
            self._auditor.attempt_ended(pod, decision, failure)
        if failure is not None:
            self.handle_scheduling_failure(queued, pod, failure)
        if isinstance(decision, Unschedulable) and decision.preempt is not None and pod.uid in self._queue:
            self._execute_preemption(pod, decision.preempt)
        self._status_reporter.report_decision(pod, decision, took)

    # Extenders ---------------------------------------------------------------------------------------------------

    async def _start_extended(self, queued: QueuedPod) -> None:
        """Try a pod that extenders are interested in, beside the loop; the queue holds others of its kind back.

        A gang with a member of that kind comes unexpectedly, and waits here for an attempt that is under way.
        """

        def ended(_: asyncio.Task[None]) -> None:
            self._extended_attempt = None
            self._wakeup.set()

        if self._extended_attempt is not None:
            await asyncio.wait((self._extended_attempt,))
        if self._skip_pod(queued.pod):
            return
        task = asyncio.create_task(self._schedule_extended(queued), name=f"extend-{queued.pod.key}")
        self._extended_attempt = task
        task.add_done_callback(ended)
        await asyncio.sleep(0)  # until it asks: from then on it is known whether a round is on

    async def _schedule_extended(self, queued: QueuedPod) -> None:
        pod = queued.pod
        started = self._begin_attempt(queued)
        decision: Decision
        failure: AttemptFailure | None = None
        try:
            assert self._extenders is not None
            attempt = await decide_with_extenders(
                self._engines[pod.scheduler], self._extenders, pod, self._runners_up(), lambda: self._is_gone(pod)
            )
            if attempt is None or self._is_gone(pod):
                self._attempt_completed(pod)
                self._queue.done(pod.uid)
                return
            decision = attempt.decision if isinstance(attempt, SchedulingAttempt) else attempt
            if isinstance(attempt, SchedulingAttempt) and isinstance(decision, ChosenNode):
                failure = self._assume_reserve_permit(attempt, queued, started, None)
        except Exception as error:  # noqa: BLE001 - a plugin's fault: this pod fails with its name, the scheduler lives
            decision = self._attempt_raised(pod, error)
        self._end_attempt(queued, pod, decision, failure, started)

    def _is_gone(self, pod: PodInfo) -> bool:
        """Return whether the pod was deleted, bound or given to another scheduler while extenders were asked."""
        return pod.uid not in self._queue or self._state.placed_pod(pod.uid) is not None

    def _assume_reserve_permit(
        self, attempt: SchedulingAttempt, queued: QueuedPod, started: float, timer: AttemptTimer | None
    ) -> AttemptFailure | None:
        """Assume the chosen node, run Reserve and Permit, start the binding cycle; undo all on a rejection."""
        pod = attempt.pod
        rejection = run_nominate_reservation(attempt)
        if rejection is not None:
            return failure_of_rejection(rejection)
        self._state.assume(pod, attempt.node_name)
        waits: dict[str, float] | PluginRejection = {}
        try:
            rejection = run_reserve(attempt, timer)
            if timer is not None:
                timer.point_ended("Reserve")
            if rejection is None:
                waits = run_permit(attempt, timer)
            if timer is not None:
                timer.point_ended("Permit")
        except Exception:
            self._unreserve_and_forget(attempt)
            raise
        if isinstance(waits, PluginRejection):
            rejection, waits = waits, {}
        context = BindingContext(queued, attempt, waits, started)
        context.timer = None if timer is None else self._point_timer.for_binding_cycle()
        if rejection is not None:
            failure = failure_of_rejection(rejection)
            self._unreserve_and_forget(attempt)
            self._status_reporter.report_binding_failed(context, failure)
            return failure
        self._queue.nominate(pod.uid, "")
        self._binder.begin(context)
        self._start(self._binding_cycle(context), f"bind-{pod.key}")
        return None

    def write_status(self, write: StatusWrite) -> None:
        """Write the status of an object in a task of its own."""
        self._start(self._binder.write_status(write), f"write-{write.namespace}/{write.name}")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._binding_cycles.add(task)
        task.add_done_callback(self._binding_cycles.discard)

    def _execute_preemption(self, pod: PodInfo, plan: PreemptionPlan) -> None:
        for uid in plan.clear_nominations:
            displaced = self._queue.nominations.pod(uid)
            self._queue.nominate(uid, "")
            if displaced is not None:
                self._status_reporter.report_nomination_cleared(displaced)
        self._evictor.execute_preemption(pod, plan)

    # The binding cycle -------------------------------------------------------------------------------------------

    async def _binding_cycle(self, context: BindingContext) -> None:
        failure = await self._binder.wait_on_permit(context)
        if failure is None:
            failure = await self._binder.pre_bind_and_bind(context)
        if failure is None:
            self._on_bound(context)
        else:
            self._on_binding_failed(context, failure)

    def _on_bound(self, context: BindingContext) -> None:
        pod = context.pod
        self._queue.done(pod.uid)
        self._attempt_log.set_result(pod.uid, "bound")
        run_post_bind(
            context.attempt,
            lambda plugin: _LOG.exception("PostBind of %s failed for %s", plugin, pod.key),
            context.timer,
        )
        self._status_reporter.report_bound(context)
        if self._auditor is not None:
            self._auditor.pod_bound(pod)
        self._attempt_completed(pod)

    def _on_binding_failed(self, context: BindingContext, failure: AttemptFailure) -> None:
        """Release the resources of a pod whose binding failed, wake pods that wait for them, and requeue the pod."""
        placed = self._state.placed_pod(context.pod.uid)
        self._unreserve_and_forget(context.attempt)
        if placed is not None and not failure.silent_release:
            now = self._clock.monotonic()
            self._queue.on_event(
                ObjectEvent(_POD_DELETED, old=placed), now, except_uid=context.pod.uid if failure.rejected else ""
            )
        self._status_reporter.report_binding_failed(context, failure)
        if self._auditor is not None:
            self._auditor.attempt_ended(context.pod, None, failure)
        self.handle_scheduling_failure(context.queued, context.pod, failure)
        self._wakeup.set()

    def _unreserve_and_forget(self, attempt: SchedulingAttempt) -> None:
        try:
            run_unreserve(attempt)
        finally:
            self._state.forget(attempt.pod.uid)

    def handle_scheduling_failure(self, queued: QueuedPod, pod: PodInfo, failure: AttemptFailure) -> None:
        """Put the pod back into the queue and report the failure, unless the pod is gone or was bound meanwhile."""
        self._attempt_completed(pod)
        if not self._update_queued_pod(queued):
            self._queue.done(pod.uid)
            self._attempt_log.set_result(pod.uid, "error", failure.message)
            return
        now = self._clock.monotonic()
        part = self._queue.attempt_failed(
            queued, now, rejected=failure.rejected, pending=failure.pending, message=failure.message
        )
        self._attempt_log.set_result(pod.uid, "unschedulable" if failure.rejected else "error", failure.message)
        if part is None:
            return
        override = run_attempt_failed(
            self._engines[pod.scheduler].profile,
            pod,
            failure.message,
            failure.rejected | failure.pending,
            lambda plugin: _LOG.exception("%s failed to hear of a failed attempt at %s", plugin, pod.key),
        )
        if override is not None and override.nominate is not None:
            failure = msgspec.structs.replace(failure, nominate=override.nominate)
        if failure.nominate is not None:
            self._queue.nominate(pod.uid, failure.nominate)
        if override is None or not override.silent:
            self._status_reporter.report_failed(pod, failure)

    def _update_queued_pod(self, queued: QueuedPod) -> bool:
        """Update the queue's pod to what the watch has shown; return False when nothing is left to schedule.

        Updates of a pod in its binding cycle were not given to the queue, because the binding decides what becomes of
        it.
        """
        pod = self._latest_pod(queued.pod)
        if pod is None or pod.metadata.uid != queued.uid or pod.spec.node_name:
            return False
        if pod.spec.scheduler_name not in self._engines:  # another scheduler's by now
            return False
        self._queue.update(self._state.pod_info(pod), self._clock.monotonic())
        return True

    def _attempt_completed(self, pod: PodInfo) -> None:
        if self.monitor is not None:
            self.monitor.completed(pod.uid, self._clock.monotonic())
