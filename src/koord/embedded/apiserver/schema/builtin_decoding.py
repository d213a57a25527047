"""This module decodes JSON values into built-in types as Go's decoder does, with Go's error messages.

One walk computes three results: the object after a round trip through the Go type (unknown fields gone, empty omitempty
fields gone, zero values filled in, quantities and times canonical), the fields that the type does not have, and the
first error about a value of the wrong type. Custom kinds have their own path, see `custom_decoding`.
"""

from __future__ import annotations

import base64
import binascii
import copy
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from koord.embedded.apiserver.schema import builtin_fast_path
from koord.embedded.apiserver.schema.builtin_fast_path import canonical_quantity, canonical_time
from koord.embedded.apiserver.schema.builtin_types import JSON_SCHEMA, MICRO_TIME, SCHEMA_UNIONS, builtin_types
from koord.embedded.apiserver.schema.schema_node import SchemaNode
from koord.values.go_format import quoted

MAX_UNKNOWN_FIELDS = 100  # Go's decoder stops collecting there
_INTEGER_BITS = {"int32": 31, "int64": 63}


class DecodeResult(msgspec.Struct, frozen=True):
    """A DecodeResult holds the decoded value; when `error` holds Go's message, `value` must not be used."""

    value: Any
    unknown: tuple[str, ...] = ()  # `unknown field "spec.foo"`, in the order of the input
    error: str = ""


class _DecodingAborted(Exception):
    """This exception ends the decoding: a type's own decoder failed, and Go drops all earlier errors."""


class _Decoder:
    """A _Decoder keeps Go's two paths: `stack` (struct fields) for type errors, a full one for unknown fields."""

    def __init__(self) -> None:
        self.unknown: dict[str, None] = {}
        self.first_error = ""
        self.struct_name = ""
        self.stack: list[str] = []

    def record_error(self, value: str, go: str) -> None:
        if self.first_error:
            return
        place = f"struct field {self.struct_name}.{'.'.join(self.stack)}" if self.stack else "value"
        self.first_error = f"json: cannot unmarshal {value} into Go {place} of type {go}"

    def abort(self, value: str, go: str) -> _DecodingAborted:
        """Return the error of a nested decoder, which has the same words and ends the decoding."""
        self.first_error = ""
        self.record_error(value, go)
        return _DecodingAborted(self.first_error)

    def value(self, value: Any, node: SchemaNode, path: str) -> Any:
        """Decode a value that is not null: what null means depends on the position."""
        return _DECODERS[node.kind](self, value, node, path)

    def object(self, value: Any, node: SchemaNode, path: str) -> Any:
        if not isinstance(value, dict):
            self.record_error(go_json_kind(value), without_pointer(node.go))
            return {}
        struct, depth = self.struct_name, len(self.stack)
        found: dict[str, Any] = {}
        name = without_pointer(node.go).rpartition(".")[2]
        for key, item in value.items():
            field = node.fields.get(key)
            if field is None:
                if len(self.unknown) < MAX_UNKNOWN_FIELDS:
                    self.unknown[f"{path}.{key}" if path else key] = None
                continue
            if item is None:
                continue
            self.struct_name = name
            self.stack += [*field.via.split("."), key] if field.via else [key]
            found[key] = self.value(item, field, f"{path}.{key}" if path else key)
            del self.stack[depth:]
        self.struct_name = struct
        return _encode_struct(found, node)

    def map(self, value: Any, node: SchemaNode, path: str) -> Any:
        if not isinstance(value, dict):
            self.record_error(go_json_kind(value), without_pointer(node.go))
            return {}
        values = node.values
        assert values is not None, "a map has a value type"
        return {
            k: go_zero_value(values) if v is None else self.value(v, values, f"{path}.{k}") for k, v in value.items()
        }

    def list(self, value: Any, node: SchemaNode, path: str) -> Any:
        if not isinstance(value, list):
            self.record_error(go_json_kind(value), without_pointer(node.go))
            return []
        items = node.items
        assert items is not None, "a list has an item type"
        return [
            go_zero_value(items) if item is None else self.value(item, items, f"{path}[{i}]")
            for i, item in enumerate(value)
        ]

    def string(self, value: Any, node: SchemaNode, path: str) -> Any:
        if node.format == "byte":
            return self.bytes(value, node)
        if node.format == "date-time" and node.go_type:
            if not isinstance(value, str):
                raise self.abort(go_json_kind(value), "string")
            try:
                return canonical_time(value, micro=node.go_type == MICRO_TIME)
            except ValueError as refused:
                raise _DecodingAborted(str(refused)) from None
        if not isinstance(value, str):
            self.record_error(go_json_kind(value), without_pointer(node.go))
            return ""
        return value

    def bytes(self, value: Any, node: SchemaNode) -> Any:
        if isinstance(value, list):  # a byte slice is also a slice of numbers
            fits = [n for n in value if type(n) is int and 0 <= n <= 255]
            if len(fits) != len(value):
                odd = next(n for n in value if not (type(n) is int and 0 <= n <= 255))
                self.record_error(f"number {number_literal(odd)}" if is_number(odd) else go_json_kind(odd), "uint8")
            return base64.b64encode(bytes(fits)).decode()
        if not isinstance(value, str):
            self.record_error(go_json_kind(value), "[]uint8")
            return ""
        try:
            return base64.b64encode(decode_base64(value)).decode()
        except ValueError as refused:
            self.first_error = self.first_error or str(refused)
            return ""

    def integer(self, value: Any, node: SchemaNode, path: str) -> Any:
        if not is_number(value):
            self.record_error(go_json_kind(value), without_pointer(node.go))
            return 0
        bits = _INTEGER_BITS.get(node.format, 63)
        if isinstance(value, float) or not -(1 << bits) <= value < (1 << bits):
            self.record_error(f"number {number_literal(value)}", without_pointer(node.go))
            return 0
        return value

    def number(self, value: Any, node: SchemaNode, path: str) -> Any:
        if not is_number(value):
            self.record_error(go_json_kind(value), without_pointer(node.go))
            return 0
        return value

    def boolean(self, value: Any, node: SchemaNode, path: str) -> Any:
        if not isinstance(value, bool):
            self.record_error(go_json_kind(value), without_pointer(node.go))
            return False
        return value

    def quantity(self, value: Any, node: SchemaNode, path: str) -> Any:
        try:
            return canonical_quantity(value)
        except ValueError as refused:
            raise _DecodingAborted(str(refused)) from None

    def int_or_string(self, value: Any, node: SchemaNode, path: str) -> Any:
        if isinstance(value, str):
            return value
        if not is_number(value):
            raise self.abort(go_json_kind(value), "int32")
        if isinstance(value, float) or not -(1 << 31) <= value < (1 << 31):
            raise self.abort(f"number {number_literal(value)}", "int32")
        return value

    def any(self, value: Any, node: SchemaNode, path: str) -> Any:
        if node.go_type in SCHEMA_UNIONS:
            return _decode_schema_union(value)
        return copy.deepcopy(value)


