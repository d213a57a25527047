"""Run the scheduling loop: pop a pod, decide, assume its node, reserve, permit, and hand it over to the binder.

Everything here runs on one event loop and nothing in `schedule_one` awaits, so a decision and the assumption that
follows from it are one step: no other event can come between them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from koord.scheduler.bind import Binder, BindingContext
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.evictor import SchedulerEvictor
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
from koord.scheduler.framework.cluster_event import DELETE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.decision import AttemptError, ChosenNode, Decision, PreemptionPlan, Unschedulable
from koord.scheduler.framework.engine import OnPointEnd, SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.runtime import (
    PluginRejection,
    run_attempt_failed,
    run_nominate_reservation,
    run_permit,
    run_post_bind,
    run_reserve,
    run_unreserve,
)
from koord.scheduler.metrics_recorder import PointTimer
from koord.scheduler.queue.queued_pod import QueuedPod
from koord.scheduler.queue.scheduling_queue import SchedulingQueue
from koord.scheduler.scheduler_monitor import SchedulerMonitor
from koord.scheduler.status_reporter import StatusReporter
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
        state: ClusterState,
        queue: SchedulingQueue,
        engines: Mapping[str, SchedulingEngine],
        status_reporter: StatusReporter,
        attempt_log: AttemptLog,
        clock: Clock,
        point_timer: PointTimer,
        next_pod_plugin: Plugin | None = None,
        *,
        monitor: SchedulerMonitor | None = None,
        observe_next_pod_s: Callable[[float], None] | None = None,
    ) -> None:
        """Create the loop. `monitor` reports attempts that last too long; `observe_next_pod_s` receives the seconds
        that taking a plugin's choice from the queue took.
        """
        self.monitor = monitor
        self._observe_next_pod_s = observe_next_pod_s
        self._point_timer = point_timer
        self._next_pod_plugin = next_pod_plugin
        self._state = state
        self._queue = queue
        self._engines = engines
        self._status_reporter = status_reporter
        self._attempt_log = attempt_log
        self._clock = clock
        self._wakeup = asyncio.Event()
        self._rush = False
        # Set after construction, because each calls the other.
        self.binder: Binder | None = None
        self.evictor: SchedulerEvictor | None = None

    def wake(self) -> None:
        self._wakeup.set()

    async def run(self) -> None:
        """Schedule pods one by one until cancelled."""
        binder = self.binder
        assert binder is not None
        while True:
            self._wakeup.clear()
            turn = 0
            while (queued := await self._next_pod(binder)) is not None:
                self._rush = turn >= _RUSH_AFTER_ATTEMPTS
                self.schedule_one(queued)
                turn += 1
                if turn % _ATTEMPTS_PER_YIELD == 0 and not (
                    self._next_pod_plugin is not None and self._next_pod_plugin.is_uninterruptible
                ):
                    await asyncio.sleep(0)
                if not binder.has_capacity:
                    await binder.wait_for_capacity()
            await self._wait_for_work()

    async def _next_pod(self, binder: Binder) -> QueuedPod | None:
        """Return the pod that a plugin wants next, else the head of the queue.

        The queue is asked only after pods rejected at Permit have released their resources.
        """
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
        await binder.wait_for_releases()
        return self._queue.pop(now)

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

    def schedule_one(self, queued: QueuedPod) -> None:
        pod = queued.pod
        if pod.deleting:
            self._status_reporter.report_skipped(pod)
            self._queue.done(pod.uid)
            return
        if self._state.placed_pod(pod.uid) is not None:  # it got its node some other way
            self._queue.done(pod.uid)
            return
        started = self._clock.monotonic()
        if self.monitor is not None:
            self.monitor.dequeued(pod.uid, pod.key, pod.scheduler, queued.attempts, started)
            self.monitor.started(pod.uid, started)
        engine = self._engines[pod.scheduler]
        on_point_end = self._point_timer if self._point_timer.start_if_sampled(pod.scheduler, started) else None
        decision: Decision
        try:
            # In a rush nobody looks at single pods, and recording the next best nodes would cost more than the
            # decision.
            attempt = engine.decide(pod, 0 if self._rush else RUNNERS_UP, on_point_end)
            decision = attempt.decision
            if isinstance(decision, Unschedulable):
                decision = engine.post_filter(attempt)
                if on_point_end is not None:
                    on_point_end("PostFilter")
            failure = (
                self._assume_reserve_permit(attempt, queued, started, on_point_end)
                if isinstance(decision, ChosenNode)
                else None
            )
        except Exception as error:  # noqa: BLE001 - a plugin's fault: this pod fails with its name, the scheduler lives
            _LOG.exception("an attempt at %s failed", pod.key)
            engine.forget_class(pod)
            decision = AttemptError(plugin_that_raised(error), describe_error(error))
            if self._state.is_assumed(pod.uid):
                self._state.forget(pod.uid)
            failure = None
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
        if failure is None and not isinstance(decision, ChosenNode):
            failure = failure_of_decision(decision)
        if failure is not None:
            self.handle_scheduling_failure(queued, pod, failure)
        if isinstance(decision, Unschedulable) and decision.preempt is not None and pod.uid in self._queue:
            self._execute_preemption(pod, decision.preempt)
        self._status_reporter.report_decision(pod, decision, took)

    def _assume_reserve_permit(
        self, attempt: SchedulingAttempt, queued: QueuedPod, started: float, on_point_end: OnPointEnd | None
    ) -> AttemptFailure | None:
        """Assume the chosen node, run Reserve and Permit, and submit the pod to the binder; undo all of it on a
        rejection.
        """
        pod = attempt.pod
        rejection = run_nominate_reservation(attempt)
        if rejection is not None:
            return failure_of_rejection(rejection)
        self._state.assume(pod, attempt.node_name)
        waits: dict[str, float] | PluginRejection = {}
        try:
            rejection = run_reserve(attempt)
            if on_point_end is not None:
                on_point_end("Reserve")
            if rejection is None:
                waits = run_permit(attempt)
            if on_point_end is not None:
                on_point_end("Permit")
        except Exception:
            self._unreserve_and_forget(attempt)
            raise
        if isinstance(waits, PluginRejection):
            rejection, waits = waits, {}
        context = BindingContext(queued, attempt, waits, started)
        if rejection is not None:
            failure = failure_of_rejection(rejection)
            self._unreserve_and_forget(attempt)
            self._status_reporter.report_binding_failed(context, failure)
            return failure
        self._queue.nominate(pod.uid, "")
        assert self.binder is not None
        self.binder.submit(context)
        return None

    def _execute_preemption(self, pod: PodInfo, plan: PreemptionPlan) -> None:
        for uid in plan.clear_nominations:
            displaced = self._queue.nominations.pod(uid)
            self._queue.nominate(uid, "")
            if displaced is not None:
                self._status_reporter.report_nomination_cleared(displaced)
        assert self.evictor is not None
        self.evictor.execute_preemption(pod, plan)

    # What became of it -------------------------------------------------------------------------------------------

    def on_bound(self, context: BindingContext) -> None:
        pod = context.pod
        self._queue.done(pod.uid)
        self._attempt_log.set_result(pod.uid, "bound")
        run_post_bind(context.attempt, lambda plugin: _LOG.exception("PostBind of %s failed for %s", plugin, pod.key))
        self._status_reporter.report_bound(context)
        self._attempt_completed(pod)

    def on_binding_failed(self, context: BindingContext, failure: AttemptFailure) -> None:
        """Release the resources of a pod whose binding failed, wake pods that wait for them, and requeue the pod."""
        room = self._state.placed_pod(context.pod.uid)
        self._unreserve_and_forget(context.attempt)
        if room is not None and not failure.silent_release:
            now = self._clock.monotonic()
            self._queue.on_event(
                ObjectEvent(_POD_DELETED, old=room), now, except_uid=context.pod.uid if failure.rejected else ""
            )
        self._status_reporter.report_binding_failed(context, failure)
        self.handle_scheduling_failure(context.queued, context.pod, failure)
        self.wake()

    def _unreserve_and_forget(self, attempt: SchedulingAttempt) -> None:
        try:
            run_unreserve(attempt)
        finally:
            self._state.forget(attempt.pod.uid)

    def handle_scheduling_failure(self, queued: QueuedPod, pod: PodInfo, failure: AttemptFailure) -> None:
        """Put the pod back into the queue and report the failure, unless the pod is gone or was bound meanwhile."""
        self._attempt_completed(pod)
        if not self._status_reporter.refresh(queued):
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
        taken = run_attempt_failed(
            self._engines[pod.scheduler].profile,
            pod,
            failure.message,
            failure.rejected | failure.pending,
            lambda plugin: _LOG.exception("%s failed to hear of a failed attempt at %s", plugin, pod.key),
        )
        if taken is not None and taken.nominate is not None:
            failure = msgspec.structs.replace(failure, nominate=taken.nominate)
        if failure.nominate is not None:
            self._queue.nominate(pod.uid, failure.nominate)
        if taken is None or not taken.silent:
            self._status_reporter.report_failed(pod, failure)

    def _attempt_completed(self, pod: PodInfo) -> None:
        if self.monitor is not None:
            self.monitor.completed(pod.uid, self._clock.monotonic())
