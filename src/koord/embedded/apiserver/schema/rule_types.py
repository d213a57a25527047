"""Values and fields of a schema as CEL sees them: numbers are doubles, dates are timestamps, and a field that the
schema does not have cannot be named.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from koord.cel.syntax import (
    Call,
    Comprehension,
    Conditional,
    Identifier,
    ListOf,
    Literal,
    MapOf,
    Node,
    Presence,
    Select,
)
from koord.embedded.apiserver.schema.schema_node import SchemaNode
from koord.values import duration, timestamp

# Fields of every object, which a schema need not name.
_OBJECT_FIELDS = ("apiVersion", "kind", "metadata")


def typed_value(value: Any, node: SchemaNode | None) -> Any:
    """Return a JSON value with the types that its schema gives it."""
    if node is None or value is None:
        return value
    if isinstance(value, dict):
        return {key: typed_value(item, node.fields.get(key, node.values)) for key, item in value.items()}
    if isinstance(value, list):
        return [typed_value(item, node.items) for item in value]
    if node.kind == "number" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if node.kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if node.kind == "string" and isinstance(value, str):
        return _typed_text(value, node.format)
    return value


def _typed_text(value: str, form: str) -> Any:
    """Return the text as its format says; as it is where it has another form, which validation reports."""
    try:
        if form in ("date-time", "date"):
            return timestamp.parse(value if form == "date-time" else f"{value}T00:00:00Z")
        if form == "duration":
            return timedelta(seconds=duration.parse_seconds(value))
        if form == "byte":
            return base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error):
        return value
    return value


def undefined_fields(tree: Node, known: dict[str, SchemaNode | None], root: SchemaNode) -> list[str]:
    """Return what an expression selects of variables with a schema and of their parts that the schemas do not have."""
    return list(dict.fromkeys(_undefined(tree, known, root=root)))


def schema_of(node: Node, known: dict[str, SchemaNode | None]) -> SchemaNode | None:
    """Return the schema of the value of an expression; None where it is not known."""
    match node:
        case Identifier(name):
            return known.get(name)
        case Select(operand, field):
            parent = schema_of(operand, known)
            return None if parent is None else parent.fields.get(field, parent.values)
        case Call("_[_]", (operand, _)):
            parent = schema_of(operand, known)
            return None if parent is None else parent.items or parent.values
        case Comprehension("filter", operand):
            return schema_of(operand, known)
    return None


def variable_schemas(macro: Comprehension, known: dict[str, SchemaNode | None]) -> dict[str, SchemaNode | None]:
    """Return the schemas of a macro's variables; keys, indexes and values that are not of the schema have none."""
    over = schema_of(macro.operand, known)
    if macro.macro == "cel.bind":
        return {macro.variable: over}
    if macro.value_variable:
        return {macro.variable: None, macro.value_variable: None if over is None else over.items or over.values}
    return {macro.variable: over.items if over is not None and over.kind == "list" else None}


def _undefined(node: Node, known: dict[str, SchemaNode | None], root: SchemaNode) -> Iterator[str]:
    match node:
        case Select(operand, field) | Presence(operand, field):
            yield from _undefined(operand, known, root)
            parent = schema_of(operand, known)
            if parent is not None and not _has_field(parent, field, is_root=parent is root):
                yield f"undefined field '{field}'"
        case Call(_, arguments, target):
            for part in (*(() if target is None else (target,)), *arguments):
                yield from _undefined(part, known, root)
        case Conditional(condition, yes, no):
            for part in (condition, yes, no):
                yield from _undefined(part, known, root)
        case ListOf(items):
            for part in items:
                yield from _undefined(part, known, root)
        case MapOf(entries):
            for entry in entries:
                for part in entry:
                    yield from _undefined(part, known, root)
        case Comprehension(_, operand, _, body, condition):
            yield from _undefined(operand, known, root)
            inner = {**known, **variable_schemas(node, known)}
            for part in (body, *(() if condition is None else (condition,))):
                yield from _undefined(part, inner, root)
        case Literal() | Identifier():
            return


def _has_field(schema: SchemaNode, field: str, *, is_root: bool) -> bool:
    if schema.kind == "any" or field in schema.fields or schema.values is not None:
        return True
    return (is_root or schema.embedded) and field in _OBJECT_FIELDS
