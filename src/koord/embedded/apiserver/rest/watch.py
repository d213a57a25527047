"""Serve a watch: the events of one collection as one client asked to see them, with bookmarks, until its timeout.

The encoding decides the form of an event. The bytes of an unfiltered event are shared by all its watchers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Protocol

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import StatusError, expired
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.rest.listing import SelectionPredicate, parse_selection
from koord.embedded.apiserver.rest.options import ListOptions, parse_resource_version, resource_version_too_large
from koord.embedded.apiserver.rest.request_context import RequestContext, ServerDeps
from koord.embedded.apiserver.store.collection import (
    EventCursor,
    ResourceCollection,
    RevisionTooOldError,
    StoreEvent,
    StoreRecord,
    watch_line,
)
from koord.kube.transport.interface import ResponseBody, UnstructuredBody

BOOKMARK_PERIOD_S = 60.0
MIN_TIMEOUT_S = 1800  # without timeoutSeconds a watch lasts between this and twice this
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class ServerWatchFrame:
    """One watch event. `line` returns its bytes on an HTTP stream, shared with the store when it has them."""

    __slots__ = ("_line", "body", "type")

    def __init__(self, type: str, body: ResponseBody, line: bytes | None = None) -> None:
        self.type = type
        self.body = body
        self._line = line

    def line(self) -> bytes:
        return self._line if self._line is not None else watch_line(self.type, self.body.raw())


class WatchEncoding(Protocol):
    """Encodes records as watch frames: as themselves, as Tables, or as metadata only."""

    def event(self, type: str, record: StoreRecord, shared: StoreEvent | None) -> ServerWatchFrame: ...

    def bookmark(self, obj: Obj) -> ServerWatchFrame: ...


class ServerWatchStream:
    """A watch stream. Iterate it for frames, or take them in batches, which suits a socket."""

    def __init__(
        self,
        deps: ServerDeps,
        resource: ServedResource,
        collection: ResourceCollection,
        selection: SelectionPredicate,
        encoding: WatchEncoding,
        options: ListOptions,
    ) -> None:
        self._deps = deps
        self._resource = resource
        self._selection = selection
        self._encoding = encoding
        self._bookmarks = options.bookmarks
        self._ended = False
        self._initial_frames: list[ServerWatchFrame] = []
        self._after = 0
        now = deps.clock.monotonic()
        timeout = options.timeout_s or int(MIN_TIMEOUT_S * (1 + deps.chance.random()))
        self._deadline = now + timeout
        self._next_bookmark = now + BOOKMARK_PERIOD_S
        self._watcher: EventCursor | None = None
        try:
            self._open(collection, options)
        except RevisionTooOldError as error:
            self._fail(expired(str(error)))

    def _open(self, collection: ResourceCollection, options: ListOptions) -> None:
        asked = parse_resource_version(options.resource_version)
        if options.send_initial_events or (options.send_initial_events is None and asked == 0):
            if asked > self._deps.store.revision:
                raise resource_version_too_large(asked, self._deps.store.revision)
            records: Iterator[StoreRecord] = iter(collection.scan(self._selection.namespace))
            if self._selection.filters:
                records = filter(self._selection.matches, records)
            self._initial_frames = [self._encoding.event("ADDED", record, None) for record in records]
            if options.send_initial_events and options.bookmarks:
                self._initial_frames.append(self._encoding.bookmark(self._bookmark({INITIAL_EVENTS_END: "true"})))
            self._watcher = collection.subscribe()
        elif asked == 0:
            self._watcher = collection.subscribe()
        else:
            self._watcher = collection.subscribe(asked)
            self._after = asked

    def _bookmark(self, annotations: dict[str, str] | None = None) -> Obj:
        metadata: Obj = {"resourceVersion": str(self._deps.store.revision)}
        if annotations:
            metadata["annotations"] = annotations
        return {"kind": self._resource.kind, "apiVersion": self._resource.api_version, "metadata": metadata}

    def _fail(self, refusal: StatusError) -> None:
        self._initial_frames.append(ServerWatchFrame("ERROR", UnstructuredBody(refusal.status())))
        self._ended = True

    async def next_batch(self) -> list[ServerWatchFrame]:
        """Return all frames that are ready, waiting for the first one; an empty list ends the stream."""
        if self._initial_frames:
            frames, self._initial_frames = self._initial_frames, []
            return frames
        watcher = self._watcher
        while not self._ended and watcher is not None:
            events = watcher.pending()
            if events is None:
                self.close_now()
                return [ServerWatchFrame("ERROR", UnstructuredBody(expired("too old resource version").status()))]
            frames = [frame for event in events for frame in self._frames_of(event)]
            if frames:
                return frames
            if events:
                continue
            now = self._deps.clock.monotonic()
            if now >= self._deadline:
                break
            due = min(self._deadline, self._next_bookmark) if self._bookmarks else self._deadline
            if now >= due:
                self._next_bookmark = now + BOOKMARK_PERIOD_S
                return [self._encoding.bookmark(self._bookmark())]
            await watcher.wait(due - now)
            if watcher.closed:
                break
        self.close_now()
        return []

    def _frames_of(self, event: StoreEvent) -> Iterator[ServerWatchFrame]:
        """Yield the frames of an event under this watch's selection: an object may enter or leave what it selects."""
        record = event.record
        if record.revision <= self._after:
            return
        selection = self._selection
        if selection.namespace and record.namespace != selection.namespace:
            return
        if not selection.filters:
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
            gone = record if event.type == "DELETED" else _record_leaving_selection(event)
            yield self._encoding.event("DELETED", gone, None)

    async def __aiter__(self) -> AsyncIterator[ServerWatchFrame]:
        while frames := await self.next_batch():
            for frame in frames:
                yield frame

    def close_now(self) -> None:
        self._ended = True
        if self._watcher is not None:
            self._watcher.close()

    async def close(self) -> None:
        self.close_now()


def _record_leaving_selection(event: StoreEvent) -> StoreRecord:
    """Return an object that no longer matches as it last did, at the revision of the change."""
    previous = event.previous
    assert previous is not None, "only an object that was there can leave"
    obj = dict(previous.plain())
    obj["metadata"] = {**obj["metadata"], "resourceVersion": str(event.revision)}

    record = StoreRecord(previous.namespace, previous.name, event.revision, msgspec.json.encode(obj))
    record.keep_decoded(obj)
    return record


def open_watch(
    context: RequestContext, deps: ServerDeps, options: ListOptions, encoding: WatchEncoding
) -> ServerWatchStream:
    """Open a watch. Raises StatusError for invalid options; an old revision is reported inside the stream."""
    fields = options.field_selector
    if context.name:  # the old /watch/ path of one object
        fields = ",".join(filter(None, (fields, f"metadata.name={context.name}")))
    selection = parse_selection(context.resource, context.namespace, options.label_selector, fields)
    return ServerWatchStream(deps, context.resource, context.collection(deps), selection, encoding, options)
