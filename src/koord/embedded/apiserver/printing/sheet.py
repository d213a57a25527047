"""This module defines the table of a kind: its columns, and its row function, with cell helpers.

The tables of the kinds are in the modules beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koord.embedded.apiserver.rest.printing import age
from koord.embedded.apiserver.rest.scaling import selector_text

Obj = dict[str, Any]
Column = dict[str, Any]
Row = Callable[[Obj, float], Sequence[Any]]

NONE = "<none>"
UNSET = "<unset>"
UNKNOWN = "<unknown>"


class Sheet(msgspec.Struct, frozen=True):
    """A KindTable holds the columns of a kind and its row function."""
    columns: tuple[Column, ...]
    row: Row  # (object, now) -> one cell for each column


def columns(*stated: str) -> tuple[Column, ...]:
    """Build column definitions from texts.

    `Name` is the name, `Age` a string, `Desired:integer` has another type; `!` at the end means wide tables
    only.
    """
    return tuple(_column(text) for text in stated)


def _column(text: str) -> Column:
    wide = text.endswith("!")
    name, _, kind = text.rstrip("!").partition(":")
    form = "name" if name == "Name" or kind == "name" else ""
    return {
        "name": name,
        "type": "string" if kind in ("", "name") else kind,
        "format": form,
        "description": "",
        "priority": 1 if wide else 0,
    }


def sheet(row: Row, *stated: str) -> Sheet:
    return Sheet(columns(*stated), row)


def spec(obj: Obj) -> Obj:
    return obj.get("spec") or {}


def status(obj: Obj) -> Obj:
    return obj.get("status") or {}


def name(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


def born(obj: Obj, now: float) -> str:
    """Return the age of an object."""
    return age(obj["metadata"].get("creationTimestamp") or "", now)


def since(stamp: str | None, now: float) -> str:
    return age(stamp or "", now)


def is_dying(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def labels_text(labels: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def selector(stated: Any) -> str:
    """Format a label selector, or a plain map of labels, in the form that commands accept."""
    return selector_text(stated) if stated else NONE


def few(items: Sequence[str], most: int = 3, empty: str = NONE) -> str:
    """Join the first items, and say how many more there are."""
    if not items:
        return empty
    shown = ",".join(items[:most])
    return f"{shown} + {len(items) - most} more..." if len(items) > most else shown


def containers(template: Obj | None) -> tuple[str, str]:
    """Return the names and the images of a pod template's containers, for wide tables."""
    found = ((template or {}).get("spec") or {}).get("containers") or ()
    return ",".join(c["name"] for c in found), ",".join(c.get("image", "") for c in found)


def joined(items: Iterable[str], empty: str = "") -> str:
    return ",".join(items) or empty
