"""Report what happens to pods: events, conditions and metrics. It decides nothing.

Scheduled events are throttled: a binding must not wait behind the event about another one.

PodStatusWriter writes the PodScheduled condition and the nominated node of pods that were not placed: only when they
change, and behind the decisions: each pod has at most one update waiting, the newest, and one
being written; a few writers take them in turn. An update is for the version of the pod that the watch showed last, so
that one which arrives after the pod's binding, even from a process that is gone, is refused by the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, ClassVar

import msgspec

from koord.api.koordinator.custom_kinds import RESERVATIONS
from koord.api.koordinator.protocol import A_RESERVATION_NAME
from koord.api.kubernetes.rbac import RbacRule
from koord.api.model import ObjectReference
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.scheduler.bind import BindingContext
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS, Pod
from koord.scheduler.framework.attempt import AttemptFailure
from koord.scheduler.framework.decision import ChosenNode, Decision, Unschedulable
from koord.scheduler.metrics import MetricsRecorder
from koord.telemetry.clock import Clock, now
from koord.values import timestamp

_LOG = logging.getLogger(__name__)

POD_SCHEDULED = "PodScheduled"
WRITERS = 8
WRITE_TRIES = 5
_CONFLICT_PAUSE_S = 0.1  # doubled each time: for the watch to show what has changed
# A condition is for people. The reasons of a huge and odd cluster can be endless; the head of them says enough.
MESSAGE_BYTES = 8192


class PodStatusUpdate(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    name: str
    uid: str
    reason: str = ""  # "" leaves the condition as it is
    message: str = ""
    nominate: str | None = None  # None leaves the nominated node as it is


class PodStatusWriter:
    """Write status updates of pods; `latest` finds a pod as the watch last showed it, to write nothing twice."""

    rights: ClassVar[tuple[RbacRule, ...]] = (RbacRule("", ("pods/status",), ("patch",)),)

    def __init__(self, client: Client, clock: Clock, latest: Callable[[str, str], Pod | None]) -> None:
        self._client = client
        self._clock = clock
        self._latest = latest
        self._waiting: dict[str, PodStatusUpdate] = {}
        self._writing: set[str] = set()
        self._work = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._quiet = RateLimitedLog(_LOG, clock)
        self.writes = 0

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._write_all(), name=f"report-{n}") for n in range(WRITERS)]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def submit(self, report: PodStatusUpdate) -> None:
        before = self._waiting.pop(report.uid, None)
        if before is not None and report.nominate is None:
            report = msgspec.structs.replace(report, nominate=before.nominate)
        if before is not None and not report.reason:
            report = msgspec.structs.replace(report, reason=before.reason, message=before.message)
        self._waiting[report.uid] = report
        self._work.set()

    def drop(self, uid: str) -> None:
        """Discard the waiting update of a pod that is bound or gone."""
        self._waiting.pop(uid, None)

    async def _write_all(self) -> None:
        while True:
            while (uid := next((uid for uid in self._waiting if uid not in self._writing), None)) is not None:
                self._writing.add(uid)
                try:
                    await self._write(self._waiting.pop(uid))
                finally:
                    self._writing.discard(uid)
            self._work.clear()
            await self._work.wait()

    async def _write(self, report: PodStatusUpdate) -> None:
        pause_s = _CONFLICT_PAUSE_S
        answer: object = None
        for _ in range(WRITE_TRIES):
            pod = self._latest(report.namespace, report.name)
            if pod is None or pod.metadata.uid != report.uid or pod.spec.node_name:
                return
            status = pod_status_patch(pod, report, now(self._clock))
            if not status:
                return
            try:
                answer = await self._client.patch(
                    PODS,
                    report.name,
                    {"status": status},
                    report.namespace,
                    kind="strategic",
                    subresource="status",
                    uid=report.uid,
                    resource_version=pod.metadata.resource_version,
                )
            except TRANSIENT_ERRORS as outage:
                self._quiet.warning("the condition of %s/%s is not written: %s", report.namespace, report.name, outage)
                return  # the next attempt writes it again
            if not isinstance(answer, ApiError):
                self.writes += 1
                return
            if answer.not_found:
                return
            if answer.conflict:
                await self._clock.sleep(pause_s)
                pause_s *= 2
            elif answer.too_many or answer.code >= 500:
                await self._clock.sleep(answer.retry_after_s or 1.0)
            else:
                break
        self._quiet.warning("the condition of %s/%s is not written: %s", report.namespace, report.name, answer)


def pod_status_patch(pod: Pod, report: PodStatusUpdate, at: datetime) -> dict[str, Any]:
    """Return a strategic merge patch of the pod's status; empty when the status already says all of it."""
    patch: dict[str, Any] = {}
    message = truncate_message(report.message)
    known = next((c for c in pod.status.conditions if c.type == POD_SCHEDULED), None)
    generation = pod.metadata.generation
    current = (known.status, known.reason, known.message, known.observed_generation) if known is not None else None
    if report.reason and current != ("False", report.reason, message, generation):
        condition: dict[str, Any] = {
            "type": POD_SCHEDULED,
            "status": "False",
            "reason": report.reason,
            "message": message,
            "lastProbeTime": None,
        }
        if generation:
            condition["observedGeneration"] = generation
        if known is None or known.status != "False":
            condition["lastTransitionTime"] = timestamp.text(at)
        patch["conditions"] = [condition]
    if report.nominate is not None and report.nominate != pod.status.nominated_node_name:
        patch["nominatedNodeName"] = report.nominate or None
    return patch


def truncate_message(message: str) -> str:
    raw = message.encode()
    if len(raw) <= MESSAGE_BYTES:
        return message
    return raw[: MESSAGE_BYTES - 4].decode(errors="ignore") + " ..."


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
