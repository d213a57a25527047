"""Objects as a real API server returned them, without managedFields."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, TypeVar

from koord.api.model import decode

T = TypeVar("T")

OBJECTS = Path(__file__).parent / "objects.json"


@functools.cache
def _text() -> str:
    return OBJECTS.read_text()


def raw(name: str) -> dict[str, Any]:
    """A fresh copy each time, free to be changed."""
    obj: dict[str, Any] = json.loads(_text())[name]
    return obj


def names() -> list[str]:
    return list(json.loads(_text()))


def read(name: str, model: type[T]) -> T:
    return decode(json.dumps(raw(name)).encode(), model)
