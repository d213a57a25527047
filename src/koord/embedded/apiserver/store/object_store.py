"""The content of one API server: collections, the revision counter, the optional journal, and retention."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koord.embedded.apiserver.store.collection import (
    HISTORY_EVENTS,
    NO_STRINGS,
    EventType,
    ResourceCollection,
    StoreEvent,
    StoreRecord,
)
from koord.embedded.apiserver.store.journal import StoreJournal
from koord.telemetry.clock import Clock

# Records whose decoded forms are kept: what was just written is what is read next.
HOT_RECORDS = 4096
HOT_BYTES = 32 << 20  # of their encoded forms; decoded ones take several times as much
# Of the history of all collections together; the limits of each alone would add up to gigabytes.
TOTAL_HISTORY_BYTES = 192 << 20
_WRITES_PER_CHECK = 64
# After a restart revisions jump, so that one given out just before a crash is never given out again for something else.
RESTART_REVISION_GAP = 1_000


class ObjectStore:
    """Stores objects for a single writer. `put` and `delete` change memory at once; `wait_durable` waits for disk."""

    def __init__(
        self,
        journal: StoreJournal | None = None,
        history_events: int = HISTORY_EVENTS,
        *,
        total_history_bytes: int = TOTAL_HISTORY_BYTES,
        hot_bytes: int = HOT_BYTES,
    ) -> None:
        self._journal = journal
        self._total_history_bytes = total_history_bytes
        self._hot_bytes_limit = hot_bytes
        self._hot_bytes = 0
        self._history_events = history_events
        self._encoder = msgspec.json.Encoder()
        self._collections: dict[str, ResourceCollection] = {}
        self._hot: deque[StoreRecord] = deque()
        self._listeners: dict[str, tuple[Callable[[StoreEvent], None], ...]] = {}
        self.revision = 1
        if journal is not None:
            self._load_journal(journal)

    def _load_journal(self, journal: StoreJournal) -> None:
        revision, found = journal.load()
        self.revision = revision + RESTART_REVISION_GAP if revision else 1
        for resource, records in found.items():
            self.collection(resource).load(records)

    def collection(self, resource: str) -> ResourceCollection:
        """Return the collection of `plural` or `plural.group`, made on first use: an empty one is no error."""
        found = self._collections.get(resource)
        if found is None:
            found = self._collections[resource] = ResourceCollection(resource, self.revision, self._history_events)
        return found

    def collections(self) -> Mapping[str, ResourceCollection]:
        return self._collections

    def drop_collection(self, resource: str) -> None:
        """Remove an empty collection whose CRD is gone; its watchers end."""
        collection = self._collections.pop(resource, None)
        if collection is not None:
            collection.close_watchers()

    def add_listener(self, resource: str, listener: Callable[[StoreEvent], None]) -> None:
        """Call `listener` inside every change of a collection, after it is in memory and handed to the journal.

        It is for parts of the server whose state must be true when the write returns. A listener may write in turn.
        """
        self._listeners[resource] = (*self._listeners.get(resource, ()), listener)

    def remove_listener(self, resource: str, listener: Callable[[StoreEvent], None]) -> None:
        left = tuple(kept for kept in self._listeners.get(resource, ()) if kept != listener)
        if left:
            self._listeners[resource] = left
        else:
            self._listeners.pop(resource, None)

    def put(
        self,
        resource: str,
        namespace: str,
        name: str,
        obj: dict[str, Any],
        labels: Mapping[str, str] = NO_STRINGS,
        fields: Mapping[str, str] = NO_STRINGS,
    ) -> StoreRecord:
        """Create or replace an object. The store keeps `obj` and sets its resourceVersion: hand over a private copy."""
        collection = self.collection(resource)
        previous = collection.get(namespace, name)
        event = self._event("ADDED" if previous is None else "MODIFIED", namespace, name, obj, labels, fields, previous)
        collection.apply(event)
        if self._journal is not None:
            self._journal.write(resource, event.record)
        for listener in self._listeners.get(resource, ()):
            listener(event)
        return event.record

    def delete(self, resource: str, namespace: str, name: str) -> StoreRecord | None:
        """Remove an object and return its last state with the revision of its removal; None if it was not there."""
        collection = self.collection(resource)
        previous = collection.get(namespace, name)
        if previous is None:
            return None
        last = dict(previous.plain())
        last["metadata"] = dict(last["metadata"])
        event = self._event("DELETED", namespace, name, last, previous.labels, previous.fields, previous)
        collection.apply(event)
        if self._journal is not None:
            self._journal.remove(resource, event.record)
        for listener in self._listeners.get(resource, ()):
            listener(event)
        return event.record

    def _event(
        self,
        type: EventType,
        namespace: str,
        name: str,
        obj: dict[str, Any],
        labels: Mapping[str, str],
        fields: Mapping[str, str],
        previous: StoreRecord | None,
    ) -> StoreEvent:
        if self._journal is not None:
            self._journal.raise_if_failed()  # a disk that failed must refuse before memory changes
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        record = StoreRecord(
            namespace, name, self.revision, self._encoder.encode(obj), labels or NO_STRINGS, fields or NO_STRINGS
        )
        record.keep_decoded(obj)
        self._hot.append(record)
        self._hot_bytes += len(record.raw)
        while len(self._hot) > HOT_RECORDS or (self._hot_bytes > self._hot_bytes_limit and len(self._hot) > 1):
            self._drop_coldest()
        if self.revision % _WRITES_PER_CHECK == 0:
            self._limit_history()
        return StoreEvent(type, record, previous)

    def _drop_coldest(self) -> None:
        record = self._hot.popleft()
        self._hot_bytes -= len(record.raw)
        record.drop_decoded()

    def _limit_history(self) -> None:
        """Drop history where most of it is, until all of it is within the limit."""
        while sum(collection.history_bytes for collection in self._collections.values()) > self._total_history_bytes:
            max(self._collections.values(), key=lambda collection: collection.history_bytes).drop_older_half()

    def compact(self, revision: int) -> None:
        """Drop the history up to `revision`, and the decoded forms of what was written by then."""
        for collection in self._collections.values():
            collection.compact(revision)
        while self._hot and self._hot[0].revision <= revision:
            self._drop_coldest()

    def raise_if_failed(self) -> None:
        """Raise JournalError when the disk has failed: nothing may be acknowledged from then on."""
        if self._journal is not None:
            self._journal.raise_if_failed()

    async def wait_durable(self, revision: int) -> None:
        """Return when `revision` is as safe as this store promises: at once in memory, after fsync when durable."""
        if self._journal is not None:
            await self._journal.wait_durable(revision)

    async def close(self) -> None:
        for collection in self._collections.values():
            collection.close_watchers()
        if self._journal is not None:
            await self._journal.close()


# Retention: history is compacted by age, as kube-apiserver has etcd do it, and Events expire an hour after their last
# write.

HISTORY_KEPT_S = 300.0


class HistoryCompactor:
    """Compacts the history older than `kept_s`. Each call of `compact_due` notes the present revision for later."""

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
MAX_EVENT_BYTES = 64 << 20  # a cluster that reports more than this in an hour keeps the newest
EXPIRING_RESOURCES = frozenset(("events",))


class EventExpiry:
    """Queues the deadlines of expiring objects. All have one lifetime, so deadlines come in the order of writes."""

    def __init__(
        self, store: ObjectStore, clock: Clock, ttl_s: float = EVENT_TTL_S, max_bytes: int = MAX_EVENT_BYTES
    ) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0  # of all writes in the queue
        self._store = store
        self._clock = clock
        self._ttl_s = ttl_s
        self._queue: deque[tuple[float, str, str, str, int, int]] = deque()
        for resource in EXPIRING_RESOURCES:  # what a journal brought back gets a full hour again
            for record in store.collection(resource).scan():
                self.record_write(resource, record)

    def record_write(self, resource: str, record: StoreRecord) -> None:
        """Record a write of an expiring resource; each write starts the hour anew."""
        due = self._clock.time() + self._ttl_s
        self._queue.append((due, resource, record.namespace, record.name, record.revision, len(record.raw)))
        self._bytes += len(record.raw)

    def delete_expired(self) -> float | None:
        """Delete what is due, and the oldest beyond the limit of bytes; return the seconds until the next deadline."""
        now = self._clock.time()
        while self._queue and (self._queue[0][0] <= now or self._bytes > self._max_bytes):
            _, resource, namespace, name, revision, size = self._queue[0]
            record = self._store.collection(resource).get(namespace, name)
            if record is not None and record.revision == revision:
                self._store.delete(resource, namespace, name)  # raises while the disk fails: it stays in the queue
            self._queue.popleft()
            self._bytes -= size
        return self._queue[0][0] - now if self._queue else None
