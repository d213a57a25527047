"""This module fills in defaults as Go programs do: of pointers that are nil, and of values that are zero."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def fill_none(given: S, **defaults: Any) -> S:
    """Return the struct with its fields that are None set to the defaults."""
    return msgspec.structs.replace(given, **{k: v for k, v in defaults.items() if getattr(given, k) is None})


def fill_empty(given: S, **defaults: Any) -> S:
    """Return the struct with its fields that are None, zero or empty set to the defaults."""
    return msgspec.structs.replace(given, **{k: v for k, v in defaults.items() if not getattr(given, k)})
