"""A private copy of a JSON value. Bodies and stored objects are shared: whoever wants to change one copies it first."""

from __future__ import annotations

from typing import Any


def clone(obj: dict[str, Any]) -> dict[str, Any]:
    """Scalars are tested for before the call: calling for each of them is what makes general copiers slow."""
    return {
        key: clone(value) if value.__class__ is dict else _items(value) if value.__class__ is list else value
        for key, value in obj.items()
    }


def _items(values: list[Any]) -> list[Any]:
    return [
        clone(value) if value.__class__ is dict else _items(value) if value.__class__ is list else value
        for value in values
    ]
