"""This module overlays a more specific strategy on a more general one: what it does not state stays as it was.

This is what Koordinator does by writing the one as JSON and reading it onto the other, surprises included. Structs are
overlaid field by field, maps key by key with each value replaced whole. Elements of a list are overlaid on the old
element at the same index, so what they omit keeps the old value; an empty list states nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def overlay(old: S, new: msgspec.Struct) -> S:
    """Return `old` with everything that `new` states. Fields that only `new` has (a name, a selector) are ignored."""
    said = {name: getattr(new, name) for name, silent in _unset_values(type(old)) if getattr(new, name) != silent}
    if not said:
        return old
    return msgspec.structs.replace(old, **{name: _value(getattr(old, name), value) for name, value in said.items()})


def _value(old: Any, new: Any) -> Any:
    if isinstance(new, msgspec.Struct):
        return new if old is None else overlay(old, new)
    if isinstance(new, dict):
        return {**(old or {}), **new}
    if isinstance(new, tuple) and new and isinstance(new[0], msgspec.Struct):
        under = old or ()
        return tuple(overlay(under[i], item) if i < len(under) else item for i, item in enumerate(new))
    return new


@lru_cache(maxsize=256)
def _unset_values(tp: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    """Return each field with the value that states nothing. Fields that are never omitted always state something."""
    return tuple((f.name, f.default) for f in msgspec.structs.fields(tp))
