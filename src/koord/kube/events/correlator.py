"""This module folds many similar events into few Event objects: a series for repetitions and a budget per
object. It is pure.

Events are events.k8s.io/v1 as kube-scheduler writes them, or core/v1 with a source as client-go's older recorder
does: the server accepts a source in core/v1 alone. Two events share one EventKey when type, reason,
action, regarding and related are the same; the regarding object's resourceVersion does not count, because
it changes with every write. A note that differs starts a new Event at most once a minute (upstream keeps
the first note until the series has been silent for six minutes, and so shows reasons that are no longer
true); within that minute it only adds to the count.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from koord.api.kubernetes.core_v1 import EventSource
from koord.api.model import ObjectReference, to_dict
from koord.telemetry.clock import Clock
from koord.values.timestamp import unix_micro_text, unix_text
from koord.values.token_bucket import TokenBucket

MAX_NOTE_BYTES = 1024  # the server refuses more
MAX_NAME_BYTES = 128  # ... of reason, action and reporting instance
FINISH_TIME_S = 6 * 60.0  # a story that was silent this long is over
REFRESH_TIME_S = 30 * 60.0  # a story that goes on is written this often
NEW_NOTE_INTERVAL_S = 60.0
EVENTS_PER_OBJECT_BURST = 25
EVENTS_PER_OBJECT_PER_S = 1 / 300
MAX_CACHED_EVENTS = 4096  # remembered at once, and as many objects' limits
MAX_CACHED_BYTES = 4 << 20  # of all remembered events, about
_EVENT_BYTES = 1000  # an event without its texts: its records, its references, its place in the cache
_TRUNCATED = " ..."


class EventKey(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    reason: str
    action: str
    regarding: ObjectReference
    related: ObjectReference | None


class CachedEvent(msgspec.Struct, kw_only=True, eq=False):
    """CachedEvent is one Event object in memory, ahead of what the server has."""

    key: EventKey
    regarding: ObjectReference
    name: str
    note: str
    annotations: Mapping[str, str] = {}
    first_s: float  # wall clock
    last_s: float
    count: int = 1
    written: int = 0  # the count that the server has; 0 before it was created
    written_s: float = 0.0
    queued: bool = False
    tries: int = 0

    @property
    def namespace(self) -> str:
        return self.regarding.namespace or "default"

    @property
    def needs_write(self) -> bool:
        """Return whether the event must be written now: the first occurrence and repetition are; later counts wait."""
        return self.written == 0 or (self.written == 1 and self.count > 1)

    def size_bytes(self) -> int:
        """Return about how much memory the event takes."""
        texts = sum(len(key) + len(value) for key, value in self.annotations.items())
        return _EVENT_BYTES + len(self.note) + len(self.name) + len(self.regarding.name) + texts

    def series(self) -> dict[str, Any] | None:
        return {"count": self.count, "lastObservedTime": unix_micro_text(self.last_s)} if self.count > 1 else None

    def repetition_patch(self, *, core: bool) -> dict[str, Any]:
        """Return the patch that tells the server of repetitions; the annotations are those of the latest."""
        patch: dict[str, Any] = (
            {"count": self.count, "lastTimestamp": unix_text(self.last_s)} if core else {"series": self.series()}
        )
        return {**patch, "metadata": {"annotations": self.annotations}} if self.annotations else patch


def truncate_utf8(text: str, limit: int = MAX_NOTE_BYTES) -> str:
    """Truncate text to at most `limit` bytes of UTF-8, never inside a character."""
    raw = text.encode()
    if len(raw) <= limit:
        return text
    return raw[: limit - len(_TRUNCATED)].decode(errors="ignore") + _TRUNCATED


def event_body(event: CachedEvent, controller: str, instance: str) -> dict[str, Any]:
    """Return the event as events.k8s.io/v1."""
    key = event.key
    body: dict[str, Any] = {
        "metadata": _event_metadata(event),
        "eventTime": unix_micro_text(event.first_s),
        "reportingController": controller,
        "reportingInstance": instance,
        "action": key.action,
        "reason": key.reason,
        "type": key.type,
        "note": event.note,
        "regarding": to_dict(event.regarding),
    }
    if key.related is not None:
        body["related"] = to_dict(key.related)
    if (series := event.series()) is not None:
        body["series"] = series
    return body


def core_event_body(event: CachedEvent, source: EventSource, instance: str) -> dict[str, Any]:
    """Return the event as core/v1, with its source."""
    key = event.key
    body: dict[str, Any] = {
        "metadata": _event_metadata(event),
        "firstTimestamp": unix_text(event.first_s),
        "lastTimestamp": unix_text(event.last_s),
        "count": event.count,
        "source": to_dict(source),
        "reportingComponent": source.component,
        "reportingInstance": instance,
        "reason": key.reason,
        "type": key.type,
        "message": event.note,
        "involvedObject": to_dict(event.regarding),
    }
    if key.related is not None:
        body["related"] = to_dict(key.related)
    return body


def _event_metadata(event: CachedEvent) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": event.name, "namespace": event.namespace}
    if event.annotations:
        metadata["annotations"] = dict(event.annotations)
    return metadata


class EventCorrelator:
    """EventCorrelator caches the events that are being recorded; it sends nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: OrderedDict[EventKey, CachedEvent] = OrderedDict()  # least recently heard of first
        self._bytes = 0
        self._limits: OrderedDict[tuple[str, ...], TokenBucket] = OrderedDict()

    def count_repetition(
        self, key: EventKey, note: str, annotations: Mapping[str, str] | None = None
    ) -> CachedEvent | None:
        """Return the cached event that this one repeats, with its count raised, or None."""
        event = self._events.get(key)
        now = self._clock.time()
        if event is None or (event.note != note and now - event.first_s >= NEW_NOTE_INTERVAL_S):
            return None
        event.count += 1
        event.last_s = now
        self._bytes -= event.size_bytes()
        event.annotations = annotations or {}
        self._bytes += event.size_bytes()
        self._events.move_to_end(key)
        return event

    def take_object_budget(self, regarding: ObjectReference) -> bool:
        """Take one token of the object's budget for new Events; return whether there was one."""
        who = (regarding.kind, regarding.namespace, regarding.name, regarding.uid)
        now_s = self._clock.monotonic()
        bucket = self._limits.get(who)
        if bucket is None:
            bucket = self._limits[who] = TokenBucket(EVENTS_PER_OBJECT_PER_S, EVENTS_PER_OBJECT_BURST, now_s)
            while len(self._limits) > MAX_CACHED_EVENTS:
                self._limits.popitem(last=False)
        self._limits.move_to_end(who)
        return bucket.allow(now_s)

    def start_event(
        self,
        key: EventKey,
        regarding: ObjectReference,
        name: str,
        note: str,
        annotations: Mapping[str, str] | None = None,
    ) -> tuple[CachedEvent, list[CachedEvent]]:
        """Cache a new event; return it and the evicted events whose counts the server does not have yet."""
        now = self._clock.time()
        event = CachedEvent(
            key=key, regarding=regarding, name=name, note=note, annotations=annotations or {}, first_s=now, last_s=now
        )
        old = self._events.get(key)
        pushed = [] if old is None else [self._remove(old)]
        self._events[key] = event
        self._bytes += event.size_bytes()
        while len(self._events) > MAX_CACHED_EVENTS or (self._bytes > MAX_CACHED_BYTES and len(self._events) > 1):
            pushed.append(self._remove(next(iter(self._events.values()))))
        return event, [other for other in pushed if 0 < other.written < other.count]

    def due_for_write(self) -> Iterator[CachedEvent]:
        """Yield the events whose counts should be written now and forget those that are over."""
        now = self._clock.time()
        for event in list(self._events.values()):
            over = now - event.last_s >= FINISH_TIME_S
            if over and event.written:
                self._remove(event)
            if 0 < event.written < event.count and (over or now - event.written_s >= REFRESH_TIME_S):
                yield event

    def events_with_unwritten_counts(self) -> list[CachedEvent]:
        return [event for event in self._events.values() if event.written < event.count]

    def forget(self, event: CachedEvent) -> None:
        if self._events.get(event.key) is event:
            self._remove(event)

    def _remove(self, event: CachedEvent) -> CachedEvent:
        self._bytes -= event.size_bytes()
        return self._events.pop(event.key)

    def __len__(self) -> int:
        return len(self._events)

    @property
    def cached_bytes(self) -> int:
        return self._bytes
