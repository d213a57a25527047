"""Hold one pod in the queue with its history, its status for explanations, and the queue's counters for metrics.

The pods being tried are tracked with the events that each of them could have missed meanwhile.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ObjectEvent

QueuePart = Literal["active", "backoff", "unschedulable", "gated", "in-flight"]
NO_PLUGINS: frozenset[str] = frozenset()


class QueuedPod:
    """Hold one pod and its history. Owned by the queue: who popped it reads it and returns it to `attempt_failed`."""

    __slots__ = (
        "attempts",
        "errors",
        "first_attempt",
        "gate",
        "gate_reason",
        "message",
        "moved_by",
        "number",
        "part",
        "pending",
        "pod",
        "queued_at",
        "refusals",
        "rejected",
        "since",
        "until",
    )

    def __init__(self, pod: PodInfo, number: int, now: float) -> None:
        self.pod = pod
        self.number = number  # order of arrival: decides between pods that the sort plugin finds equal
        self.part: QueuePart = "active"
        self.queued_at = now  # when it came, for good
        self.since = now  # when it came or last failed: the time that the order of pods is made of
        self.first_attempt: float | None = None  # when it could first have been tried: latency is measured from here
        self.attempts = 0
        self.refusals = 0  # attempts that ended in a refusal, over its whole life
        self.errors = 0  # attempts in a row that ended because something was broken
        self.until = 0.0  # its back-off ends
        # Who refused it. `pending` plugins wait for something that is on its way, and their events skip the back-off.
        self.rejected: frozenset[str] = NO_PLUGINS
        self.pending: frozenset[str] = NO_PLUGINS
        self.gate = ""  # the plugin that holds it back before any attempt
        self.gate_reason = ""
        self.message = ""  # of the last failure
        self.moved_by = ""  # the event that brought it to where it is, by its name in metrics

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def rejectors(self) -> frozenset[str]:
        return self.rejected | self.pending if self.pending else self.rejected

    def __repr__(self) -> str:
        return f"QueuedPod({self.pod.key}, {self.part}, attempts={self.attempts})"


class QueuedPodStatus(msgspec.Struct, frozen=True):
    """Describe where a pod is in the queue, for explanations."""

    pod: str
    uid: str
    part: QueuePart
    attempts: int
    queued_at: float
    since: float
    moved_by: str
    first_attempt: float | None = None
    backing_off_until: float | None = None
    errors: int = 0
    rejected_by: tuple[str, ...] = ()
    pending_on: tuple[str, ...] = ()
    gated_by: str = ""
    gate_reason: str = ""
    last_failure: str = ""
    nominated_node: str = ""


def queued_pod_status(queued: QueuedPod, now: float, nominated_node: str) -> QueuedPodStatus:
    return QueuedPodStatus(
        pod=queued.pod.key,
        uid=queued.uid,
        part=queued.part,
        attempts=queued.attempts,
        queued_at=queued.queued_at,
        since=queued.since,
        moved_by=queued.moved_by,
        first_attempt=queued.first_attempt,
        backing_off_until=queued.until if queued.until > now else None,
        errors=queued.errors,
        rejected_by=tuple(sorted(queued.rejected)),
        pending_on=tuple(sorted(queued.pending)),
        gated_by=queued.gate,
        gate_reason=queued.gate_reason,
        last_failure=queued.message,
        nominated_node=nominated_node,
    )


# Names of moves besides those of cluster events.
POD_ADD = "UnschedulablePodAdd"
ATTEMPT_FAILED = "ScheduleAttemptFailure"
BACKOFF_COMPLETE = "BackoffComplete"
POP_FROM_BACKOFF = "PopFromBackoffQ"
FORCE_ACTIVATE = "ForceActivate"
UNSCHEDULABLE_TIMEOUT = "UnschedulableTimeout"


class QueueCounters:
    """Count the moves between queues, under Kubernetes' names, and the unschedulable pods by rejecting plugin."""

    def __init__(self) -> None:
        self.incoming: Counter[tuple[str, str]] = Counter()  # (queue, event): scheduler_queue_incoming_pods_total
        self.unschedulable: Counter[tuple[str, str]] = Counter()  # (plugin, profile): scheduler_unschedulable_pods

    def entered(self, part: QueuePart, event: str) -> None:
        # Kubernetes keeps gated pods among the unschedulable ones and counts their arrival there.
        self.incoming["unschedulable" if part == "gated" else part, event] += 1

    def add_rejectors(self, queued: QueuedPod, plugins: frozenset[str]) -> None:
        """Count the pod for plugins that reject it from now on."""
        for plugin in plugins - queued.rejectors:
            self.unschedulable[plugin, queued.pod.scheduler] += 1

    def clear_rejectors(self, queued: QueuedPod) -> None:
        """Stop counting the pod as rejected: it is being tried, or it is gone."""
        for plugin in queued.rejectors:
            key = (plugin, queued.pod.scheduler)
            self.unschedulable[key] -= 1
            if not self.unschedulable[key]:
                del self.unschedulable[key]


