"""Report what happens to pods: events, conditions and metrics. It decides nothing.

Scheduled events are throttled: a binding must not wait behind the event about another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from koord.api.koordinator.custom_kinds import RESERVATIONS
from koord.api.koordinator.protocol import A_RESERVATION_NAME
from koord.api.model import ObjectReference
from koord.kube.events.recorder import EventRecorder
from koord.scheduler.bind import BindingContext
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.attempt import AttemptFailure
from koord.scheduler.framework.decision import ChosenNode, Decision, Unschedulable
from koord.scheduler.metrics import MetricsRecorder
from koord.scheduler.pod_status_writer import PodStatusUpdate, PodStatusWriter
from koord.telemetry.clock import Clock

# Events wait until bindings pause, but not for ever: under endless load they are written at a low rate.
_TICK_S = 0.2
_MAX_SILENCE_S = 5.0
_BUSY_EVENTS_PER_TICK = 20  # a look, so 100 a second
_IDLE_EVENTS_PER_TICK = 200  # a look when idle, as long as the recorder keeps up
MAX_DELAYED_EVENTS = 20_000


class EventThrottle:
    """Delay events until bindings pause; under endless load let them through at a low rate."""

    def __init__(self, clock: Clock, busy: Callable[[], bool], unwritten_events: Callable[[], int]) -> None:
        self._clock = clock
        self._busy = busy
        self._unwritten_events = unwritten_events
        self._events: deque[Callable[[], None]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    def submit(self, record_event: Callable[[], None]) -> None:
        if len(self._events) >= MAX_DELAYED_EVENTS:
            self._events.popleft()
            self.dropped += 1
        self._events.append(record_event)
        if self._task is None:
            self._task = asyncio.create_task(self._drain(), name="event-throttle")

    @property
    def pending(self) -> int:
        return len(self._events)

    async def stop(self) -> None:
        """Hand over the events that are left; the recorder knows how long it may still write."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        while self._events:
            self._events.popleft()()

    async def _drain(self) -> None:
        busy_since: float | None = None
        while self._events:
            now = self._clock.monotonic()
            if not self._busy():
                busy_since = None
                count = max(0, 2 * _IDLE_EVENTS_PER_TICK - self._unwritten_events())
            else:
                busy_since = now if busy_since is None else busy_since
                count = _BUSY_EVENTS_PER_TICK if now - busy_since > _MAX_SILENCE_S else 0
            for _ in range(min(count, len(self._events))):
                self._events.popleft()()
            await self._clock.sleep(_TICK_S)
        self._task = None


class StatusReporter:
    """Report attempts and bindings as events, pod conditions and metrics."""

    def __init__(
        self,
        *,
        state: ClusterState,
        recorders: Mapping[str, EventRecorder],
        status_writer: PodStatusWriter,
        event_throttle: EventThrottle,
        metrics: MetricsRecorder,
        clock: Clock,
    ) -> None:
        self._state = state
        self._recorders = recorders
        self._status_writer = status_writer
        self._event_throttle = event_throttle
        self._metrics = metrics
        self._clock = clock

    def report_skipped(self, pod: PodInfo) -> None:
        self._record_failure(pod, f"skip schedule deleting pod: {pod.key}")

    def report_bound(self, context: BindingContext) -> None:
        pod, queued = context.pod, context.queued
        self._status_writer.drop(pod.uid)
        who = pod.annotations[A_RESERVATION_NAME] if pod.is_reserve_pod else pod.key
        note = f"Successfully assigned {who} to {context.node_name}"
        about, recorder = event_subject_of(pod), self._recorders[pod.scheduler]  # small: many events may wait
        self._event_throttle.submit(lambda: recorder.record(about, "Normal", "Scheduled", note, action="Binding"))
        now = self._clock.monotonic()
        since = queued.first_attempt if queued.first_attempt is not None else queued.queued_at
        self._metrics.pod_bound(context.scheduler_name, now - context.started, now - since, queued.attempts)

    def report_binding_failed(self, context: BindingContext, failure: AttemptFailure) -> None:
        took_s = self._clock.monotonic() - context.started
        self._metrics.binding_failed(context.scheduler_name, "error" if failure.error else "unschedulable", took_s)

    def report_failed(self, pod: PodInfo, failure: AttemptFailure) -> None:
        self._record_failure(pod, failure.message)
        self._status_writer.submit(
            PodStatusUpdate(
                namespace=pod.namespace,
                name=pod.name,
                uid=pod.uid,
                reason=failure.reason,
                message=failure.message,
                nominate=failure.nominate,
            )
        )

    def report_nomination_cleared(self, pod: PodInfo) -> None:
        """Clear the nomination of a pod whose nominated resources went to a pod of higher priority."""
        if pod.is_reserve_pod:
            return  # nothing shows its nomination
        self._status_writer.submit(PodStatusUpdate(namespace=pod.namespace, name=pod.name, uid=pod.uid, nominate=""))

    def report_decision(self, pod: PodInfo, decision: Decision, took_s: float) -> None:
        if isinstance(decision, ChosenNode):
            self._metrics.decision_made(pod.scheduler, "scheduled", took_s)
            self._metrics.nodes_evaluated(self._state.node_count, decision.feasible)
        elif isinstance(decision, Unschedulable):
            self._metrics.decision_made(pod.scheduler, "unschedulable", took_s)
            self._metrics.victims_searched(len(decision.preempt.victims) if decision.preempt is not None else 0)
        else:
            self._metrics.decision_made(pod.scheduler, "error", took_s)

    def _record_failure(self, pod: PodInfo, note: str) -> None:
        recorder = self._recorders[pod.scheduler]
        recorder.record(event_subject_of(pod), "Warning", "FailedScheduling", note, action="Scheduling")


def event_subject_of(pod: PodInfo) -> ObjectReference:
    """Return the object that an event is about: the pod, or the Reservation of a reserve pod."""
    if pod.is_reserve_pod:
        return ObjectReference(
            api_version=RESERVATIONS.api_version,
            kind=RESERVATIONS.kind,
            name=pod.annotations[A_RESERVATION_NAME],
            uid=pod.uid,
            resource_version=pod.resource_version,
        )
    return ObjectReference(
        api_version="v1",
        kind="Pod",
        namespace=pod.namespace,
        name=pod.name,
        uid=pod.uid,
        resource_version=pod.resource_version,
    )
