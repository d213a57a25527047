"""Serve a watch: the events of one collection as one client asked to see them, with bookmarks, until its
timeout.

The encoding decides the form of an event. The bytes of an unfiltered event are shared by all its
watchers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

import msgspec

from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.refusal import Refusal, expired
from koord.embedded.apiserver.rest.call import Call, Parts
from koord.embedded.apiserver.rest.options import ListOptions, revision_of, too_large
from koord.embedded.apiserver.rest.selection import Selection, selection_of
from koord.embedded.apiserver.store import Collection, Event, Record, TooOld, Watcher
from koord.embedded.apiserver.store.record import watch_line
from koord.kube.transport import Body, PlainBody

Obj = dict[str, Any]
BOOKMARK_S = 60.0
MIN_TIMEOUT_S = 1800  # without timeoutSeconds a watch lasts between this and twice this
INITIAL_END = "k8s.io/initial-events-end"


class WatchFrame:
    """One watch event. `line` returns its bytes on an HTTP stream, which are reused when the store has made
    them already.
    """

    __slots__ = ("_line", "body", "type")

    def __init__(self, type: str, body: Body, line: bytes | None = None) -> None:
        self.type = type
        self.body = body
        self._line = line

    def line(self) -> bytes:
        return self._line if self._line is not None else watch_line(self.type, self.body.raw())


class Encoding(Protocol):
    """Encodes records as watch frames: as themselves, as Tables, or as metadata only."""

    def event(self, type: str, record: Record, shared: Event | None) -> WatchFrame: ...

    def bookmark(self, obj: Obj) -> WatchFrame: ...


class Stream:
    """A watch stream. Iterate it for frames, or take them in batches, which suits a socket."""

    def __init__(
        self,
        parts: Parts,
        resource: ServedResource,
        collection: Collection,
        selection: Selection,
        encoding: Encoding,
        options: ListOptions,
    ) -> None:
        self._parts = parts
        self._resource = resource
        self._selection = selection
        self._encoding = encoding
        self._bookmarks = options.bookmarks
        self._ended = False
        self._first: list[WatchFrame] = []
        self._after = 0
        now = parts.clock.monotonic()
        timeout = options.timeout_s or int(MIN_TIMEOUT_S * (1 + parts.chance.random()))
        self._deadline = now + timeout
        self._next_bookmark = now + BOOKMARK_S
        self._watcher: Watcher | None = None
        try:
            self._open(collection, options)
        except TooOld as error:
            self._fail(expired(str(error)))

    def _open(self, collection: Collection, options: ListOptions) -> None:
        asked = revision_of(options.version)
        if options.initial_events or (options.initial_events is None and asked == 0):
            if asked > self._parts.store.revision:
                raise too_large(asked, self._parts.store.revision)
            records: Iterator[Record] = iter(collection.scan(self._selection.namespace))
            if self._selection.selects:
                records = filter(self._selection.matches, records)
            self._first = [self._encoding.event("ADDED", record, None) for record in records]
            if options.initial_events and options.bookmarks:
                self._first.append(self._encoding.bookmark(self._bookmark({INITIAL_END: "true"})))
            self._watcher = collection.subscribe()
        elif asked == 0:
            self._watcher = collection.subscribe()
        else:
            self._watcher = collection.subscribe(asked)
            self._after = asked

    def _bookmark(self, annotations: dict[str, str] | None = None) -> Obj:
        metadata: Obj = {"resourceVersion": str(self._parts.store.revision)}
        if annotations:
            metadata["annotations"] = annotations
        return {"kind": self._resource.kind, "apiVersion": self._resource.api_version, "metadata": metadata}

    def _fail(self, refusal: Refusal) -> None:
        self._first.append(WatchFrame("ERROR", PlainBody(refusal.status())))
        self._ended = True

    async def batch(self) -> list[WatchFrame]:
        """Return all frames that are ready, waiting for the first one; an empty list ends the stream."""
        if self._first:
            frames, self._first = self._first, []
            return frames
        watcher = self._watcher
        while not self._ended and watcher is not None:
            events = watcher.pending()
            if events is None:
                self.close_now()
                return [WatchFrame("ERROR", PlainBody(expired("too old resource version").status()))]
            frames = [frame for event in events for frame in self._seen(event)]
            if frames:
                return frames
            if events:
                continue
            now = self._parts.clock.monotonic()
            if now >= self._deadline:
                break
            due = min(self._deadline, self._next_bookmark) if self._bookmarks else self._deadline
            if now >= due:
                self._next_bookmark = now + BOOKMARK_S
                return [self._encoding.bookmark(self._bookmark())]
            await watcher.wait(due - now)
            if watcher.closed:
                break
        self.close_now()
        return []

    def _seen(self, event: Event) -> Iterator[WatchFrame]:
        """Yield the frames of an event under this watch's selection: an object may enter or leave what it selects."""
        record = event.record
        if record.revision <= self._after:
            return
        selection = self._selection
        if selection.namespace and record.namespace != selection.namespace:
            return
        if not selection.selects:
            yield self._encoding.event(event.type, record, event)
            return
        now = event.type != "DELETED" and selection.matches(record)
        before = event.previous is not None and selection.matches(event.previous)
        if now:
            if before or event.type == "ADDED":
                yield self._encoding.event(event.type, record, event)
            else:
                yield self._encoding.event("ADDED", record, None)
        elif before:
            gone = record if event.type == "DELETED" else _departed(event)
            yield self._encoding.event("DELETED", gone, None)

    async def __aiter__(self) -> AsyncIterator[WatchFrame]:
        while frames := await self.batch():
            for frame in frames:
                yield frame

    def close_now(self) -> None:
        self._ended = True
        if self._watcher is not None:
            self._watcher.close()

    async def close(self) -> None:
        self.close_now()


def _departed(event: Event) -> Record:
    """Return an object that no longer matches as it last did, at the revision of the change."""
    previous = event.previous
    assert previous is not None, "only an object that was there can leave"
    obj = dict(previous.plain())
    obj["metadata"] = {**obj["metadata"], "resourceVersion": str(event.revision)}

    record = Record(previous.namespace, previous.name, event.revision, msgspec.json.encode(obj))
    record.warm(obj)
    return record


def open_watch(call: Call, parts: Parts, options: ListOptions, encoding: Encoding) -> Stream:
    """Open a watch. Raises StatusError for invalid options; an old revision is reported inside the stream, as
    in Kubernetes.
    """
    fields = options.fields
    if call.name:  # the old /watch/ path of one object
        fields = ",".join(filter(None, (fields, f"metadata.name={call.name}")))
    selection = selection_of(call.resource, call.namespace, options.labels, fields)
    return Stream(parts, call.resource, call.collection(parts), selection, encoding, options)
