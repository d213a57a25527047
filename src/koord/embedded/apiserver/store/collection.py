"""All objects of one resource in key order, the recent events that turn one revision into the next, and
cursors over those events.

A cursor holds no events of its own, so a slow watcher costs nothing to others.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator

from koord.embedded.apiserver.store.record import Event, Record
from koord.embedded.apiserver.store.watcher import Watcher

# Enough for a watcher that is away for a few seconds at full speed; a longer absence costs it a new list.
HISTORY_EVENTS = 16_384
HISTORY_BYTES = 96 << 20


class TooOld(Exception):
    """Raised when the requested revision is older than the history that is kept."""

    def __init__(self, asked: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {asked} ({oldest})")
        self.asked = asked
        self.oldest = oldest


def key_of(namespace: str, name: str) -> str:
    """Return the key of an object. The order of keys is the order on the wire, as etcd sorts them."""
    return f"{namespace}/{name}"


class Collection:
    def __init__(
        self, resource: str, born: int, history_events: int = HISTORY_EVENTS, history_bytes: int = HISTORY_BYTES
    ) -> None:
        self.resource = resource
        self._records: dict[str, Record] = {}
        self._keys: list[str] = []
        self._events: list[Event] = []
        self._first = 0  # sequence number of _events[0]
        self._bytes = 0
        self._floor = born  # revisions up to here cannot be replayed
        self._history_events = history_events
        self._history_bytes = history_bytes
        self._watchers: dict[Watcher, None] = {}  # in the order they came: wake-ups must not depend on addresses

    def __len__(self) -> int:
        return len(self._records)

    def get(self, namespace: str, name: str) -> Record | None:
        return self._records.get(key_of(namespace, name))

    def load(self, records: list[Record]) -> None:
        """Fill an empty collection from disk, without events."""
        self._records = {key_of(r.namespace, r.name): r for r in records}
        self._keys = sorted(self._records)

    # Reading -----------------------------------------------------------------------------------------------------

    def scan(self, namespace: str = "", after: str = "") -> Iterator[Record]:
        """Yield records in key order, in one namespace or all, from the first key greater than `after`."""
        keys = self._keys
        prefix = f"{namespace}/" if namespace else ""
        start = bisect.bisect_right(keys, after) if after > prefix else bisect.bisect_left(keys, prefix)
        records = self._records
        for key in itertools.islice(keys, start, None):
            if prefix and not key.startswith(prefix):
                return
            yield records[key]

    def scan_at(self, revision: int, namespace: str = "", after: str = "") -> list[Record]:
        """Return what `scan` would have returned at an earlier revision. Raises RevisionTooOldError when that is
        compacted.
        """
        changed = self._changed_since(revision)
        if not changed:
            return list(self.scan(namespace, after))
        past = {key: record for key, record in changed.items() if record is not None}
        prefix = f"{namespace}/" if namespace else ""
        now = [(key_of(r.namespace, r.name), r) for r in self.scan(namespace, after)]
        kept = [(key, r) for key, r in now if key not in changed]
        kept += [(key, r) for key, r in past.items() if key > after and key.startswith(prefix)]
        kept.sort(key=lambda pair: pair[0])
        return [r for _, r in kept]

    def _changed_since(self, revision: int) -> dict[str, Record | None]:
        """Return every key touched after `revision` with the record that it had then (None: it did not exist)."""
        if revision < self._floor:
            raise TooOld(revision, self._floor)
        was: dict[str, Record | None] = {}
        for event in reversed(self._events):
            if event.revision <= revision:
                break
            was[key_of(event.record.namespace, event.record.name)] = event.previous
        return was

    # Writing (by the Store only) ---------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        key = key_of(event.record.namespace, event.record.name)
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
            self._shrink()
        for watcher in self._watchers:
            watcher.wake()

    def compact(self, revision: int) -> None:
        """Drop events up to and including `revision`. Records stay, and so does a younger history."""
        drop = bisect.bisect_right(self._events, revision, key=lambda event: event.revision)
        if drop:
            self._forget(drop)

    def _shrink(self) -> None:
        """Drop the older half of the history at once: trimming one event per write would move the whole list each
        time.
        """
        self._forget(max(1, len(self._events) // 2))

    def _forget(self, drop: int) -> None:
        self._floor = self._events[drop - 1].revision
        self._bytes -= sum(len(e.record.raw) for e in self._events[:drop])
        del self._events[:drop]
        self._first += drop
        for watcher in self._watchers:
            if watcher.position < self._first:
                watcher.wake()  # it finds out that it was too slow

    # Watching ----------------------------------------------------------------------------------------------------

    def subscribe(self, revision: int | None = None) -> Watcher:
        """Return a cursor over the events after `revision` (None: from now on). Raises RevisionTooOldError when
        they are compacted.
        """
        end = self._first + len(self._events)
        if revision is None:
            position = end
        elif revision < self._floor:
            raise TooOld(revision, self._floor)
        else:
            position = self._first + bisect.bisect_right(self._events, revision, key=lambda e: e.revision)
        watcher = Watcher(self, position)
        self._watchers[watcher] = None
        return watcher

    def unsubscribe(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def events_from(self, position: int) -> list[Event] | None:
        """Return the events at and after a position; None when the position is older than the history that is
        kept.
        """
        if position < self._first:
            return None
        return self._events[position - self._first :]

    @property
    def end(self) -> int:
        return self._first + len(self._events)

    @property
    def watcher_count(self) -> int:
        return len(self._watchers)
