"""This module reads fields of objects that may hold anything: a value of another type counts as absent."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from koord.api.model import Obj

_LARGEST = 1e12  # a count or a number of seconds beyond this is nonsense, and would overflow a date


def field(obj: Any, *path: str) -> Any:
    """Return the value at a path of keys, or None."""
    for key in path:
        if not isinstance(obj, dict):
            return None
        obj = obj.get(key)
    return obj


def text(obj: Any, *path: str) -> str:
    found = field(obj, *path)
    return found if isinstance(found, str) else ""


def mapping(obj: Any, *path: str) -> Obj:
    found = field(obj, *path)
    return found if isinstance(found, dict) else {}


def entries(obj: Any, *path: str) -> list[Obj]:
    """Return the maps of a list."""
    found = field(obj, *path)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def texts(obj: Any, *path: str) -> list[str]:
    """Return the texts of a list."""
    found = field(obj, *path)
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def number(obj: Any, *path: str) -> float | None:
    found = field(obj, *path)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    if isinstance(found, float) and not math.isfinite(found):
        return None
    return float(found) if -_LARGEST < found < _LARGEST else None


def moment(obj: Any, *path: str) -> datetime | None:
    """Return a time of RFC 3339, or None."""
    try:
        found = datetime.fromisoformat(text(obj, *path))
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def name_of(obj: Obj) -> str:
    return text(obj, "metadata", "name")


def namespace_of(obj: Obj) -> str:
    return text(obj, "metadata", "namespace")


def labels_of(obj: Obj) -> Obj:
    return mapping(obj, "metadata", "labels")
