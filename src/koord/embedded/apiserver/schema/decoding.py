"""This module decodes JSON values into built-in types as Go's decoder does, with Go's error messages.

One walk computes three results: the object after a round trip through the Go type (unknown fields gone,
empty omitempty fields gone, zero values filled in, quantities and times canonical), the fields that the
type does not have, and the first error about a value of the wrong type. Custom kinds have their own path,
see `custom_decoding`.
"""

from __future__ import annotations

import base64
import binascii
import copy
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koord.embedded.apiserver.schema import compiled
from koord.embedded.apiserver.schema.builtin import JSON_SCHEMA, MICRO_TIME, SCHEMA_UNIONS, builtin
from koord.embedded.apiserver.schema.node import Node
from koord.embedded.apiserver.schema.scalar import canonical_quantity, canonical_time
from koord.values.quotation import quoted

MAX_UNKNOWN = 100  # Go's decoder stops collecting there
_LIMITS = {"int32": 31, "int64": 63}


class Decoded(msgspec.Struct, frozen=True):
    """A DecodeResult holds the decoded value; when `error` holds Go's message, `value` must not be used."""

    value: Any
    unknown: tuple[str, ...] = ()  # `unknown field "spec.foo"`, in the order of the input
    error: str = ""


class _Stop(Exception):
    """This exception ends the decoding: a type's own decoder failed, and Go drops all earlier errors."""


class _Walk:
    """A _Decoder keeps the two paths that Go keeps.

    `stack` (struct fields, no indexes) is for type errors; a full path is for unknown fields.
    """

    def __init__(self) -> None:
        self.unknown: dict[str, None] = {}
        self.saved = ""
        self.struct = ""
        self.stack: list[str] = []

    def complain(self, value: str, go: str) -> None:
        if self.saved:
            return
        place = f"struct field {self.struct}.{'.'.join(self.stack)}" if self.stack else "value"
        self.saved = f"json: cannot unmarshal {value} into Go {place} of type {go}"

    def refuse(self, value: str, go: str) -> _Stop:
        """Return the error of a nested decoder, which has the same words and ends the decoding."""
        self.saved = ""
        self.complain(value, go)
        return _Stop(self.saved)

    def value(self, value: Any, node: Node, path: str) -> Any:
        """Decode a value that is not null: what null means depends on the position."""
        return _DECODE[node.kind](self, value, node, path)

    def object(self, value: Any, node: Node, path: str) -> Any:
        if not isinstance(value, dict):
            self.complain(described(value), bare(node.go))
            return {}
        struct, depth = self.struct, len(self.stack)
        found: dict[str, Any] = {}
        name = bare(node.go).rpartition(".")[2]
        for key, item in value.items():
            field = node.fields.get(key)
            if field is None:
                if len(self.unknown) < MAX_UNKNOWN:
                    self.unknown[f"{path}.{key}" if path else key] = None
                continue
            if item is None:
                continue
            self.struct = name
            self.stack += [*field.via.split("."), key] if field.via else [key]
            found[key] = self.value(item, field, f"{path}.{key}" if path else key)
            del self.stack[depth:]
        self.struct = struct
        return _encoded(found, node)

    def map(self, value: Any, node: Node, path: str) -> Any:
        if not isinstance(value, dict):
            self.complain(described(value), bare(node.go))
            return {}
        values = node.values
        assert values is not None, "a map has a value type"
        return {k: zero(values) if v is None else self.value(v, values, f"{path}.{k}") for k, v in value.items()}

    def list(self, value: Any, node: Node, path: str) -> Any:
        if not isinstance(value, list):
            self.complain(described(value), bare(node.go))
            return []
        items = node.items
        assert items is not None, "a list has an item type"
        return [
            zero(items) if item is None else self.value(item, items, f"{path}[{i}]") for i, item in enumerate(value)
        ]

    def string(self, value: Any, node: Node, path: str) -> Any:
        if node.format == "byte":
            return self.bytes(value, node)
        if node.format == "date-time" and node.go_type:
            if not isinstance(value, str):
                raise self.refuse(described(value), "string")
            try:
                return canonical_time(value, micro=node.go_type == MICRO_TIME)
            except ValueError as refused:
                raise _Stop(str(refused)) from None
        if not isinstance(value, str):
            self.complain(described(value), bare(node.go))
            return ""
        return value

    def bytes(self, value: Any, node: Node) -> Any:
        if isinstance(value, list):  # a byte slice is also a slice of numbers
            fits = [n for n in value if type(n) is int and 0 <= n <= 255]
            if len(fits) != len(value):
                odd = next(n for n in value if not (type(n) is int and 0 <= n <= 255))
                self.complain(f"number {literal(odd)}" if is_number(odd) else described(odd), "uint8")
            return base64.b64encode(bytes(fits)).decode()
        if not isinstance(value, str):
            self.complain(described(value), "[]uint8")
            return ""
        try:
            return base64.b64encode(decode_base64(value)).decode()
        except ValueError as refused:
            self.saved = self.saved or str(refused)
            return ""

    def integer(self, value: Any, node: Node, path: str) -> Any:
        if not is_number(value):
            self.complain(described(value), bare(node.go))
            return 0
        bits = _LIMITS.get(node.format, 63)
        if isinstance(value, float) or not -(1 << bits) <= value < (1 << bits):
            self.complain(f"number {literal(value)}", bare(node.go))
            return 0
        return value

    def number(self, value: Any, node: Node, path: str) -> Any:
        if not is_number(value):
            self.complain(described(value), bare(node.go))
            return 0
        return value

    def boolean(self, value: Any, node: Node, path: str) -> Any:
        if not isinstance(value, bool):
            self.complain(described(value), bare(node.go))
            return False
        return value

    def quantity(self, value: Any, node: Node, path: str) -> Any:
        try:
            return canonical_quantity(value)
        except ValueError as refused:
            raise _Stop(str(refused)) from None

    def int_or_string(self, value: Any, node: Node, path: str) -> Any:
        if isinstance(value, str):
            return value
        if not is_number(value):
            raise self.refuse(described(value), "int32")
        if isinstance(value, float) or not -(1 << 31) <= value < (1 << 31):
            raise self.refuse(f"number {literal(value)}", "int32")
        return value

    def any(self, value: Any, node: Node, path: str) -> Any:
        if node.go_type in SCHEMA_UNIONS:
            return _schema_union(value)
        return copy.deepcopy(value)


