"""This module encodes an OpenAPI 2 document in gnostic's protobuf, the only form that many Go clients request.

kubectl before 1.27, Helm and others send no object before they have read it. It is pure: a document in, bytes out.
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


def _fields(writer: Writer, stated: str) -> dict[str, tuple[int, Writer]]:
    """Return the rows of fields that are written alike, stated as `key number key number ...`."""
    words = stated.split()
    return {key: (int(number), writer) for key, number in zip(words[::2], words[1::2], strict=True)}


_EXTERNAL = _MessageSpec(_fields(_text, "description 1 url 2"), extensions=3)
_SCHEMA = _MessageSpec(
    {
        **_fields(_text, "$ref 1 format 2 title 3 description 4 pattern 13"),
        **_fields(_any_json, "default 5 example 30"),
        **_fields(_double, "multipleOf 6 maximum 7 minimum 9"),
        **_fields(_integer, "exclusiveMaximum 8 exclusiveMinimum 10 maxLength 11 minLength 12 maxItems 14 minItems 15"),
        **_fields(_integer, "uniqueItems 16 maxProperties 17 minProperties 18"),
        "required": (19, _texts),
        "enum": (20, _repeated(_any_json)),
        "additionalProperties": (21, _additional),
        "type": (22, _type),
        "items": (23, _items),
        "allOf": (24, _repeated(_schema)),
        "properties": (25, _string_map(_schema)),
        "externalDocs": (29, lambda number, value: _length_delimited(number, _encode_message(value, _EXTERNAL))),
    },
    extensions=31,
)
_BODY = _MessageSpec(
    {**_fields(_text, "description 1 name 2 in 3"), "required": (4, _integer), "schema": (5, _schema)}, extensions=6
)
_QUERY = _MessageSpec(
    {
        **_fields(_integer, "required 1 uniqueItems 20"),
        **_fields(_text, "in 2 description 3 name 4 type 6 format 7"),
        "default": (10, _any_json),
    },
    extensions=23,
)
_PATH = _MessageSpec(
    {
        **_fields(_integer, "required 1 uniqueItems 19"),
        **_fields(_text, "in 2 description 3 name 4 type 5 format 6"),
        "default": (9, _any_json),
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
        **_fields(_texts, "tags 1 produces 6 consumes 7 schemes 10"),
        **_fields(_text, "summary 2 description 3 operationId 5"),
        "parameters": (8, _repeated(_parameter_or_reference)),
        "responses": (
            9,
            _string_map(
                lambda number, value: _length_delimited(number, _length_delimited(1, _encode_message(value, _RESPONSE)))
            ),
        ),
        "deprecated": (11, _integer),
        "security": (12, _SECURITY),
    },
    extensions=13,
)


def _operation(number: int, value: Document) -> bytes:
    return _length_delimited(number, _encode_message(value, _OPERATION))


_PATH_ITEM = _MessageSpec(
    {
        **_fields(_operation, "get 2 put 3 post 4 delete 5 options 6 head 7 patch 8"),
        "parameters": (9, _repeated(_parameter_or_reference)),
    },
    extensions=10,
)
_INFO = _MessageSpec(_fields(_text, "title 1 version 2 description 3"), extensions=7)
_API_KEY = _MessageSpec(_fields(_text, "type 1 name 2 in 3 description 4"), extensions=5)
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
