"""Track the pods being tried and the events that each of them could have missed meanwhile.

An event between a pod's pop and its failure was perhaps not seen by the attempt: the pod would become unschedulable
just after the event that could wake it. So events are recorded while any pod is in flight, and replayed when it fails.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator

from koord.scheduler.framework.event import Happened
from koord.scheduler.queue.entry import QueuedPod
from koord.scheduler.state.pod import PodInfo

# Kubernetes counts the pods themselves among the entries of `scheduler_inflight_events`.
POD_POPPED = "PodPopped"


class Flight:
    """Hold one attempt; `latest` is the pod as the server shows it now, while the attempt goes on with what was
    popped.
    """

    __slots__ = ("activated", "changes", "gone", "latest", "queued")

    def __init__(self, queued: QueuedPod) -> None:
        self.queued = queued
        self.latest: PodInfo = queued.pod
        self.changes: list[Happened] = []  # of this pod itself
        self.activated = False
        self.gone = False  # deleted or bound by others: nothing may come back from this attempt


class Flights:
    """Track all pods in flight, and one shared log of events since the oldest of them was popped."""
    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}
        self._log: list[Happened] = []
        self._log_start = 0
        self._positions: OrderedDict[str, int] = OrderedDict()  # oldest first: where each flight's events begin

    def start(self, queued: QueuedPod) -> None:
        self._flights[queued.uid] = Flight(queued)
        self._positions[queued.uid] = self._log_start + len(self._log)

    def end(self, uid: str) -> Flight | None:
        self.stop_listening(uid)
        return self._flights.pop(uid, None)

    def stop_listening(self, uid: str) -> None:
        """Stop recording events for this pod: none can change its outcome any more."""
        if self._positions.pop(uid, None) is None:
            return
        if not self._positions:
            self._log_start += len(self._log)
            self._log.clear()
            return
        unneeded = next(iter(self._positions.values())) - self._log_start
        if 2 * unneeded > len(self._log):  # at least half goes, so each event is moved at most once on average
            del self._log[:unneeded]
            self._log_start += unneeded

    def note(self, happened: Happened) -> None:
        if self._positions:
            self._log.append(happened)

    def missed(self, flight: Flight) -> Iterator[Happened]:
        """Yield every event since this pod was popped, the pod's own changes last."""
        start = self._positions.get(flight.queued.uid)
        if start is not None:
            for index in range(start - self._log_start, len(self._log)):
                yield self._log[index]
        yield from flight.changes

    def get(self, uid: str) -> Flight | None:
        return self._flights.get(uid)

    def labels(self) -> Counter[str]:
        """Count the recorded events by their names in Kubernetes' metrics."""
        held: Iterable[Happened] = (*self._log, *(c for f in self._flights.values() for c in f.changes))
        counts = Counter(happened.label for happened in held)
        if self._positions:
            counts[POD_POPPED] = len(self._positions)
        return counts

    def __len__(self) -> int:
        return len(self._flights)

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._flights.values())
