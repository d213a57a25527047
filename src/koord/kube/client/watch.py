"""This module decodes an open watch: typed events out of a transport's frames. Resuming it is the reflector's
work.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

import msgspec

from koord.api.kubernetes.meta import Object
from koord.kube.transport.api_error import ApiError, error_from_watch_frame, undecodable_error
from koord.kube.transport.interface import DECODE_ERRORS, ResponseBody, WatchFrame, WatchStream

T = TypeVar("T", bound=Object)

ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"
BOOKMARK = "BOOKMARK"
ERROR = "ERROR"

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class WatchEvent(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """WatchEvent is one change.

    `object` is None for a BOOKMARK, an ERROR, and an object that its model cannot hold (`status.undecodable`;
    the watch goes on). `status` says what is wrong in the last two cases.
    """

    type: str
    object: T | None
    body: ResponseBody
    resource_version: str = ""  # where to resume after this event; empty for ERROR
    initial_end: bool = False  # the bookmark that ends the initial events of a streaming list
    status: ApiError | None = None


class Watch(Generic[T]):
    """Watch is iterated for events. The end of iteration is the normal end of the stream; Unreachable means a cut
    stream.
    """

    def __init__(self, stream: WatchStream, model: type[T]) -> None:
        self._stream = stream
        self._model = model

    async def __aiter__(self) -> AsyncIterator[WatchEvent[T]]:
        model = self._model
        async for frame in self._stream:
            yield decode_event(frame, model)

    async def close(self) -> None:
        await self._stream.close()

    async def __aenter__(self) -> Watch[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class DynamicWatchEvent(msgspec.Struct, frozen=True, kw_only=True):
    """DynamicWatchEvent is one change as dicts. `object` is the Status of an ERROR."""

    type: str
    object: dict[str, Any]
    status: ApiError | None = None


class DynamicWatch:
    """DynamicWatch is a watch whose objects stay dicts and lists."""

    def __init__(self, stream: WatchStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[DynamicWatchEvent]:
        async for frame in self._stream:
            status = error_from_watch_frame(frame.body) if frame.type == ERROR else None
            yield DynamicWatchEvent(type=frame.type, object=frame.body.plain(), status=status)

    async def close(self) -> None:
        await self._stream.close()

    async def __aenter__(self) -> DynamicWatch:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def decode_event(frame: WatchFrame, model: type[T]) -> WatchEvent[T]:
    kind, body = frame.type, frame.body
    if kind == ERROR:
        return WatchEvent(type=kind, object=None, body=body, status=error_from_watch_frame(body))
    try:
        if kind == BOOKMARK:
            return _bookmark_event(body)
        obj = body.typed(model)
    except msgspec.ValidationError as misfit:
        return _undecodable_event(kind, body, model, misfit)
    except DECODE_ERRORS as broken:
        return _error_event(body, str(broken))
    return WatchEvent(type=kind, object=obj, body=body, resource_version=obj.metadata.resource_version)


def _bookmark_event(body: ResponseBody) -> WatchEvent[T]:
    """Decode a bookmark: an object of nothing but metadata, which a model with required fields could not hold."""
    metadata = body.typed(Object).metadata
    return WatchEvent(
        type=BOOKMARK,
        object=None,
        body=body,
        resource_version=metadata.resource_version,
        initial_end=metadata.annotations.get(INITIAL_EVENTS_END) == "true",
    )


def _undecodable_event(kind: str, body: ResponseBody, model: type[T], misfit: msgspec.ValidationError) -> WatchEvent[T]:
    try:
        metadata = body.typed(Object).metadata
    except DECODE_ERRORS as nameless:  # not even its name can be read: nobody could say what changed
        return _error_event(body, str(nameless))
    who = f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
    return WatchEvent(
        type=kind,
        object=None,
        body=body,
        resource_version=metadata.resource_version,
        status=undecodable_error(f"{who} does not fit {model.__name__}: {misfit}"),
    )


def _error_event(body: ResponseBody, why: str) -> WatchEvent[T]:
    return WatchEvent(
        type=ERROR,
        object=None,
        body=body,
        status=undecodable_error(f"an event of the watch stream cannot be read: {why}"),
    )
