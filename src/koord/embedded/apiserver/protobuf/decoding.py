"""This module decodes Kubernetes protobuf bodies: the prefix, the envelope with the kind, the message.

Messages become plain JSON values in one pass without copies, whatever the bytes are.
"""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.protobuf.message import Field, Message, messages, text
from koord.embedded.apiserver.protobuf.wire import BYTES, END_GROUP, VARINT, Malformed, chunk, signed, skip, varint

# Deeper than any kind nests by itself; only schemas and hostile bytes nest without end.
MAX_DEPTH = 100
_Span = tuple[int, int]


def decode(definition: str, raw: bytes) -> Any:
    """Decode a message of the table; raises MalformedProtobuf."""
    return _Reader(raw).message(definition, [(0, len(raw))], 0)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def message(self, definition: str, spans: list[_Span], depth: int) -> Any:
        """Decode a message; a message given several times is one message with the fields of all, hence the spans."""
        if depth > MAX_DEPTH:
            raise Malformed(f"proto: messages nested deeper than {MAX_DEPTH}")
        message = messages().of(definition)
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
        self, message: Message, at: int, end: int, depth: int, found: dict[str, Any], parts: dict[int, list[_Span]]
    ) -> None:
        """Decode all fields into `found`, except singular messages, which may repeat and are collected in `parts`."""
        data = self._data
        while at < end:
            tag, at = varint(data, at, end)
            number, wire = signed(tag >> 3, 32), tag & 7
            if wire == END_GROUP:
                raise Malformed(f"proto: {message.name}: wiretype end group for non-group")
            if number <= 0:
                raise Malformed(f"proto: {message.name}: illegal tag {number} (wire type {tag})")
            field = message.fields.get(number)
            if field is None:
                at = skip(data, at, end, wire)
            elif wire != field.wire:
                at = self._packed(field, wire, at, end, found)
            elif field.shape == "map":
                start, at = chunk(data, at, end)
                key, value = self._entry(field, start, at, depth)
                found.setdefault(field.name, {})[key] = value
            elif field.scalar is not None:
                value, at = self._scalar(field, at, end)
                if field.shape == "list":
                    found.setdefault(field.name, []).append(value)
                else:
                    found[field.name] = value
            else:
                span = chunk(data, at, end)
                at = span[1]
                if field.shape == "list":
                    found.setdefault(field.name, []).append(self.message(field.message, [span], depth + 1))
                else:
                    parts.setdefault(number, []).append(span)

    def _scalar(self, field: Field, at: int, end: int) -> tuple[Any, int]:
        scalar = field.scalar
        assert scalar is not None, "the caller has looked"
        if scalar.wire == VARINT:
            number, at = varint(self._data, at, end)
            return scalar.of_number(number), at
        if scalar.wire == BYTES:
            start, at = chunk(self._data, at, end)
        else:
            start, at = at, at + 8
            if at > end:
                raise Malformed("unexpected EOF")
        return scalar.of_bytes(self._data[start:at]), at

    def _packed(self, field: Field, wire: int, at: int, end: int, found: dict[str, Any]) -> int:
        """Decode packed numbers, which is the only other encoding of a repeated field."""
        if wire != BYTES or field.shape != "list" or field.wire == BYTES:
            raise Malformed(f"proto: wrong wireType = {wire} for field {field.go}")
        start, stop = chunk(self._data, at, end)
        into = found.setdefault(field.name, [])
        while start < stop:
            value, start = self._scalar(field, start, stop)
            into.append(value)
        return stop

    def _entry(self, field: Field, at: int, end: int, depth: int) -> tuple[str, Any]:
        """Decode the key and value of a map entry; a missing one is the zero value of its type."""
        data, key, at_value = self._data, "", (end, end)
        while at < end:
            tag, at = varint(data, at, end)
            number, wire = tag >> 3, tag & 7
            if number not in (1, 2):
                if wire == END_GROUP:
                    raise Malformed("proto: unexpected end of group")
                at = skip(data, at, end, wire)
                continue
            if wire != BYTES:  # keys are strings, and no map has numbers for values
                raise Malformed(f"proto: wrong wireType = {wire} for field {field.go}")
            start, at = chunk(data, at, end)
            if number == 1:
                key = text(data[start:at])
            else:
                at_value = (start, at)  # the last one wins whole: Go reads each into a value of its own
        if field.scalar is not None:
            return key, field.scalar.of_bytes(data[slice(*at_value)])
        return key, self.message(field.message, [at_value], depth + 1)
