"""Run the scheduling loop: pop a pod, decide, assume its node, reserve, permit, and hand it over to the binder.

Everything here runs on one event loop and nothing in `schedule_one` awaits, so a decision and the assumption that
follows from it are one step: no other event can come between them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from koord.scheduler.framework.decision import Chosen, Decision, Failed, Preempt, Unschedulable
from koord.scheduler.framework.engine import Engine
from koord.scheduler.framework.event import DELETE, Event, Happened
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import Fault, Reject, Wait
from koord.scheduler.framework.work import Takeover
from koord.scheduler.monitor import Monitor
from koord.scheduler.queue.entry import QueuedPod
from koord.scheduler.queue.scheduling import SchedulingQueue
from koord.scheduler.shell.binding import Binder
from koord.scheduler.shell.blame import described, raised_by
from koord.scheduler.shell.bond import Bond
from koord.scheduler.shell.eviction import Evictor
from koord.scheduler.shell.outcome import Failure, of_decision, of_refusal
from koord.scheduler.shell.record import Attempt, Records
from koord.scheduler.shell.stopwatch import Stopwatch
from koord.scheduler.shell.teller import Teller
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.pod import PodInfo
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

# Attempts between two yields to the event loop: few enough that answers are read in time, enough to pay for it.
_TURN = 8
# After so many pods in a row runner-up nodes are no longer recorded.
_CALM = 32
RUNNERS_UP = 3
_POD_DELETED = Event("Pod", DELETE)


class Loop:
    def __init__(
        self,
        state: ClusterState,
        queue: SchedulingQueue,
        engines: Mapping[str, Engine],
        teller: Teller,
        records: Records,
        clock: Clock,
        watch: Stopwatch,
        chooser: Plugin | None = None,
    ) -> None:
        self._watch = watch
        self._chooser = chooser
        self._state = state
        self._queue = queue
        self._engines = engines
        self._teller = teller
        self._records = records
        self._clock = clock
        self._work = asyncio.Event()
        self._rush = False
        # Set after construction, because each calls the other.
        self.binder: Binder | None = None
        self.evictor: Evictor | None = None
        self.taken: Callable[[float], None] | None = (
            None  # receives the seconds that taking a plugin's choice from the queue took
        )
        self.monitor: Monitor | None = None  # reports attempts that last too long

    def wake(self) -> None:
        self._work.set()

    async def run(self) -> None:
        """Schedule pods one by one until cancelled."""
        binder = self.binder
        assert binder is not None
        while True:
            self._work.clear()
            turn = 0
            while (queued := await self._next(binder)) is not None:
                self._rush = turn >= _CALM
                self.attempt(queued)
                turn += 1
                if turn % _TURN == 0 and not (self._chooser is not None and self._chooser.in_one_go):
                    await asyncio.sleep(0)
                if not binder.has_room:
                    await binder.wait_for_room()
            await self._rest()

    async def _next(self, binder: Binder) -> QueuedPod | None:
        """Return the pod that a plugin wants next, else the head of the queue.

        The queue is asked only after pods rejected at Permit have released their resources.
        """
        now = self._clock.monotonic()
        before = ""
        while self._chooser is not None and (uid := self._chooser.next_pod()) not in (None, before):
            assert uid is not None
            before = uid
            chosen = self._queue.take(uid, now)
            if self.taken is not None:
                self.taken(self._clock.monotonic() - now)
            if chosen is not None:
                return chosen
        await binder.let_out()
        return self._queue.pop(now)

    async def _rest(self) -> None:
        """Wait until an event makes a pod schedulable or the next back-off is over."""
        until = self._queue.next_wakeup()
        if until is None:
            await self._work.wait()
            return
        try:
            async with asyncio.timeout(max(until - self._clock.monotonic(), 0)):
                await self._work.wait()
        except TimeoutError:
            return

    # One attempt -------------------------------------------------------------------------------------------------

    def attempt(self, queued: QueuedPod) -> None:
        pod = queued.pod
        if pod.deleting:
            self._teller.skipped(pod)
            self._queue.done(pod.uid)
            return
        if self._state.placed(pod.uid) is not None:  # it got its node some other way
            self._queue.done(pod.uid)
            return
        started = self._clock.monotonic()
        if self.monitor is not None:
            self.monitor.dequeued(pod.uid, pod.key, pod.scheduler, queued.attempts, started)
            self.monitor.started(pod.uid, started)
        engine = self._engines[pod.scheduler]
        lap = self._watch if self._watch.runs(pod.scheduler, started) else None
        engine.lap = lap
        decision: Decision
        try:
            # In a rush nobody looks at single pods, and recording the next best nodes would cost more than the decision.
            decision = engine.decide(pod, 0 if self._rush else RUNNERS_UP)
            if isinstance(decision, Unschedulable):
                decision = engine.post_filter(pod, decision)
                if lap is not None:
                    lap("PostFilter")
            failure = self._promise(engine, queued, decision, started) if isinstance(decision, Chosen) else None
        except Exception as error:  # noqa: BLE001 - a plugin's fault: this pod fails with its name, the scheduler lives
            _LOG.exception("an attempt at %s failed", pod.key)
            engine.discard(pod)
            decision = Failed(raised_by(error), described(error))
            if self._state.is_assumed(pod.uid):
                self._state.forget(pod.uid)
            failure = None
        took = self._clock.monotonic() - started
        self._records.put(
            Attempt(
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
        if failure is None and not isinstance(decision, Chosen):
            failure = of_decision(decision)
        if failure is not None:
            self.fail(queued, pod, failure)
        if isinstance(decision, Unschedulable) and decision.preempt is not None and pod.uid in self._queue:
            self._make_room(pod, decision.preempt)
        self._teller.decided(pod, decision, took)

    def _promise(self, engine: Engine, queued: QueuedPod, decision: Chosen, started: float) -> Failure | None:
        """Assume the chosen node, run Reserve and Permit, and submit the pod to the binder; undo all of it on a
        rejection.
        """
        pod, profile, cycle = queued.pod, engine.profile, engine.cycle
        refused = engine.nominate(pod, decision.node)
        if refused is not None:
            return of_refusal(refused[0], "Reserve", refused[1])
        self._state.assume(pod, decision.node)
        waits: dict[str, float] = {}
        bond = Bond(queued, profile, cycle, decision, waits, started)
        try:
            refusal = self._reserve(bond)
            if engine.lap is not None:
                engine.lap("Reserve")
            refusal = refusal or self._permit(bond, waits)
            if engine.lap is not None:
                engine.lap("Permit")
        except Exception:
            self._undo(bond)
            raise
        if refusal is not None:
            self._undo(bond)
            self._teller.undone(bond, refusal)
            return refusal
        self._queue.nominate(pod.uid, "")
        assert self.binder is not None
        self.binder.submit(bond)
        return None

    def _make_room(self, pod: PodInfo, plan: Preempt) -> None:
        for uid in plan.clear_nominations:
            lesser = self._queue.nominations.pod(uid)
            self._queue.nominate(uid, "")
            if lesser is not None:
                self._teller.unpromised(lesser)
        assert self.evictor is not None
        self.evictor.carry_out(pod, plan)

    def _reserve(self, bond: Bond) -> Failure | None:
        node = self._state.table.index[bond.node_name]
        try:
            for plugin in bond.profile.reserving(bond.cycle.skip_filter):
                answer = plugin.reserve(bond.cycle, bond.pod, node)
                if answer is not None:
                    return of_refusal(plugin.name, "Reserve", answer)
        finally:
            bond.cycle.nominated.pop(bond.pod.uid, None)  # from here on it is taken, or it is not
            bond.cycle.taken_over.pop(bond.pod.uid, None)
        return None

    def _permit(self, bond: Bond, waits: dict[str, float]) -> Failure | None:
        node = self._state.table.index[bond.node_name]
        for plugin in bond.profile.at("permit"):
            answer = plugin.permit(bond.cycle, bond.pod, node)
            if isinstance(answer, Wait):
                waits[plugin.name] = answer.timeout_s
            elif isinstance(answer, Reject | Fault):
                return of_refusal(plugin.name, "Permit", answer)
        return None

    # What became of it -------------------------------------------------------------------------------------------

    def bound(self, bond: Bond) -> None:
        pod = bond.pod
        self._queue.done(pod.uid)
        self._records.settle(pod.uid, "bound")
        for plugin in bond.profile.at("post_bind"):
            try:
                plugin.post_bind(bond.cycle, pod, bond.node_name)
            except Exception:  # noqa: BLE001 - the pod is bound; a plugin that fails afterwards must not undo that
                _LOG.exception("PostBind of %s failed for %s", plugin.name, pod.key)
        self._teller.bound(bond)
        self._completed(pod)

    def undone(self, bond: Bond, failure: Failure) -> None:
        """Release the resources of a pod whose binding failed, wake pods that wait for them, and requeue the pod."""
        room = self._state.placed(bond.pod.uid)
        self._undo(bond)
        if room is not None and not failure.quiet:
            now = self._clock.monotonic()
            self._queue.happened(Happened(_POD_DELETED, old=room), now, but=bond.pod.uid if failure.rejected else "")
        self._teller.undone(bond, failure)
        self.fail(bond.queued, bond.pod, failure)
        self.wake()

    def _undo(self, bond: Bond) -> None:
        try:
            bond.unreserve()
        finally:
            self._state.forget(bond.pod.uid)

    def fail(self, queued: QueuedPod, pod: PodInfo, failure: Failure) -> None:
        """Put the pod back into the queue and report the failure, unless the pod is gone or was bound meanwhile."""
        self._completed(pod)
        if not self._teller.refresh(queued):
            self._queue.done(pod.uid)
            self._records.settle(pod.uid, "error", failure.message)
            return
        now = self._clock.monotonic()
        part = self._queue.failed(
            queued, now, rejected=failure.rejected, pending=failure.pending, message=failure.message
        )
        self._records.settle(pod.uid, "unschedulable" if failure.rejected else "error", failure.message)
        if part is None:
            return
        taken = self._taken_over(pod, failure)
        if taken is not None and taken.nominate is not None:
            failure = msgspec.structs.replace(failure, nominate=taken.nominate)
        if failure.nominate is not None:
            self._queue.nominate(pod.uid, failure.nominate)
        if taken is None or not taken.silent:
            self._teller.failed(pod, failure)

    def _taken_over(self, pod: PodInfo, failure: Failure) -> Takeover | None:
        for plugin in self._engines[pod.scheduler].profile.at("failed"):
            try:
                taken = plugin.failed(pod, failure.message, failure.rejected | failure.pending)
            except Exception:  # noqa: BLE001 - the pod is back in the queue; a plugin's trouble must not change that
                _LOG.exception("%s failed to hear of a failed attempt at %s", plugin.name, pod.key)
                continue
            if taken is not None:
                return taken
        return None

    def _completed(self, pod: PodInfo) -> None:
        if self.monitor is not None:
            self.monitor.completed(pod.uid, self._clock.monotonic())
