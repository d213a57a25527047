"""Changing a plain object without touching the one that was sent: what is written is copied first, the rest shared."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from koord.api.model import without_nulls
from koord.manager.webhooks.verdict import Allowed

Obj = dict[str, Any]
T = TypeVar("T")


def read(obj: Obj, model: type[T]) -> tuple[Obj, T]:
    """The object to work on, and a typed look at it. Raises msgspec.ValidationError.

    Nulls mean nothing, but they would stand where work expects maps and lists: an object with such nulls loses them.
    """
    try:
        return obj, msgspec.convert(obj, model, str_keys=True)
    except msgspec.ValidationError:
        plain: Obj = without_nulls(obj)
        return plain, msgspec.convert(plain, model, str_keys=True)


def owned(parent: Obj, *path: str) -> Obj:
    """The object at the path below a parent that is ours, now ours as well; made when it is missing."""
    for key in path:
        child = dict(parent.get(key) or {})
        parent[key] = child
        parent = child
    return parent


def part(obj: Obj, *path: str) -> Obj:
    """The object at the path for reading; empty when it is missing."""
    for key in path:
        obj = obj.get(key) or {}
    return obj


def verdict(before: Obj, after: Obj) -> Allowed:
    return Allowed(None if after == before else after)
