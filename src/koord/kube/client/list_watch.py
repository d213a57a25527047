"""This module decodes lists and watches. A list follows continue tokens and reports by name the objects that do not fit
their model; a watch turns a transport's frames into typed events. Resuming a watch is the reflector's work.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from typing import Any, Generic, TypeVar

import msgspec

from koord.api.kubernetes.meta import Object
from koord.api.model import Model, convert, decode
from koord.kube.client import request_builder
from koord.kube.client.retrying_caller import RetryingCaller
from koord.kube.transport.api_error import ApiError, error_from_response, error_from_watch_frame, undecodable_error
from koord.kube.transport.interface import DECODE_ERRORS, ApiRequest, ResponseBody, WatchFrame, WatchStream
from koord.values.json_text import TOO_DEEP, without_deep_values

T = TypeVar("T")
O = TypeVar("O", bound=Object)  # noqa: E741


class ListMeta(Model, frozen=True, kw_only=True):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")
    remaining_item_count: int | None = None


class ListPage(Model, Generic[T], frozen=True, kw_only=True):
    metadata: ListMeta = ListMeta()
    items: tuple[T, ...] = ()


class UndecodableObject(msgspec.Struct, frozen=True, kw_only=True):
    """UndecodableObject names an object that the server has and that its model cannot hold."""

    namespace: str
    name: str
    uid: str
    why: str


class Listing(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """Listing holds everything a list found, at one resource version. One bad object does not hide the others: see
    `undecodable`.
    """

    items: tuple[T, ...]
    resource_version: str
    undecodable: tuple[UndecodableObject, ...] = ()


@functools.cache
def list_page_type(model: type[Any]) -> Any:
    """Return the decoder's type for a list of `model`, cached: building it is slower than decoding a small list."""
    return ListPage[model]  # type: ignore[valid-type]


def decode_typed_page(body: ResponseBody, model: type[O]) -> tuple[ListPage[O], list[UndecodableObject]]:
    try:
        page: ListPage[O] = body.typed(list_page_type(model))
    except msgspec.ValidationError:
        return _decode_item_by_item(body, model)
    return page, []


def _decode_item_by_item(body: ResponseBody, model: type[O]) -> tuple[ListPage[O], list[UndecodableObject]]:
    """Decode item by item, after the fast path met an object that does not fit."""
    too_deep = False
    try:
        plain = convert(body.plain(), ListPage[Any])
    except msgspec.ValidationError:  # one of them is nested too deeply for any decoder
        plain, too_deep = convert(msgspec.json.decode(without_deep_values(body.raw())), ListPage[Any]), True
    items: list[O] = []
    undecodable: list[UndecodableObject] = []
    for item in plain.items:
        try:
            if too_deep and TOO_DEEP in str(item):
                raise msgspec.ValidationError("it is nested too deeply")
            items.append(convert(item, model))
        except msgspec.ValidationError as misfit:
            metadata = convert(item, Object).metadata
            undecodable.append(
                UndecodableObject(namespace=metadata.namespace, name=metadata.name, uid=metadata.uid, why=str(misfit))
            )
    return ListPage(metadata=plain.metadata, items=tuple(items)), undecodable


def decode_unstructured_page(body: ResponseBody) -> tuple[ListPage[dict[str, Any]], list[UndecodableObject]]:
    return convert(body.plain(), ListPage[Any]), []


PageDecoder = Callable[[ResponseBody], tuple[ListPage[T], list[UndecodableObject]]]


async def list_all_pages(caller: RetryingCaller, first: ApiRequest, read: PageDecoder[T]) -> Listing[T] | ApiError:
    """List all pages. A token that expires on the way restarts the list once, in one page without token."""
    request, restarted = first, False
    items: list[T] = []
    undecodable: list[UndecodableObject] = []
    while True:
        answer = await caller.send(request)
        if not answer.ok:
            refused = error_from_response(answer)
            if refused.expired and "continue" in request.query and not restarted:
                request, restarted = request_builder.without_limit(first), True
                items, undecodable = [], []
                continue
            return refused
        page, unfit = read(answer.body)
        items.extend(page.items)
        undecodable.extend(unfit)
        if not page.metadata.continue_:
            version = page.metadata.resource_version
            return Listing(items=tuple(items), resource_version=version, undecodable=tuple(undecodable))
        request = request_builder.next_page(first, page.metadata.continue_)


ADDED = "ADDED"
MODIFIED = "MODIFIED"
DELETED = "DELETED"
BOOKMARK = "BOOKMARK"
ERROR = "ERROR"

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class WatchEvent(msgspec.Struct, Generic[O], frozen=True, kw_only=True):
    """WatchEvent is one change.

    `object` is None for a BOOKMARK, an ERROR, and an object that its model cannot hold (`status.undecodable`;
    the watch goes on). `status` says what is wrong in the last two cases.
    """

    type: str
    object: O | None
    body: ResponseBody
    resource_version: str = ""  # where to resume after this event; empty for ERROR
    initial_end: bool = False  # the bookmark that ends the initial events of a streaming list
    status: ApiError | None = None


class Watch(Generic[O]):
    """Watch is iterated for events. The end of iteration is the stream's normal end; Unreachable is a cut stream."""

    def __init__(self, stream: WatchStream, model: type[O]) -> None:
        self._stream = stream
        self._model = model

    async def __aiter__(self) -> AsyncIterator[WatchEvent[O]]:
        model = self._model
        async for frame in self._stream:
            yield decode_event(frame, model)

    async def close(self) -> None:
        await self._stream.close()

    async def __aenter__(self) -> Watch[O]:
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


def decode_event(frame: WatchFrame, model: type[O]) -> WatchEvent[O]:
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


def _bookmark_event(body: ResponseBody) -> WatchEvent[O]:
    """Decode a bookmark: an object of nothing but metadata, which a model with required fields could not hold."""
    metadata = body.typed(Object).metadata
    return WatchEvent(
        type=BOOKMARK,
        object=None,
        body=body,
        resource_version=metadata.resource_version,
        initial_end=metadata.annotations.get(INITIAL_EVENTS_END) == "true",
    )


def _undecodable_event(kind: str, body: ResponseBody, model: type[O], misfit: msgspec.ValidationError) -> WatchEvent[O]:
    try:
        metadata = decode(without_deep_values(body.raw()), Object).metadata
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


def _error_event(body: ResponseBody, why: str) -> WatchEvent[O]:
    return WatchEvent(
        type=ERROR,
        object=None,
        body=body,
        status=undecodable_error(f"an event of the watch stream cannot be read: {why}"),
    )
