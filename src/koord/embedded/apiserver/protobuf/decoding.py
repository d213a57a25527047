"""This module decodes Kubernetes protobuf bodies: the prefix, the envelope with the kind, the message.

Messages become plain JSON values in one pass without copies, whatever the bytes are.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koord.embedded.apiserver.protobuf.messages import (
    BYTES,
    END_GROUP,
    RUNTIME_UNKNOWN,
    VARINT,
    MalformedProtobuf,
    MessageField,
    MessageType,
    decode_text,
    message_table,
    read_length_delimited,
    read_varint,
    skip_value,
    to_signed,
)
from koord.embedded.apiserver.schema.builtin_types import META_V1, builtin_types

# Deeper than any kind nests by itself; only schemas and hostile bytes nest without end.
MAX_DEPTH = 100
_Span = tuple[int, int]


def decode_message(definition: str, raw: bytes) -> Any:
    """Decode a message of the table; raises MalformedProtobuf."""
    return _MessageReader(raw).message(definition, [(0, len(raw))], 0)


class _MessageReader:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def message(self, definition: str, spans: list[_Span], depth: int) -> Any:
        """Decode a message; a message given several times is one message with the fields of all, hence the spans."""
        if depth > MAX_DEPTH:
            raise MalformedProtobuf(f"proto: messages nested deeper than {MAX_DEPTH}")
        message = message_table().message_type(definition)
        found: dict[str, Any] = {}
        parts: dict[int, list[_Span]] = {}
        for at, end in spans:
            self._fields(message, at, end, depth, found, parts)
        for number, inner in parts.items():
            field = message.fields[number]
            value = self.message(field.message, inner, depth + 1)
            if field.name:
                found[field.name] = value
            else:
                found.update(value)
        return found if message.form is None else message.form(found)

    def _fields(
        self, message: MessageType, at: int, end: int, depth: int, found: dict[str, Any], parts: dict[int, list[_Span]]
    ) -> None:
        """Decode all fields into `found`, except singular messages, which may repeat and are collected in `parts`."""
        data = self._data
        while at < end:
            tag, at = read_varint(data, at, end)
            number, wire = to_signed(tag >> 3, 32), tag & 7
            if wire == END_GROUP:
                raise MalformedProtobuf(f"proto: {message.name}: wiretype end group for non-group")
            if number <= 0:
                raise MalformedProtobuf(f"proto: {message.name}: illegal tag {number} (wire type {tag})")
            field = message.fields.get(number)
            if field is None:
                at = skip_value(data, at, end, wire)
            elif wire != field.wire:
                at = self._packed(field, wire, at, end, found)
            elif field.shape == "map":
                start, at = read_length_delimited(data, at, end)
                key, value = self._entry(field, start, at, depth)
                found.setdefault(field.name, {})[key] = value
            elif field.scalar is not None:
                value, at = self._scalar(field, at, end)
                if field.shape == "list":
                    found.setdefault(field.name, []).append(value)
                else:
                    found[field.name] = value
            else:
                span = read_length_delimited(data, at, end)
                at = span[1]
                if field.shape == "list":
                    found.setdefault(field.name, []).append(self.message(field.message, [span], depth + 1))
                else:
                    parts.setdefault(number, []).append(span)

    def _scalar(self, field: MessageField, at: int, end: int) -> tuple[Any, int]:
        scalar = field.scalar
        assert scalar is not None, "the caller has looked"
        if scalar.wire == VARINT:
            number, at = read_varint(self._data, at, end)
            return scalar.from_varint(number), at
        if scalar.wire == BYTES:
            start, at = read_length_delimited(self._data, at, end)
        else:
            start, at = at, at + 8
            if at > end:
                raise MalformedProtobuf("unexpected EOF")
        return scalar.from_bytes(self._data[start:at]), at

    def _packed(self, field: MessageField, wire: int, at: int, end: int, found: dict[str, Any]) -> int:
        """Decode packed numbers, which is the only other encoding of a repeated field."""
        if wire != BYTES or field.shape != "list" or field.wire == BYTES:
            raise MalformedProtobuf(f"proto: wrong wireType = {wire} for field {field.go}")
        start, stop = read_length_delimited(self._data, at, end)
        into = found.setdefault(field.name, [])
        while start < stop:
            value, start = self._scalar(field, start, stop)
            into.append(value)
        return stop

    def _entry(self, field: MessageField, at: int, end: int, depth: int) -> tuple[str, Any]:
        """Decode the key and value of a map entry; a missing one is the zero value of its type."""
        data, key, at_value = self._data, "", (end, end)
        while at < end:
            tag, at = read_varint(data, at, end)
            number, wire = tag >> 3, tag & 7
            if number not in (1, 2):
                if wire == END_GROUP:
                    raise MalformedProtobuf("proto: unexpected end of group")
                at = skip_value(data, at, end, wire)
                continue
            if wire != BYTES:  # keys are strings, and no map has numbers for values
                raise MalformedProtobuf(f"proto: wrong wireType = {wire} for field {field.go}")
            start, at = read_length_delimited(data, at, end)
            if number == 1:
                key = decode_text(data[start:at])
            else:
                at_value = (start, at)  # the last one wins whole: Go reads each into a value of its own
        if field.scalar is not None:
            return key, field.scalar.from_bytes(data[slice(*at_value)])
        return key, self.message(field.message, [at_value], depth + 1)


MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
MAGIC = b"k8s\x00"
# Clients that are older than policy/v1 evict with it still; its fields are the same.
_UNSERVED_DEFINITIONS = {("policy", "v1beta1", "Eviction"): "io.k8s.api.policy.v1beta1.Eviction"}


class Envelope(msgspec.Struct, frozen=True):
    """An Envelope is the decoded runtime.Unknown of a body: its type and its raw message."""

    api_version: str
    kind: str
    raw: bytes

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]


def open_envelope(body: bytes, api_version: str, kind: str) -> Envelope:
    """Open a body; `api_version` and `kind` apply where it does not say its own. Raises MalformedProtobuf."""
    if not body:
        raise MalformedProtobuf("empty data")
    if not body.startswith(MAGIC):
        raise MalformedProtobuf(
            f"provided data does not appear to be a protobuf message, expected prefix [{' '.join(map(str, MAGIC))}]"
        )
    if len(body) == len(MAGIC):
        raise MalformedProtobuf("empty body")
    found = decode_message(RUNTIME_UNKNOWN, body[len(MAGIC) :])
    type_meta = found.get("typeMeta", {})
    said = type_meta.get("apiVersion", "")
    if not said or said.count("/") > 1 or said.endswith("/"):
        said = api_version
    return Envelope(said, type_meta.get("kind") or kind, found.get("raw", b""))


def decode_envelope(envelope: Envelope) -> dict[str, Any]:
    """Decode the object inside as Go would write it to JSON; raises MalformedProtobuf.

    A kind without a message comes back as its type alone: the caller that expects another kind reports it.
    """
    group, _, version = envelope.api_version.rpartition("/")
    definition = _definition_of_kind(group, version, envelope.kind)
    named = {"kind": envelope.kind, "apiVersion": envelope.api_version}
    if definition is None or definition not in message_table():
        return named
    return {**named, **decode_message(definition, envelope.raw)}


def _definition_of_kind(group: str, version: str, kind: str) -> str | None:
    if kind == "DeleteOptions":  # one type, known in every group, even in those that nobody serves
        return META_V1 + kind
    return builtin_types().definition_name(group, version, kind) or _UNSERVED_DEFINITIONS.get((group, version, kind))
