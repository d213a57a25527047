"""This module encodes an OpenAPI 2 document in gnostic's protobuf, the only form that many Go clients request.

kubectl before 1.27, Helm and others send no object before they have read it. It is pure: a document in,
bytes out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from koord.embedded.apiserver.protobuf.messages import BYTES, FIXED64, VARINT

MEDIA_TYPES = (
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",  # how clients spelled it before 1.27
)
Document = Mapping[str, Any]
# How one key of a document becomes bytes, given the number of its field.
Writer = Callable[[int, Any], bytes]


def encode_openapi_v2(document: Document) -> bytes:
    return _encode_message(document, _DOCUMENT)


# Bytes -------------------------------------------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _length_delimited(number: int, raw: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(raw)) + raw


def _text(number: int, value: str) -> bytes:
    return _length_delimited(number, value.encode()) if value else b""


def _texts(number: int, values: Iterable[str]) -> bytes:
    return b"".join(_length_delimited(number, value.encode()) for value in values)


def _integer(number: int, value: int) -> bytes:
    return _varint(number << 3 | VARINT) + _varint(value & (1 << 64) - 1) if value else b""


def _double(number: int, value: float) -> bytes:
    return _varint(number << 3 | FIXED64) + struct.pack("<d", value) if value else b""


def _any_json(number: int, value: Any) -> bytes:
    """Encode any JSON value: gnostic keeps it as YAML, and JSON is YAML."""
    return _length_delimited(number, _length_delimited(2, msgspec.json.encode(value) + b"\n"))


def _repeated(writer: Writer) -> Writer:
    return lambda number, values: b"".join(writer(number, value) for value in values)


def _string_map(writer: Writer, inner: int = 1) -> Writer:
    """Return a writer for a map, which is a message of repeated pairs of a name and a value."""

    def write(number: int, values: Document) -> bytes:
        pairs = (_length_delimited(inner, _text(1, name) + writer(2, value)) for name, value in values.items())
        return _length_delimited(number, b"".join(pairs))

    return write


class _MessageSpec(msgspec.Struct, frozen=True):
    """A _MessageSpec maps keys to fields; `extensions` is the field number for keys that start with `x-`."""

    keys: Mapping[str, tuple[int, Writer]]
    extensions: int


def _encode_message(value: Document, message: _MessageSpec) -> bytes:
    out = []
    for key, item in value.items():
        if key.startswith("x-"):
            out.append(_length_delimited(message.extensions, _text(1, key) + _any_json(2, item)))
        elif key in message.keys:  # gnostic has no place for what OpenAPI 2 does not know
            number, writer = message.keys[key]
            out.append(writer(number, item))
    return b"".join(out)


# Messages ----------------------------------------------------------------------------------------------------------


def _schema(number: int, value: Document) -> bytes:
    return _length_delimited(number, _encode_message(value, _SCHEMA))


def _additional(number: int, value: Any) -> bytes:
    return _length_delimited(number, _integer(2, value) if isinstance(value, bool) else _schema(1, value))


def _type(number: int, value: Any) -> bytes:
    return _length_delimited(number, _texts(1, [value] if isinstance(value, str) else value))


def _items(number: int, value: Any) -> bytes:
    return _length_delimited(number, _repeated(_schema)(1, [value] if isinstance(value, dict) else value))


_EXTERNAL = _MessageSpec({"description": (1, _text), "url": (2, _text)}, extensions=3)
_SCHEMA = _MessageSpec(
    {
        "$ref": (1, _text),
        "format": (2, _text),
        "title": (3, _text),
        "description": (4, _text),
        "default": (5, _any_json),
        "multipleOf": (6, _double),
        "maximum": (7, _double),
        "exclusiveMaximum": (8, _integer),
        "minimum": (9, _double),
        "exclusiveMinimum": (10, _integer),
        "maxLength": (11, _integer),
        "minLength": (12, _integer),
        "pattern": (13, _text),
        "maxItems": (14, _integer),
        "minItems": (15, _integer),
        "uniqueItems": (16, _integer),
        "maxProperties": (17, _integer),
        "minProperties": (18, _integer),
        "required": (19, _texts),
        "enum": (20, _repeated(_any_json)),
        "additionalProperties": (21, _additional),
        "type": (22, _type),
        "items": (23, _items),
        "allOf": (24, _repeated(_schema)),
        "properties": (25, _string_map(_schema)),
        "externalDocs": (29, lambda number, value: _length_delimited(number, _encode_message(value, _EXTERNAL))),
        "example": (30, _any_json),
    },
    extensions=31,
)
_BODY = _MessageSpec(
    {
        "description": (1, _text),
        "name": (2, _text),
        "in": (3, _text),
        "required": (4, _integer),
        "schema": (5, _schema),
    },
    extensions=6,
)
_QUERY = _MessageSpec(
    {
        "required": (1, _integer),
        "in": (2, _text),
        "description": (3, _text),
        "name": (4, _text),
        "type": (6, _text),
        "format": (7, _text),
        "default": (10, _any_json),
        "uniqueItems": (20, _integer),
    },
    extensions=23,
)
_PATH = _MessageSpec(
    {
        "required": (1, _integer),
        "in": (2, _text),
        "description": (3, _text),
        "name": (4, _text),
        "type": (5, _text),
        "format": (6, _text),
        "default": (9, _any_json),
        "uniqueItems": (19, _integer),
    },
    extensions=22,
)


def _parameter(number: int, value: Document) -> bytes:
    if value["in"] == "body":
        return _length_delimited(number, _length_delimited(1, _encode_message(value, _BODY)))
    inner = (
        _length_delimited(4, _encode_message(value, _PATH))
        if value["in"] == "path"
        else _length_delimited(3, _encode_message(value, _QUERY))
    )
    return _length_delimited(number, _length_delimited(2, inner))


def _parameter_or_reference(number: int, value: Document) -> bytes:
    return _length_delimited(
        number, _length_delimited(2, _text(1, value["$ref"])) if "$ref" in value else _parameter(1, value)
    )


_RESPONSE = _MessageSpec(
    {"description": (1, _text), "schema": (2, lambda number, value: _length_delimited(number, _schema(1, value)))},
    extensions=5,
)
_SECURITY = _repeated(_string_map(lambda number, scopes: _length_delimited(number, _texts(1, scopes))))
_OPERATION = _MessageSpec(
    {
        "tags": (1, _texts),
        "summary": (2, _text),
        "description": (3, _text),
        "operationId": (5, _text),
        "produces": (6, _texts),
        "consumes": (7, _texts),
        "parameters": (8, _repeated(_parameter_or_reference)),
        "responses": (
            9,
            _string_map(
                lambda number, value: _length_delimited(number, _length_delimited(1, _encode_message(value, _RESPONSE)))
            ),
        ),
        "schemes": (10, _texts),
        "deprecated": (11, _integer),
        "security": (12, _SECURITY),
    },
    extensions=13,
)


def _operation(number: int, value: Document) -> bytes:
    return _length_delimited(number, _encode_message(value, _OPERATION))


_PATH_ITEM = _MessageSpec(
    {
        "get": (2, _operation),
        "put": (3, _operation),
        "post": (4, _operation),
        "delete": (5, _operation),
        "options": (6, _operation),
        "head": (7, _operation),
        "patch": (8, _operation),
        "parameters": (9, _repeated(_parameter_or_reference)),
    },
    extensions=10,
)
_INFO = _MessageSpec({"title": (1, _text), "version": (2, _text), "description": (3, _text)}, extensions=7)
_API_KEY = _MessageSpec(
    {"type": (1, _text), "name": (2, _text), "in": (3, _text), "description": (4, _text)}, extensions=5
)
_DOCUMENT = _MessageSpec(
    {
        "swagger": (1, _text),
        "info": (2, lambda number, value: _length_delimited(number, _encode_message(value, _INFO))),
        "paths": (
            8,
            _string_map(lambda number, value: _length_delimited(number, _encode_message(value, _PATH_ITEM)), inner=2),
        ),
        "definitions": (9, _string_map(_schema)),
        "parameters": (10, _string_map(_parameter)),
        "security": (12, _SECURITY),
        # Bearer tokens are spelled as keys in a header; nothing else secures these servers.
        "securityDefinitions": (
            13,
            _string_map(
                lambda number, value: _length_delimited(number, _length_delimited(2, _encode_message(value, _API_KEY)))
            ),
        ),
    },
    extensions=16,
)
