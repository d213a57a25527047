"""This module lists objects: it decodes pages, follows continue tokens, and reports by name the objects that
do not fit their model.
"""

from __future__ import annotations

import functools
from typing import Any, Generic, TypeVar

import msgspec

from koord.api.meta import Object
from koord.api.model import Model, convert
from koord.kube.transport import Body

T = TypeVar("T")
O = TypeVar("O", bound=Object)  # noqa: E741


class ListMeta(Model, frozen=True, kw_only=True):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")
    remaining_item_count: int | None = None


class Page(Model, Generic[T], frozen=True, kw_only=True):
    metadata: ListMeta = ListMeta()
    items: tuple[T, ...] = ()


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
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
    misfits: tuple[Misfit, ...] = ()


@functools.cache
def page_of(model: type[Any]) -> Any:
    """Return the decoder's type for a list of `model`, cached because building it is slower than decoding a small
    list.
    """
    return Page[model]  # type: ignore[valid-type]


def typed_page(body: Body, model: type[O]) -> tuple[Page[O], list[Misfit]]:
    try:
        page: Page[O] = body.typed(page_of(model))
    except msgspec.ValidationError:
        return _salvaged(body, model)
    return page, []


def _salvaged(body: Body, model: type[O]) -> tuple[Page[O], list[Misfit]]:
    """Decode item by item, after the fast path met an object that does not fit."""
    plain = convert(body.plain(), Page[Any])
    items: list[O] = []
    misfits: list[Misfit] = []
    for item in plain.items:
        try:
            items.append(convert(item, model))
        except msgspec.ValidationError as misfit:
            metadata = convert(item, Object).metadata
            misfits.append(Misfit(namespace=metadata.namespace, name=metadata.name, uid=metadata.uid, why=str(misfit)))
    return Page(metadata=plain.metadata, items=tuple(items)), misfits


def plain_page(body: Body) -> tuple[Page[dict[str, Any]], list[Misfit]]:
    return convert(body.plain(), Page[Any]), []
