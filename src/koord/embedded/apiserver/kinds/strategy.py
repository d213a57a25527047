"""This module defines what differs between kinds on the server: defaults, validation, immutable fields.

A KindStrategy is a record of pure functions over plain dicts. The REST layer works on a private deep copy,
so `default`, `prepare_create` and `prepare_update` change their first argument in place; validators only
read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koord.embedded.apiserver.refusal import FieldError

Obj = dict[str, Any]


def _nothing(_: Obj) -> None:
    return None


def _nothing_update(_new: Obj, _old: Obj) -> None:
    return None


def _valid(_: Obj) -> list[FieldError]:
    return []


def _valid_update(_new: Obj, _old: Obj) -> list[FieldError]:
    return []


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    default: Callable[[Obj], None] = _nothing  # as the versioned type's SetDefaults do, on every write
    prepare_create: Callable[[Obj], None] = _nothing  # drop what a creator may not set (status), set first generation
    prepare_update: Callable[[Obj, Obj], None] = (
        _nothing_update  # (new, old): keep status, bump generation on spec change
    )
    prepare_status: Callable[[Obj, Obj], None] = _nothing_update  # (new, old): only status may differ
    validate_create: Callable[[Obj], list[FieldError]] = _valid
    validate_update: Callable[[Obj, Obj], list[FieldError]] = _valid_update
    validate_status: Callable[[Obj, Obj], list[FieldError]] = _valid_update
    # Field selectors beyond metadata.name and metadata.namespace: selector name -> value as text.
    fields: Mapping[str, Callable[[Obj], str]] = {}
    creates_on_update: bool = False  # PUT of a missing object creates it (leases, events, ...)
