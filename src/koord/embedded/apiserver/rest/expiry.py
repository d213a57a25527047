"""Delete Events an hour after their last write."""

from __future__ import annotations

from collections import deque

from koord.embedded.apiserver.store import Record, Store
from koord.telemetry.clock import Clock

EVENT_TTL_S = 3600.0
EXPIRING = frozenset(("events",))


class Expiry:
    """Queues the deadlines of expiring objects. All have one lifetime, so deadlines come in the order of
    writes.
    """

    def __init__(self, store: Store, clock: Clock, ttl_s: float = EVENT_TTL_S) -> None:
        self._store = store
        self._clock = clock
        self._ttl_s = ttl_s
        self._queue: deque[tuple[float, str, str, str, int]] = deque()
        for resource in EXPIRING:  # what a journal brought back gets a full hour again
            for record in store.collection(resource).scan():
                self.note(resource, record)

    def note(self, resource: str, record: Record) -> None:
        """Record a write of an expiring resource; each write starts the hour anew."""
        due = self._clock.time() + self._ttl_s
        self._queue.append((due, resource, record.namespace, record.name, record.revision))

    def sweep(self) -> float | None:
        """Delete what is due and return the seconds until the next deadline, or None when nothing is waiting."""
        now = self._clock.time()
        while self._queue and self._queue[0][0] <= now:
            _, resource, namespace, name, revision = self._queue.popleft()
            record = self._store.collection(resource).get(namespace, name)
            if record is not None and record.revision == revision:
                self._store.delete(resource, namespace, name)
        return self._queue[0][0] - now if self._queue else None
