"""These functions keep metadata.generation: it is 1 at creation and grows when the desired state changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Obj = dict[str, Any]


def begin(obj: Obj) -> None:
    obj["metadata"]["generation"] = 1


def bump_on(*keys: str) -> Callable[[Obj, Obj], None]:
    def prepare(new: Obj, old: Obj) -> None:
        if any(new.get(key) != old.get(key) for key in keys):
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1

    return prepare
