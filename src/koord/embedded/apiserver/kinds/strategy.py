"""This module defines what differs between kinds on the server: defaults, validation, immutable fields.

A KindStrategy is a record of pure functions over plain dicts. The REST layer works on a private deep copy, so
`default`, `prepare_create` and `prepare_update` change their first argument in place; validators only read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError


def _no_change(_: Obj) -> None:
    return None


def _no_update(_new: Obj, _old: Obj) -> None:
    return None


def _no_errors(_: Obj) -> list[ApiFieldError]:
    return []


def _no_update_errors(_new: Obj, _old: Obj) -> list[ApiFieldError]:
    return []


class KindStrategy(msgspec.Struct, frozen=True, kw_only=True):
    default: Callable[[Obj], None] = _no_change  # as the versioned type's SetDefaults do, on every write
    prepare_create: Callable[[Obj], None] = _no_change  # drop what a creator may not set (status), set first generation
    prepare_update: Callable[[Obj, Obj], None] = _no_update  # (new, old): keep status, bump generation on spec change
    prepare_status: Callable[[Obj, Obj], None] = _no_update  # (new, old): only status may differ
    validate_create: Callable[[Obj], list[ApiFieldError]] = _no_errors
    validate_update: Callable[[Obj, Obj], list[ApiFieldError]] = _no_update_errors
    validate_status: Callable[[Obj, Obj], list[ApiFieldError]] = _no_update_errors
    # (object, now): the object marked as deleted, the same one when it is marked already. None: the usual deletion.
    mark_for_deletion: Callable[[Obj, str], Obj] | None = None
    # Field selectors beyond metadata.name and metadata.namespace: selector name -> value as text.
    selectable_fields: Mapping[str, Callable[[Obj], str]] = {}
    creates_on_update: bool = False  # PUT of a missing object creates it (leases, events, ...)


def fill_absent(obj: Obj, **defaults: Any) -> None:
    """Set the fields that are absent or null, as Go defaults pointers."""
    for key, value in defaults.items():
        if obj.get(key) is None:
            obj[key] = value


def fill_empty(obj: Obj, **defaults: Any) -> None:
    """Set the fields that are absent, null or zero, as Go defaults values."""
    for key, value in defaults.items():
        if not obj.get(key):
            obj[key] = value


def copy_or_drop(into: Obj, source: Obj, key: str) -> None:
    """Give `into` the value that `source` has under `key`, or none where it has none."""
    if key in source:
        into[key] = source[key]
    else:
        into.pop(key, None)


def begin_generation(obj: Obj) -> None:
    obj["metadata"]["generation"] = 1


def bump_generation_on(*keys: str) -> Callable[[Obj, Obj], None]:
    def prepare(new: Obj, old: Obj) -> None:
        if any(new.get(key) != old.get(key) for key in keys):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    return prepare
