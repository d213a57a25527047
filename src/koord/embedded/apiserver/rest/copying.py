"""Deep copies of JSON values."""

from __future__ import annotations

from typing import Any


def clone(obj: dict[str, Any]) -> dict[str, Any]:
    """Return a deep copy. Scalars are tested for before the recursive call, because calling for each of them
    is slow.
    """
    return {
        key: clone(value) if value.__class__ is dict else _items(value) if value.__class__ is list else value
        for key, value in obj.items()
    }


def _items(values: list[Any]) -> list[Any]:
    return [
        clone(value) if value.__class__ is dict else _items(value) if value.__class__ is list else value
        for value in values
    ]