_DECODERS: Mapping[str, Callable[[_Decoder, Any, SchemaNode, str], Any]] = {
    "object": _Decoder.object,
    "map": _Decoder.map,
    "list": _Decoder.list,
    "string": _Decoder.string,
    "integer": _Decoder.integer,
    "number": _Decoder.number,
    "boolean": _Decoder.boolean,
    "quantity": _Decoder.quantity,
    "int-or-string": _Decoder.int_or_string,
    "any": _Decoder.any,
}


def without_pointer(go: str) -> str:
    """Return a Go type without its pointer, as decoding errors name it."""
    return go.lstrip("*")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def go_json_kind(value: Any) -> str:
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


def number_literal(number: float) -> str:
    """Return a number as the input most likely spelled it; decoding to Python has lost the exact text."""
    return repr(number) if isinstance(number, float) else str(number)


def decode_base64(text: str) -> bytes:
    """Decode standard base64 with line breaks. Raises ValueError in Go's words with the offset of a bad byte."""
    clean = text.replace("\n", "").replace("\r", "")
    try:
        return base64.b64decode(clean, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"illegal base64 data at input byte {_bad_base64_offset(text)}") from None


def _bad_base64_offset(text: str) -> int:
    """Return the offset of the bad byte. Go reads quanta of four and reports a short last quantum at its own start."""
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


def go_zero_value(node: SchemaNode) -> Any:
    """Return what Go writes for a value that was never set."""
    if node.pointer:
        return None
    if node.kind == "object":
        return _encode_struct({}, node)
    if node.kind == "string":
        return None if node.format == "date-time" and node.go_type else ""
    return {"integer": 0, "number": 0, "boolean": False, "quantity": "0", "int-or-string": 0}.get(node.kind)


def _encode_struct(found: dict[str, Any], node: SchemaNode) -> dict[str, Any]:
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
            value = go_zero_value(field)
        if _is_omitted(value, field):
            continue
        out[key] = value
    return out


def _is_omitted(value: Any, field: SchemaNode) -> bool:
    if field.pointer:
        return False
    if field.omit_empty and field.kind in ("string", "integer", "number", "boolean") and not field.go_type:
        return not value
    return field.omit_zero and (value is None or value == {})


def _decode_schema_union(value: Any) -> Any:
    """Decode a schema or its simpler alternative. It is decoded apart, so that its unknown fields are not reported."""
    schema = builtin_types().definition_node(JSON_SCHEMA)
    if isinstance(value, dict):
        return _Decoder().value(value, schema, "")
    if isinstance(value, list):
        return [_Decoder().value(v, schema, "") if isinstance(v, dict) else copy.deepcopy(v) for v in value]
    return value


def decode_builtin(value: Any, node: SchemaNode) -> DecodeResult:
    """Decode a value of a built-in type; well-formed objects take the fast path, which gives the same result."""
    quick = builtin_fast_path.decode_fast(value, node)
    return DecodeResult(quick) if quick is not None else decode_builtin_by_walk(value, node)


def decode_builtin_by_walk(value: Any, node: SchemaNode) -> DecodeResult:
    walk = _Decoder()
    try:
        out = walk.value(value, node, "")
    except _DecodingAborted as stop:
        return DecodeResult(None, (), str(stop))
    if walk.first_error:
        return DecodeResult(None, (), walk.first_error)
    return DecodeResult(out, tuple(f"unknown field {quoted(p)}" for p in walk.unknown))
