"""This module decodes an open watch: typed events out of a transport's frames. Resuming it is the reflector's
work.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Generic, TypeVar

import msgspec

from koord.api.meta import Object
from koord.kube.refused import Refused, from_frame, undecodable
from koord.kube.transport import UNREADABLE, Body, Frame, WatchStream

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
    body: Body
    resource_version: str = ""  # where to resume after this event; empty for ERROR
    initial_end: bool = False  # the bookmark that ends the initial events of a streaming list
    status: Refused | None = None


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
            yield event(frame, model)

    async def close(self) -> None:
        await self._stream.close()

    async def __aenter__(self) -> Watch[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class PlainEvent(msgspec.Struct, frozen=True, kw_only=True):
    """DynamicWatchEvent is one change as dicts. `object` is the Status of an ERROR."""

    type: str
    object: dict[str, Any]
    status: Refused | None = None


class PlainWatch:
    """DynamicWatch is a watch whose objects stay dicts and lists."""

    def __init__(self, stream: WatchStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[PlainEvent]:
        async for frame in self._stream:
            status = from_frame(frame.body) if frame.type == ERROR else None
            yield PlainEvent(type=frame.type, object=frame.body.plain(), status=status)

    async def close(self) -> None:
        await self._stream.close()

    async def __aenter__(self) -> PlainWatch:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def event(frame: Frame, model: type[T]) -> WatchEvent[T]:
    kind, body = frame.type, frame.body
    if kind == ERROR:
        return WatchEvent(type=kind, object=None, body=body, status=from_frame(body))
    try:
        if kind == BOOKMARK:
            return _bookmark(body)
        obj = body.typed(model)
    except msgspec.ValidationError as misfit:
        return _misfit(kind, body, model, misfit)
    except UNREADABLE as broken:
        return _broken(body, str(broken))
    return WatchEvent(type=kind, object=obj, body=body, resource_version=obj.metadata.resource_version)


def _bookmark(body: Body) -> WatchEvent[T]:
    """Decode a bookmark: an object of nothing but metadata, which a model with required fields could not hold."""
    metadata = body.typed(Object).metadata
    return WatchEvent(
        type=BOOKMARK,
        object=None,
        body=body,
        resource_version=metadata.resource_version,
        initial_end=metadata.annotations.get(INITIAL_EVENTS_END) == "true",
    )


def _misfit(kind: str, body: Body, model: type[T], misfit: msgspec.ValidationError) -> WatchEvent[T]:
    try:
        metadata = body.typed(Object).metadata
    except UNREADABLE as nameless:  # not even its name can be read: nobody could say what changed
        return _broken(body, str(nameless))
    who = f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name
    return WatchEvent(
        type=kind,
        object=None,
        body=body,
        resource_version=metadata.resource_version,
        status=undecodable(f"{who} does not fit {model.__name__}: {misfit}"),
    )


def _broken(body: Body, why: str) -> WatchEvent[T]:
    return WatchEvent(
        type=ERROR, object=None, body=body, status=undecodable(f"an event of the watch stream cannot be read: {why}")
    )
