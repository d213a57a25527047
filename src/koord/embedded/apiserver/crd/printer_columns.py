"""This module compiles the printer columns of a CRD: their definitions, and the cell for an object."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import msgspec

from koord.embedded.apiserver.catalog import PrinterColumn
from koord.embedded.apiserver.crd import jsonpath
from koord.embedded.apiserver.printing.table_columns import age_since
from koord.embedded.apiserver.schema.builtin_decoding import is_number
from koord.values import timestamp

Obj = dict[str, Any]

_AGE_COLUMN = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def printer_columns(stated: Sequence[Obj]) -> tuple[PrinterColumn, ...]:
    """Return the columns after Name; a CRD that defines none gets Age."""
    return tuple(_column(column) for column in stated or (_AGE_COLUMN,))


def _column(stated: Obj) -> PrinterColumn:
    heading = {
        "name": stated["name"],
        "type": stated["type"],
        "format": stated.get("format", ""),
        "description": stated.get("description")
        or f"Custom resource definition column (in JSONPath format): {stated['jsonPath']}",
        "priority": stated.get("priority", 0),
    }
    try:
        path = jsonpath.parse_jsonpath(stated["jsonPath"])
    except jsonpath.JsonPathError:
        path = None
    if path is None or stated["jsonPath"] == ".":
        # The server takes any text that starts with a dot; one that leads nowhere is an empty column.
        return PrinterColumn(heading, lambda _obj, _now: None)
    return PrinterColumn(heading, functools.partial(_cell, path, stated["type"]))


def _cell(path: jsonpath.JsonPath, kind: str, obj: Obj, now: float) -> Any:
    found = path.find(obj)
    if not found:
        return None
    value = found[0]
    match kind:
        case "string":
            return _text_cell(value)
        case "integer":
            return int(value) if is_number(value) else None
        case "number":
            return value if is_number(value) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case "date" if isinstance(value, str):
            return _age_cell(value, now)
    return None


def _text_cell(value: Any) -> str:
    if value is None:
        return "<no value>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float):
        return str(value)
    # Go's encoder keeps these three out of HTML.
    text = msgspec.json.encode(value, order="sorted").decode()
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _age_cell(value: str, now: float) -> str:
    if value in ("", "null"):
        return "<unknown>"
    try:
        return age_since(timestamp.text(timestamp.parse(value)), now)
    except ValueError:
        return "<invalid>"
