"""This module formats JSON values as Go's fmt does, because they end up inside messages that clients compare."""

from __future__ import annotations

import json
from typing import Any

from koord.values.go_format import quoted


def format_v(value: Any) -> str:
    """Format as %v: maps with sorted keys, strings bare."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return format_float(value)
    if isinstance(value, dict):
        return "map[" + " ".join(f"{k}:{format_v(value[k])}" for k in sorted(value)) + "]"
    return "[" + " ".join(format_v(item) for item in value) + "]"


def format_go_syntax(value: Any) -> str:
    """Format as %#v: the value as it would be written in Go source."""
    if value is None:
        return "interface {}(nil)"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return (
            "map[string]interface {}{"
            + ", ".join(f"{quoted(k)}:{format_go_syntax(value[k])}" for k in sorted(value))
            + "}"
        )
    if isinstance(value, list):
        return "[]interface {}{" + ", ".join(format_go_syntax(item) for item in value) + "}"
    return format_v(value)


def go_type_name(value: Any) -> str:
    """Return %T of a decoded JSON value."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int):
        return "int64"
    if isinstance(value, float):
        return "float64"
    return "map[string]interface {}" if isinstance(value, dict) else "[]interface {}"


def json_kind_name(value: Any) -> str:
    """Return the word that Go's decoder uses for a JSON value of the wrong type."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "number"
    return "object" if isinstance(value, dict) else "array"


def format_float(value: float) -> str:
    """Format a float as %v and Go's JSON do: shortest digits, no trailing `.0`, an exponent past 21 digits."""
    if value == int(value) and abs(value) < 1e21:
        return str(int(value))
    return json.dumps(value)