# Kubernetes counts the pods themselves among the entries of `scheduler_inflight_events`.
POD_POPPED = "PodPopped"


class InFlightPod:
    """Hold one attempt; `latest` is the pod as the server shows it now, while the attempt uses what was popped."""

    __slots__ = ("activated", "changes", "gone", "latest", "queued")

    def __init__(self, queued: QueuedPod) -> None:
        self.queued = queued
        self.latest: PodInfo = queued.pod
        self.changes: list[ObjectEvent] = []  # of this pod itself
        self.activated = False
        self.gone = False  # deleted or bound by others: nothing may come back from this attempt


class InFlightPods:
    """Track all pods in flight, and one shared log of events since the oldest of them was popped.

    An event between a pod's pop and its failure was perhaps not seen by the attempt: the pod would become unschedulable
    just after the event that could wake it. So events are recorded while any pod is in flight, and replayed when it
    fails.
    """

    def __init__(self) -> None:
        self._pods: dict[str, InFlightPod] = {}
        self._events: list[ObjectEvent] = []
        self._events_start = 0
        self._positions: OrderedDict[str, int] = OrderedDict()  # oldest first: where each flight's events begin

    def start(self, queued: QueuedPod) -> None:
        self._pods[queued.uid] = InFlightPod(queued)
        self._positions[queued.uid] = self._events_start + len(self._events)

    def end(self, uid: str) -> InFlightPod | None:
        self.stop_recording(uid)
        return self._pods.pop(uid, None)

    def stop_recording(self, uid: str) -> None:
        """Stop recording events for this pod: none can change its outcome any more."""
        if self._positions.pop(uid, None) is None:
            return
        if not self._positions:
            self._events_start += len(self._events)
            self._events.clear()
            return
        unneeded = next(iter(self._positions.values())) - self._events_start
        if 2 * unneeded > len(self._events):  # at least half goes, so each event is moved at most once on average
            del self._events[:unneeded]
            self._events_start += unneeded

    def record_event(self, object_event: ObjectEvent) -> None:
        if self._positions:
            self._events.append(object_event)

    def events_since_start(self, in_flight: InFlightPod) -> Iterator[ObjectEvent]:
        """Yield every event since this pod was popped, the pod's own changes last."""
        start = self._positions.get(in_flight.queued.uid)
        if start is not None:
            for index in range(start - self._events_start, len(self._events)):
                yield self._events[index]
        yield from in_flight.changes

    def get(self, uid: str) -> InFlightPod | None:
        return self._pods.get(uid)

    def event_counts(self) -> Counter[str]:
        """Count the recorded events by their names in Kubernetes' metrics."""
        held: Iterable[ObjectEvent] = (*self._events, *(c for f in self._pods.values() for c in f.changes))
        counts = Counter(object_event.metric_label for object_event in held)
        if self._positions:
            counts[POD_POPPED] = len(self._positions)
        return counts

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[InFlightPod]:
        return iter(self._pods.values())
