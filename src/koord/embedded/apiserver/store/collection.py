"""All objects of one resource in key order, the recent events that turn one revision into the next, and cursors over
those events.

A record is one object at one revision, and the event that led to it; its bytes are authoritative. A cursor holds no
events of its own, so a slow watcher costs nothing to others.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from koord.api.model import convert, decode

# Enough for a watcher that is away for a few seconds at full speed; a longer absence costs it a new list.
HISTORY_EVENTS = 16_384
HISTORY_BYTES = 96 << 20

T = TypeVar("T")

EventType = Literal["ADDED", "MODIFIED", "DELETED"]

NO_STRINGS: Mapping[str, str] = {}


class StoreRecord:
    """An object at a revision, encoded once; its decoded forms are kept while the record is recently used."""

    __slots__ = ("_plain", "_typed", "fields", "labels", "name", "namespace", "raw", "revision")

    def __init__(
        self,
        namespace: str,
        name: str,
        revision: int,
        raw: bytes,
        labels: Mapping[str, str] = NO_STRINGS,
        fields: Mapping[str, str] = NO_STRINGS,
    ) -> None:
        self.namespace = namespace
        self.name = name
        self.revision = revision
        self.raw = raw
        self.labels = labels
        self.fields = fields  # values of the kind's selectable fields beyond name and namespace
        self._plain: dict[str, Any] | None = None
        self._typed: Any = None

    def plain(self) -> dict[str, Any]:
        """Return the object as dicts and lists, which are shared by all readers: never change them."""
        if self._plain is not None:
            return self._plain
        decoded: dict[str, Any] = msgspec.json.decode(self.raw)
        return decoded

    def typed(self, model: type[T]) -> T:
        """Return a typed view, made once for all in-process readers that want the same type."""
        kept = self._typed
        if kept is not None and type(kept) is model:
            return kept
        made = convert(self._plain, model) if self._plain is not None else decode(self.raw, model)
        self._typed = made
        return made

    def keep_decoded(self, plain: dict[str, Any]) -> None:
        self._plain = plain

    def drop_decoded(self) -> None:
        self._plain = None
        self._typed = None


class StoreEvent:
    """One change at one revision. `previous` is the record that it replaced, for selectors and past lists."""

    __slots__ = ("_line", "previous", "record", "type")

    def __init__(self, type: EventType, record: StoreRecord, previous: StoreRecord | None) -> None:
        self.type: EventType = type
        self.record = record
        self.previous = previous
        self._line: bytes | None = None

    @property
    def revision(self) -> int:
        return self.record.revision

    def line(self) -> bytes:
        """Return the watch line, encoded once and shared by every watcher."""
        if self._line is None:
            self._line = watch_line(self.type, self.record.raw)
        return self._line


def watch_line(type: str, raw: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (type.encode(), raw)


class RevisionTooOldError(Exception):
    """Raised when the requested revision is older than the history that is kept."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {asked} ({oldest})")
        self.asked = asked
        self.oldest = oldest


def collection_key(namespace: str, name: str) -> str:
    """Return the key of an object. The order of keys is the order on the wire, as etcd sorts them."""
    return f"{namespace}/{name}"


