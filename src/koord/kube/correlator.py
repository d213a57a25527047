"""This module folds many similar events into few Event objects: a series for repetitions and a budget per
object. It is pure.

Events are events.k8s.io/v1 as kube-scheduler writes them. Two events share one EventKey when type, reason,
action, regarding and related are the same; the regarding object's resourceVersion does not count, because
it changes with every write. A note that differs starts a new Event at most once a minute (upstream keeps
the first note until the series has been silent for six minutes, and so shows reasons that are no longer
true); within that minute it only adds to the count.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from koord.api.model import to_dict
from koord.api.part import ObjectReference
from koord.kube.microtime import microtime
from koord.kube.ratelimit import TokenBucket
from koord.telemetry.clock import Clock

NOTE_BYTES = 1024  # the server refuses more
NAME_BYTES = 128  # ... of reason, action and reporting instance
FINISH_S = 6 * 60.0  # a story that was silent this long is over
REFRESH_S = 30 * 60.0  # a story that goes on is written this often
NEW_NOTE_S = 60.0
OBJECT_BURST = 25
OBJECT_PER_S = 1 / 300
STORIES = 4096  # remembered at once, and as many objects' limits
_CUT = " ..."


class StoryKey(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    reason: str
    action: str
    regarding: ObjectReference
    related: ObjectReference | None


class Story(msgspec.Struct, kw_only=True, eq=False):
    """CachedEvent is one Event object in memory, ahead of what the server has."""

    key: StoryKey
    regarding: ObjectReference
    name: str
    note: str
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
    def owed(self) -> bool:
        """Return whether the event must be written now: its first occurrence and its first repetition are; later
        counts can wait.
        """
        return self.written == 0 or (self.written == 1 and self.count > 1)

    def series(self) -> dict[str, Any] | None:
        return {"count": self.count, "lastObservedTime": _at(self.last_s)} if self.count > 1 else None


def _at(seconds: float) -> str:
    return microtime(datetime.fromtimestamp(seconds, UTC))


def bounded(text: str, limit: int = NOTE_BYTES) -> str:
    """Truncate text to at most `limit` bytes of UTF-8, never inside a character."""
    raw = text.encode()
    if len(raw) <= limit:
        return text
    return raw[: limit - len(_CUT)].decode(errors="ignore") + _CUT


def body_of(story: Story, controller: str, instance: str) -> dict[str, Any]:
    key = story.key
    body: dict[str, Any] = {
        "metadata": {"name": story.name, "namespace": story.namespace},
        "eventTime": _at(story.first_s),
        "reportingController": controller,
        "reportingInstance": instance,
        "action": key.action,
        "reason": key.reason,
        "type": key.type,
        "note": story.note,
        "regarding": to_dict(story.regarding),
    }
    if key.related is not None:
        body["related"] = to_dict(key.related)
    if (series := story.series()) is not None:
        body["series"] = series
    return body


class Correlator:
    """EventCorrelator caches the events that are being recorded. Time comes from the clock; nothing is sent from
    here.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stories: OrderedDict[StoryKey, Story] = OrderedDict()  # least recently heard of first
        self._limits: OrderedDict[tuple[str, ...], TokenBucket] = OrderedDict()

    def known(self, key: StoryKey, note: str) -> Story | None:
        """Return the cached event that this one repeats, with its count raised, or None."""
        story = self._stories.get(key)
        now = self._clock.time()
        if story is None or (story.note != note and now - story.first_s >= NEW_NOTE_S):
            return None
        story.count += 1
        story.last_s = now
        self._stories.move_to_end(key)
        return story

    def allowed(self, regarding: ObjectReference) -> bool:
        """Take one token of the object's budget for new Events; return whether there was one."""
        who = (regarding.kind, regarding.namespace, regarding.name, regarding.uid)
        bucket = self._limits.get(who)
        if bucket is None:
            bucket = self._limits[who] = TokenBucket(self._clock, OBJECT_PER_S, OBJECT_BURST)
            while len(self._limits) > STORIES:
                self._limits.popitem(last=False)
        self._limits.move_to_end(who)
        return bucket.allow()

    def begin(self, key: StoryKey, regarding: ObjectReference, name: str, note: str) -> tuple[Story, list[Story]]:
        """Cache a new event; return it and the evicted events whose counts the server does not have yet."""
        now = self._clock.time()
        story = Story(key=key, regarding=regarding, name=name, note=note, first_s=now, last_s=now)
        old = self._stories.pop(key, None)
        pushed = [] if old is None else [old]
        self._stories[key] = story
        while len(self._stories) > STORIES:
            pushed.append(self._stories.popitem(last=False)[1])
        return story, [other for other in pushed if 0 < other.written < other.count]

    def due(self) -> Iterator[Story]:
        """Yield the events whose counts should be written now and forget those that are over."""
        now = self._clock.time()
        for story in list(self._stories.values()):
            over = now - story.last_s >= FINISH_S
            if over and story.written:
                del self._stories[story.key]
            if 0 < story.written < story.count and (over or now - story.written_s >= REFRESH_S):
                yield story

    def unwritten(self) -> list[Story]:
        return [story for story in self._stories.values() if story.written < story.count]

    def forget(self, story: Story) -> None:
        if self._stories.get(story.key) is story:
            del self._stories[story.key]

    def __len__(self) -> int:
        return len(self._stories)
