"""This module lists objects: it decodes pages, follows continue tokens, and reports by name the objects that
do not fit their model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import msgspec

from koord.api.kubernetes.meta import Object
from koord.api.model import Model, convert
from koord.kube.client import request_builder
from koord.kube.client.retrying_caller import RetryingCaller
from koord.kube.transport.api_error import ApiError, error_from_response
from koord.kube.transport.interface import ApiRequest, ResponseBody

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
    """Return the decoder's type for a list of `model`, cached because building it is slower than decoding a small
    list.
    """
    return ListPage[model]  # type: ignore[valid-type]


def decode_typed_page(body: ResponseBody, model: type[O]) -> tuple[ListPage[O], list[UndecodableObject]]:
    try:
        page: ListPage[O] = body.typed(list_page_type(model))
    except msgspec.ValidationError:
        return _decode_item_by_item(body, model)
    return page, []


def _decode_item_by_item(body: ResponseBody, model: type[O]) -> tuple[ListPage[O], list[UndecodableObject]]:
    """Decode item by item, after the fast path met an object that does not fit."""
    plain = convert(body.plain(), ListPage[Any])
    items: list[O] = []
    undecodable: list[UndecodableObject] = []
    for item in plain.items:
        try:
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
    """List all pages. A token that expires on the way restarts the list, once and in one page, which has no token
    to expire.
    """
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
