"""Replace parts of an object by path, so that a path that the object no longer has is an error and not a lost value."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]


def replace(obj: Obj, path: str, value: Any) -> None:
    """Replace what is at `path` (fields and list positions, with slashes)."""
    parent, last = _parent(obj, path)
    if isinstance(parent, dict) and last not in parent:
        raise KeyError(f"{obj['kind']} {obj['metadata']['name']} has no {path}")
    parent[last] = value


def add(obj: Obj, path: str, value: Any) -> None:
    """Add a field that is not there."""
    parent, last = _parent(obj, path)
    if not isinstance(parent, dict) or last in parent:
        raise KeyError(f"{obj['kind']} {obj['metadata']['name']} has {path} already")
    parent[last] = value


def set_flag(container: Obj, flag: str, value: str) -> None:
    """Replace the value of one argument of a container."""
    args = container["args"]
    (place,) = [number for number, arg in enumerate(args) if arg.partition("=")[0] == flag]
    args[place] = f"{flag}={value}"


def _parent(obj: Obj, path: str) -> tuple[Any, Any]:
    *parts, last = path.split("/")
    here: Any = obj
    for part in parts:
        here = here[int(part)] if isinstance(here, list) else here[part]
    return here, int(last) if isinstance(here, list) else last