_DECODE: Mapping[str, Callable[[_Walk, Any, Node, str], Any]] = {
    "object": _Walk.object,
    "map": _Walk.map,
    "list": _Walk.list,
    "string": _Walk.string,
    "integer": _Walk.integer,
    "number": _Walk.number,
    "boolean": _Walk.boolean,
    "quantity": _Walk.quantity,
    "int-or-string": _Walk.int_or_string,
    "any": _Walk.any,
}


def bare(go: str) -> str:
    """Return a Go type without its pointer, as decoding errors name it."""
    return go.lstrip("*")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def described(value: Any) -> str:
    """Return the name that Go's decoder gives to the type of a JSON value."""
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list):
        return "array"
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "bool"
    return "number"


def literal(number: float) -> str:
    """Return a number as the input most likely spelled it; decoding to Python has lost the exact text."""
    return repr(number) if isinstance(number, float) else str(number)


def decode_base64(text: str) -> bytes:
    """Decode standard base64 with line breaks.

    Raises ValueError in Go's words with the offset of the first bad byte.
    """
    clean = text.replace("\n", "").replace("\r", "")
    try:
        return base64.b64decode(clean, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"illegal base64 data at input byte {_bad_byte(text)}") from None


def _bad_byte(text: str) -> int:
    """Return the offset of the bad byte.

    Go reads quanta of four and reports a short last quantum at its own start.
    """
    quantum: list[int] = []
    for at, char in enumerate(text):
        if char in "\r\n":
            continue
        if char == "=":
            if len(quantum) < 2:
                return at
            rest = [i for i in range(at + 1, len(text)) if text[i] not in "\r\n"]
            if len(quantum) == 2:
                if not rest:
                    return len(text)
                if text[rest[0]] != "=":
                    return rest[0]
                rest = rest[1:]
            return rest[0] if rest else at
        if not (char.isascii() and (char.isalnum() or char in "+/")):
            return at
        quantum.append(at)
        if len(quantum) == 4:
            quantum.clear()
    return len(text) - len(quantum)


def zero(node: Node) -> Any:
    """Return what Go writes for a value that was never set."""
    if node.pointer:
        return None
    if node.kind == "object":
        return _encoded({}, node)
    if node.kind == "string":
        return None if node.format == "date-time" and node.go_type else ""
    return {"integer": 0, "number": 0, "boolean": False, "quantity": "0", "int-or-string": 0}.get(node.kind)


def _encoded(found: dict[str, Any], node: Node) -> dict[str, Any]:
    """Return a struct as Go writes it: its field order, its omit rules, zero values where no rule drops them."""
    out: dict[str, Any] = {}
    for key, field in node.fields.items():
        value = found.get(key)
        if value is None or ((value == [] or value == {}) and field.kind in ("list", "map")):
            # Storage is protobuf, which cannot tell an empty list from none.
            if field.pointer or field.kind in ("list", "map"):
                if not field.omit_empty:
                    out[key] = None
                continue
            value = zero(field)
        if _dropped(value, field):
            continue
        out[key] = value
    return out


def _dropped(value: Any, field: Node) -> bool:
    if field.pointer:
        return False
    if field.omit_empty and field.kind in ("string", "integer", "number", "boolean") and not field.go_type:
        return not value
    return field.omit_zero and (value is None or value == {})


def _schema_union(value: Any) -> Any:
    """Decode a schema or its simpler alternative.

    It is decoded apart, so that its unknown fields are not reported.
    """
    schema = builtin().definition(JSON_SCHEMA)
    if isinstance(value, dict):
        return _Walk().value(value, schema, "")
    if isinstance(value, list):
        return [_Walk().value(v, schema, "") if isinstance(v, dict) else copy.deepcopy(v) for v in value]
    return value


def decode(value: Any, node: Node) -> Decoded:
    """Decode a value of a built-in type; well-formed objects take the fast path, which gives the same result."""
    quick = compiled.convert(value, node)
    return Decoded(quick) if quick is not None else decode_slowly(value, node)


def decode_slowly(value: Any, node: Node) -> Decoded:
    walk = _Walk()
    try:
        out = walk.value(value, node, "")
    except _Stop as stop:
        return Decoded(None, (), str(stop))
    if walk.saved:
        return Decoded(None, (), walk.saved)
    return Decoded(out, tuple(f"unknown field {quoted(p)}" for p in walk.unknown))


def normalise(value: Any, node: Node) -> Any:
    """Return the value after a round trip through the Go type.

    Raises ValueError in Go's words when it does not fit.
    """
    found = decode(value, node)
    if found.error:
        raise ValueError(found.error)
    return found.value
