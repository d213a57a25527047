"""Retention: history is compacted by age, as kube-apiserver has etcd do it, and Events expire an hour
after their last write.
"""

from __future__ import annotations

from collections import deque

from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.embedded.apiserver.store.record import StoreRecord
from koord.telemetry.clock import Clock

HISTORY_KEPT_S = 300.0


class HistoryCompactor:
    """Compacts the history that is older than `kept_s`. Each call of `compact_due` notes the present revision
    for later.
    """

    def __init__(self, store: ObjectStore, clock: Clock, kept_s: float = HISTORY_KEPT_S) -> None:
        self._store = store
        self._clock = clock
        self._history_kept_s = kept_s
        self._marks: deque[tuple[float, int]] = deque()  # moments and their revisions

    def compact_due(self) -> None:
        now_s = self._clock.monotonic()
        due = 0
        while self._marks and now_s - self._marks[0][0] >= self._history_kept_s:
            due = self._marks.popleft()[1]
        if due:
            self._store.compact(due)
        if not self._marks or self._marks[-1][1] != self._store.revision:
            self._marks.append((now_s, self._store.revision))


EVENT_TTL_S = 3600.0
EXPIRING_RESOURCES = frozenset(("events",))


class EventExpiry:
    """Queues the deadlines of expiring objects. All have one lifetime, so deadlines come in the order of
    writes.
    """

    def __init__(self, store: ObjectStore, clock: Clock, ttl_s: float = EVENT_TTL_S) -> None:
        self._store = store
        self._clock = clock
        self._ttl_s = ttl_s
        self._queue: deque[tuple[float, str, str, str, int]] = deque()
        for resource in EXPIRING_RESOURCES:  # what a journal brought back gets a full hour again
            for record in store.collection(resource).scan():
                self.record_write(resource, record)

    def record_write(self, resource: str, record: StoreRecord) -> None:
        """Record a write of an expiring resource; each write starts the hour anew."""
        due = self._clock.time() + self._ttl_s
        self._queue.append((due, resource, record.namespace, record.name, record.revision))

    def delete_expired(self) -> float | None:
        """Delete what is due and return the seconds until the next deadline, or None when nothing is waiting."""
        now = self._clock.time()
        while self._queue and self._queue[0][0] <= now:
            _, resource, namespace, name, revision = self._queue.popleft()
            record = self._store.collection(resource).get(namespace, name)
            if record is not None and record.revision == revision:
                self._store.delete(resource, namespace, name)
        return self._queue[0][0] - now if self._queue else None
