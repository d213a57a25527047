"""Track the pods being tried and the events that each of them could have missed meanwhile.

An event between a pod's pop and its failure was perhaps not seen by the attempt: the pod would become unschedulable
just after the event that could wake it. So events are recorded while any pod is in flight, and replayed when it fails.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ObjectEvent
from koord.scheduler.queue.queued_pod import QueuedPod

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
    """Track all pods in flight, and one shared log of events since the oldest of them was popped."""

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
