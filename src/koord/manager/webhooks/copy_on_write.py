"""Copy-on-write changes to plain objects: what is written is copied first, the rest is shared."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from koord.api.model import without_nulls
from koord.manager.webhooks.admission import AdmissionAllowed

PlainObject = dict[str, Any]
T = TypeVar("T")


def decode_object(obj: PlainObject, model: type[T]) -> tuple[PlainObject, T]:
    """Return the object to work on, and its typed model. Raise msgspec.ValidationError.

    Nulls where work expects maps and lists are removed.
    """
    try:
        return obj, msgspec.convert(obj, model, str_keys=True)
    except msgspec.ValidationError:
        plain: PlainObject = without_nulls(obj)
        return plain, msgspec.convert(plain, model, str_keys=True)


def writable(parent: PlainObject, *path: str) -> PlainObject:
    """Return a writable copy of the object at the path below a writable parent; create it when it is missing."""
    for key in path:
        child = dict(parent.get(key) or {})
        parent[key] = child
        parent = child
    return parent


def readable(obj: PlainObject, *path: str) -> PlainObject:
    """Return the object at the path for reading; empty when it is missing."""
    for key in path:
        obj = obj.get(key) or {}
    return obj


def allow_with_changes(before: PlainObject, after: PlainObject) -> AdmissionAllowed:
    return AdmissionAllowed(None if after == before else after)
