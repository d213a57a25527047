"""Protobuf messages as the raw fields they consist of, and the replacement of single fields in them.

A message is never decoded whole: a field that is not asked for keeps its bytes and its place, whether this version
knows it or not. An embedded message or a map that occurs in several pieces is read as their concatenation, which is
what protobuf defines it to mean.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.wire import protobuf


class MalformedMessage(msgspec.Struct, frozen=True):
    """MalformedMessage says why bytes are no message."""

    reason: str

    def __str__(self) -> str:
        return self.reason


class RawField(msgspec.Struct, frozen=True):
    """One field: its number, its wire type, the number or the bytes that it holds, and its place in the message."""

    number: int
    wire_type: int
    value: int | bytes
    start: int
    end: int


def scan_fields(data: bytes) -> list[RawField]:
    """Return all fields in their order. Raise WireError where the bytes are no message."""
    found: list[RawField] = []
    at, end = 0, len(data)
    while at < end:
        start = at
        number, wire_type, at = protobuf.read_tag(data, at, end)
        value: int | bytes
        if wire_type == protobuf.VARINT:
            value, at = protobuf.read_varint(data, at, end)
        elif wire_type == protobuf.BYTES:
            begin, at = protobuf.read_length_delimited(data, at, end)
            value = data[begin:at]
        else:
            begin, at = at, protobuf.skip_value(data, at, end, wire_type)
            value = data[begin:at]
        found.append(RawField(number, wire_type, value, start, at))
    return found


# Reading -------------------------------------------------------------------------------------------------------------


def chunks_of(data: bytes, number: int) -> list[bytes]:
    """Return the values of a field that holds bytes, one for each occurrence."""
    found = []
    for field in scan_fields(data):
        if field.number == number:
            if not isinstance(field.value, bytes) or field.wire_type != protobuf.BYTES:
                raise protobuf.WireError(f"field {number} has the wire type {field.wire_type}")
            found.append(field.value)
    return found


def message_of(data: bytes, *path: int) -> bytes | None:
    """Return an embedded message by the field numbers that lead to it, or None where one of them is absent."""
    found: bytes | None = data
    for number in path:
        if found is None:
            return None
        pieces = chunks_of(found, number)
        found = b"".join(pieces) if pieces else None
    return found


def string_of(data: bytes, number: int) -> str:
    pieces = chunks_of(data, number)
    return decode_string(pieces[-1]) if pieces else ""


def int_of(data: bytes, number: int) -> int:
    """Return an int64 or int32 field, 0 when it is absent; the last occurrence counts."""
    value = uint_of(data, number)
    return value - (1 << 64) if value >> 63 else value


def uint_of(data: bytes, number: int) -> int:
    """Return a uint64 or uint32 field in the same way."""
    value = 0
    for field in scan_fields(data):
        if field.number == number:
            if not isinstance(field.value, int):
                raise protobuf.WireError(f"field {number} has the wire type {field.wire_type}")
            value = field.value
    return value


def string_map_of(data: bytes, number: int) -> dict[str, str]:
    """Return a map<string, string>; of equal keys the last counts."""
    return {string_of(entry, 1): string_of(entry, 2) for entry in chunks_of(data, number)}


def decode_string(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise protobuf.WireError(f"a string is not UTF-8: {error.reason}") from None


# Writing -------------------------------------------------------------------------------------------------------------


def encode_varint(value: int) -> bytes:
    out = bytearray()
    protobuf.write_varint(out, value)
    return bytes(out)


def encode_int(number: int, value: int) -> bytes:
    """Encode an integer field; 0 is what an absent field means and takes no bytes."""
    return encode_varint(number << 3) + encode_varint(value) if value else b""


def encode_chunk(number: int, value: bytes) -> bytes:
    """Encode an embedded message, which is there even when it is empty."""
    return encode_varint(number << 3 | protobuf.BYTES) + encode_varint(len(value)) + value


def encode_string(number: int, value: str) -> bytes:
    return encode_chunk(number, value.encode()) if value else b""


def encode_string_map(number: int, values: Mapping[str, str]) -> bytes:
    """Encode a map<string, string> in order of its keys, so that equal maps are equal bytes. Entries state empty keys
    and values, as other encoders do.
    """
    return b"".join(
        encode_chunk(number, encode_chunk(1, key.encode()) + encode_chunk(2, value.encode()))
        for key, value in sorted(values.items())
    )


def replace_field(data: bytes, number: int, encoded: bytes) -> bytes:
    """Put encoded fields in place of all occurrences of a field; where there is none, before the first higher one."""
    fields = scan_fields(data)
    mine = [field for field in fields if field.number == number]
    if mine:
        place = mine[0].start
    else:
        place = next((field.start for field in fields if field.number > number), len(data))
    parts, at = [data[:place], encoded], place
    for field in mine:
        parts.append(data[at : field.start])
        at = field.end
    return b"".join((*parts, data[at:]))


def set_int(data: bytes, number: int, value: int) -> bytes:
    """Return the message with this value; unchanged bytes when it holds the value already."""
    return data if int_of(data, number) == value else replace_field(data, number, encode_int(number, value))


def set_string(data: bytes, number: int, value: str) -> bytes:
    return data if string_of(data, number) == value else replace_field(data, number, encode_string(number, value))


def set_message(data: bytes, value: bytes, *path: int) -> bytes:
    """Return the message with another embedded message at a path of field numbers; absent ones on the way are made."""
    number, *rest = path
    inner = message_of(data, number)
    if rest:
        value = set_message(inner or b"", value, *rest)
    return data if inner == value else replace_field(data, number, encode_chunk(number, value))


def merge_string_map(data: bytes, number: int, values: Mapping[str, str]) -> bytes:
    """Return the message with these entries laid over its map<string, string>. Entries that stay keep their bytes."""
    entries = chunks_of(data, number)
    present = string_map_of(data, number)
    changed = {key: value for key, value in values.items() if present.get(key) != value}
    if not changed:
        return data
    kept = [encode_chunk(number, entry) for entry in entries if string_of(entry, 1) not in changed]
    return replace_field(data, number, b"".join(kept) + encode_string_map(number, changed))
