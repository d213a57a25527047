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
    describe_error,
    failure_of_decision,
    failure_of_verdict,
    plugin_that_raised,
)
from koord.scheduler.framework.bind_effects import FailureOverride
from koord.scheduler.framework.cluster_event import DELETE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.decision import AttemptError, ChosenNode, Decision, PreemptionPlan, Unschedulable
from koord.scheduler.framework.engine import SchedulingEngine
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import Fault, Reject, Wait
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
        engine.on_point_end = on_point_end
        decision: Decision
        try:
            # In a rush nobody looks at single pods, and recording the next best nodes would cost more than the
            # decision.
            decision = engine.decide(pod, 0 if self._rush else RUNNERS_UP)
            if isinstance(decision, Unschedulable):
                decision = engine.post_filter(pod, decision)
                if on_point_end is not None:
                    on_point_end("PostFilter")
            failure = (
                self._assume_reserve_permit(engine, queued, decision, started)
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
        self, engine: SchedulingEngine, queued: QueuedPod, decision: ChosenNode, started: float
    ) -> AttemptFailure | None:
        """Assume the chosen node, run Reserve and Permit, and submit the pod to the binder; undo all of it on a
        rejection.
        """
        pod, profile, cycle = queued.pod, engine.profile, engine.cycle
        refused = engine.nominate(pod, decision.node)
        if refused is not None:
            return failure_of_verdict(refused[0], "Reserve", refused[1])
        self._state.assume(pod, decision.node)
        waits: dict[str, float] = {}
        context = BindingContext(queued, profile, cycle, decision, waits, started)
        try:
            refusal = self._run_reserve(context)
            if engine.on_point_end is not None:
                engine.on_point_end("Reserve")
            refusal = refusal or self._run_permit(context, waits)
            if engine.on_point_end is not None:
                engine.on_point_end("Permit")
        except Exception:
            self._unreserve_and_forget(context)
            raise
        if refusal is not None:
            self._unreserve_and_forget(context)
            self._status_reporter.report_binding_failed(context, refusal)
            return refusal
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

    def _run_reserve(self, context: BindingContext) -> AttemptFailure | None:
        node = self._state.table.index[context.node_name]
        try:
            for plugin in context.profile.reserve_plugins(context.cycle.skip_filter):
                answer = plugin.reserve(context.cycle, context.pod, node)
                if answer is not None:
                    return failure_of_verdict(plugin.name, "Reserve", answer)
        finally:
            context.cycle.nominated_reservations.pop(context.pod.uid, None)  # from here on it is taken, or it is not
            context.cycle.pre_allocated_pods.pop(context.pod.uid, None)
        return None

    def _run_permit(self, context: BindingContext, waits: dict[str, float]) -> AttemptFailure | None:
        node = self._state.table.index[context.node_name]
        for plugin in context.profile.plugins_at("permit"):
            answer = plugin.permit(context.cycle, context.pod, node)
            if isinstance(answer, Wait):
                waits[plugin.name] = answer.timeout_s
            elif isinstance(answer, Reject | Fault):
                return failure_of_verdict(plugin.name, "Permit", answer)
        return None

    # What became of it -------------------------------------------------------------------------------------------

    def on_bound(self, context: BindingContext) -> None:
        pod = context.pod
        self._queue.done(pod.uid)
        self._attempt_log.set_result(pod.uid, "bound")
        for plugin in context.profile.plugins_at("post_bind"):
            try:
                plugin.post_bind(context.cycle, pod, context.node_name)
            except Exception:  # noqa: BLE001 - the pod is bound; a plugin that fails afterwards must not undo that
                _LOG.exception("PostBind of %s failed for %s", plugin.name, pod.key)
        self._status_reporter.report_bound(context)
        self._attempt_completed(pod)

    def on_binding_failed(self, context: BindingContext, failure: AttemptFailure) -> None:
        """Release the resources of a pod whose binding failed, wake pods that wait for them, and requeue the pod."""
        room = self._state.placed_pod(context.pod.uid)
        self._unreserve_and_forget(context)
        if room is not None and not failure.silent_release:
            now = self._clock.monotonic()
            self._queue.on_event(
                ObjectEvent(_POD_DELETED, old=room), now, except_uid=context.pod.uid if failure.rejected else ""
            )
        self._status_reporter.report_binding_failed(context, failure)
        self.handle_scheduling_failure(context.queued, context.pod, failure)
        self.wake()

    def _unreserve_and_forget(self, context: BindingContext) -> None:
        try:
            context.unreserve()
        finally:
            self._state.forget(context.pod.uid)

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
        taken = self._failure_override(pod, failure)
        if taken is not None and taken.nominate is not None:
            failure = msgspec.structs.replace(failure, nominate=taken.nominate)
        if failure.nominate is not None:
            self._queue.nominate(pod.uid, failure.nominate)
        if taken is None or not taken.silent:
            self._status_reporter.report_failed(pod, failure)

    def _failure_override(self, pod: PodInfo, failure: AttemptFailure) -> FailureOverride | None:
        for plugin in self._engines[pod.scheduler].profile.plugins_at("on_attempt_failed"):
            try:
                taken = plugin.on_attempt_failed(pod, failure.message, failure.rejected | failure.pending)
            except Exception:  # noqa: BLE001 - the pod is back in the queue; a plugin's trouble must not change that
                _LOG.exception("%s failed to hear of a failed attempt at %s", plugin.name, pod.key)
                continue
            if taken is not None:
                return taken
        return None

    def _attempt_completed(self, pod: PodInfo) -> None:
        if self.monitor is not None:
            self.monitor.completed(pod.uid, self._clock.monotonic())