class ResourceCollection:
    def __init__(
        self,
        resource: str,
        created_revision: int,
        history_events: int = HISTORY_EVENTS,
        history_bytes: int = HISTORY_BYTES,
    ) -> None:
        self.resource = resource
        self._records: dict[str, StoreRecord] = {}
        self._keys: list[str] = []
        self._events: list[StoreEvent] = []
        self._first_position = 0  # sequence number of _events[0]
        self._bytes = 0
        self._compacted_revision = created_revision  # revisions up to here cannot be replayed
        self._history_events = history_events
        self._history_bytes = history_bytes
        self._watchers: dict[EventCursor, None] = {}  # in the order they came: wake-ups must not depend on addresses

    def __len__(self) -> int:
        return len(self._records)

    def get(self, namespace: str, name: str) -> StoreRecord | None:
        return self._records.get(collection_key(namespace, name))

    def load(self, records: list[StoreRecord]) -> None:
        """Fill an empty collection from disk, without events."""
        self._records = {collection_key(r.namespace, r.name): r for r in records}
        self._keys = sorted(self._records)

    # Reading -----------------------------------------------------------------------------------------------------

    def scan(self, namespace: str = "", after: str = "") -> Iterator[StoreRecord]:
        """Yield records in key order, in one namespace or all, from the first key greater than `after`."""
        keys = self._keys
        prefix = f"{namespace}/" if namespace else ""
        start = bisect.bisect_right(keys, after) if after > prefix else bisect.bisect_left(keys, prefix)
        records = self._records
        for key in itertools.islice(keys, start, None):
            if prefix and not key.startswith(prefix):
                return
            yield records[key]

    def scan_at(self, revision: int, namespace: str = "", after: str = "") -> list[StoreRecord]:
        """Return what `scan` returned at an earlier revision. Raises RevisionTooOldError when that is compacted."""
        changed = self._records_before(revision)
        if not changed:
            return list(self.scan(namespace, after))
        past = {key: record for key, record in changed.items() if record is not None}
        prefix = f"{namespace}/" if namespace else ""
        now = [(collection_key(r.namespace, r.name), r) for r in self.scan(namespace, after)]
        kept = [(key, r) for key, r in now if key not in changed]
        kept += [(key, r) for key, r in past.items() if key > after and key.startswith(prefix)]
        kept.sort(key=lambda pair: pair[0])
        return [r for _, r in kept]

    def _records_before(self, revision: int) -> dict[str, StoreRecord | None]:
        """Return every key touched after `revision` with the record that it had then (None: it did not exist)."""
        if revision < self._compacted_revision:
            raise RevisionTooOldError(revision, self._compacted_revision)
        was: dict[str, StoreRecord | None] = {}
        for event in reversed(self._events):
            if event.revision <= revision:
                break
            was[collection_key(event.record.namespace, event.record.name)] = event.previous
        return was

    # Writing (by the Store only) ---------------------------------------------------------------------------------

    def apply(self, event: StoreEvent) -> None:
        key = collection_key(event.record.namespace, event.record.name)
        if event.type == "DELETED":
            del self._records[key]
            del self._keys[bisect.bisect_left(self._keys, key)]
        else:
            if event.type == "ADDED":
                if not self._keys or key > self._keys[-1]:
                    self._keys.append(key)
                else:
                    bisect.insort(self._keys, key)
            self._records[key] = event.record
        self._events.append(event)
        self._bytes += len(event.record.raw)
        if len(self._events) > self._history_events or self._bytes > self._history_bytes:
            self.drop_older_half()
        for watcher in self._watchers:
            watcher.notify()

    def compact(self, revision: int) -> None:
        """Drop events up to and including `revision`. Records stay, and so does a younger history."""
        drop = bisect.bisect_right(self._events, revision, key=lambda event: event.revision)
        if drop:
            self._drop_events(drop)

    @property
    def history_bytes(self) -> int:
        return self._bytes

    def drop_older_half(self) -> None:
        """Drop the older half of the history at once: to trim one event per write would move the list each time."""
        if self._events:
            self._drop_events(max(1, len(self._events) // 2))

    def _drop_events(self, drop: int) -> None:
        self._compacted_revision = self._events[drop - 1].revision
        self._bytes -= sum(len(e.record.raw) for e in self._events[:drop])
        del self._events[:drop]
        self._first_position += drop
        for watcher in self._watchers:
            if watcher.position < self._first_position:
                watcher.notify()  # it finds out that it was too slow

    # Watching ----------------------------------------------------------------------------------------------------

    def subscribe(self, revision: int | None = None) -> EventCursor:
        """Return a cursor over the events after `revision` (None: from now on). Raises RevisionTooOldError."""
        end = self._first_position + len(self._events)
        if revision is None:
            position = end
        elif revision < self._compacted_revision:
            raise RevisionTooOldError(revision, self._compacted_revision)
        else:
            position = self._first_position + bisect.bisect_right(self._events, revision, key=lambda e: e.revision)
        watcher = EventCursor(self, position)
        self._watchers[watcher] = None
        return watcher

    def unsubscribe(self, watcher: EventCursor) -> None:
        self._watchers.pop(watcher, None)

    def close_watchers(self) -> None:
        for watcher in tuple(self._watchers):
            watcher.close()

    def events_from(self, position: int) -> list[StoreEvent] | None:
        """Return the events at and after a position; None when the position is older than the history that is kept."""
        if position < self._first_position:
            return None
        return self._events[position - self._first_position :]

    @property
    def end_position(self) -> int:
        return self._first_position + len(self._events)

    @property
    def watcher_count(self) -> int:
        return len(self._watchers)


class EventCursor:
    __slots__ = ("_collection", "_timer", "_waiting", "closed", "position")

    def __init__(self, collection: ResourceCollection, position: int) -> None:
        self._collection = collection
        self.position = position
        self._waiting: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False

    def notify(self) -> None:
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    def pending(self) -> list[StoreEvent] | None:
        """Return the events since the last call without waiting; None when the reader was too slow and must list."""
        events = self._collection.events_from(self.position)
        if events:
            self.position += len(events)
        return events

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for an event and return True; False when the cursor is closed or `timeout` seconds have passed."""
        loop = asyncio.get_running_loop()
        due = None if timeout is None else loop.time() + timeout
        while True:
            if self.closed:
                return False
            if self.position != self._collection.end_position:
                return True
            if due is not None:
                if loop.time() >= due:
                    return False
                self._arm_timer(loop, due)
            self._waiting = loop.create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None

    def _arm_timer(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        """Set the timer, unless one is set for an earlier moment: events come often, the ends of waits seldom."""
        timer = self._timer
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timer = loop.call_at(due, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.notify()

    def close(self) -> None:
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._collection.unsubscribe(self)
        self.notify()
