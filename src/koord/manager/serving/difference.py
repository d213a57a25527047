"""The webhook handlers: admission functions joined to the caches that they read, and the JSON patch of their
results.
"""

from __future__ import annotations

from typing import Any

Operation = dict[str, Any]


def difference(old: Any, new: Any) -> list[Operation]:
    """Return the JSON patch (RFC 6902) from one object to another; empty when both are equal.

    Lists of another length are replaced whole: their elements have no identity.
    """
    found: list[Operation] = []
    _walk(old, new, "", found)
    return found


def _walk(old: Any, new: Any, path: str, found: list[Operation]) -> None:
    if isinstance(old, dict) and isinstance(new, dict):
        found += [{"op": "remove", "path": _under(path, key)} for key in old if key not in new]
        for key, value in new.items():
            if key in old:
                _walk(old[key], value, _under(path, key), found)
            else:
                found.append({"op": "add", "path": _under(path, key), "value": value})
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            _walk(before, after, f"{path}/{number}", found)
    elif type(old) is not type(new) or old != new:  # True equals 1 in Python but not on the wire
        found.append({"op": "replace", "path": path, "value": new})


def _under(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"
