"""This module defines the table of a kind: its columns and its row function, with cell helpers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from koord.embedded.apiserver.kinds.validators import format_selector

Obj = dict[str, Any]
Column = dict[str, Any]
RowFunction = Callable[[Obj, float], Sequence[Any]]

NONE = "<none>"
UNSET = "<unset>"
UNKNOWN = "<unknown>"


class KindTable(msgspec.Struct, frozen=True):
    """A KindTable holds the columns of a kind and its row function."""

    columns: tuple[Column, ...]
    row: RowFunction  # (object, now) -> one cell for each column


def column_definitions(*stated: str) -> tuple[Column, ...]:
    """Build column definitions from texts: `Name`, `Age`, `Desired:integer`; a final `!` means wide tables only."""
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


def kind_table(row: RowFunction, *stated: str) -> KindTable:
    return KindTable(column_definitions(*stated), row)


def spec(obj: Obj) -> Obj:
    return obj.get("spec") or {}


def status(obj: Obj) -> Obj:
    return obj.get("status") or {}


def name(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


def age_cell(obj: Obj, now: float) -> str:
    """Return the age of an object."""
    return age_since(obj["metadata"].get("creationTimestamp"), now)


def age_since(stamp: str | None, now: float) -> str:
    """Return the time since a timestamp as kubectl shows it."""
    if not stamp:
        return UNKNOWN
    return human_duration(now - datetime.fromisoformat(stamp).timestamp())


def human_duration(length: float) -> str:
    """Format a duration as kubectl does, with two units while the second still matters. It is never negative."""
    seconds = int(length)
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    if seconds < 120:
        return f"{seconds}s"
    minutes, s = divmod(seconds, 60)
    if minutes < 10:
        return f"{minutes}m{s}s" if s else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours, m = divmod(minutes, 60)
    if hours < 8:
        return f"{hours}h{m}m" if m else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days, h = divmod(hours, 24)
    if hours < 192:
        return f"{days}d{h}h" if h else f"{days}d"
    if days < 365 * 2:
        return f"{days}d"
    years, d = divmod(days, 365)
    return f"{years}y{d}d" if years < 8 and d else f"{years}y"


def is_terminating(obj: Obj) -> bool:
    return "deletionTimestamp" in obj["metadata"]


def labels_text(labels: Mapping[str, str] | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or NONE


def selector_cell(stated: Any) -> str:
    """Format a label selector, or a plain map of labels, in the form that commands accept."""
    return format_selector(stated) if stated else NONE


def first_few(items: Sequence[str], most: int = 3, empty: str = NONE) -> str:
    """Join the first items, and say how many more there are."""
    if not items:
        return empty
    shown = ",".join(items[:most])
    return f"{shown} + {len(items) - most} more..." if len(items) > most else shown


def container_cells(template: Obj | None) -> tuple[str, str]:
    """Return the names and the images of a pod template's containers, for wide tables."""
    found = ((template or {}).get("spec") or {}).get("containers") or ()
    return ",".join(c["name"] for c in found), ",".join(c.get("image", "") for c in found)


def joined(items: Iterable[str], empty: str = "") -> str:
    return ",".join(items) or empty
