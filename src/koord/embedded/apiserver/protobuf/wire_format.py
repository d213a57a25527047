"""This module reads the protobuf wire format: varints, lengths, and skipping of unknown fields.

What fields mean is left to `messages`. Errors are in the words of the code that Kubernetes generates for
Go.
"""

from __future__ import annotations

VARINT, FIXED64, BYTES, START_GROUP, END_GROUP, FIXED32 = range(6)
_WORD = (1 << 64) - 1
_SIGN = 1 << 63


class MalformedProtobuf(ValueError):
    """This error says that the bytes are not valid; the message is the server's."""


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Read an unsigned 64-bit number and return it with its end; higher bits are dropped, as Go does."""
    value = shift = 0
    while True:
        if shift >= 64:
            raise MalformedProtobuf("proto: integer overflow")
        if at >= end:
            raise MalformedProtobuf("unexpected EOF")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _WORD, at
        shift += 7


def read_length_delimited(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return where a length-delimited value starts and ends."""
    size, at = read_varint(data, at, end)
    if size & _SIGN:
        raise MalformedProtobuf("proto: negative length found during unmarshaling")
    if size > end - at:
        raise MalformedProtobuf("unexpected EOF")
    return at, at + size


def skip_value(data: bytes, at: int, end: int, wire: int) -> int:
    """Return the end of a value whose tag has been read; nested groups are counted without recursion."""
    depth = 0
    while True:
        if wire == VARINT:
            _, at = read_varint(data, at, end)
        elif wire == BYTES:
            _, at = read_length_delimited(data, at, end)
        elif wire in (FIXED64, FIXED32):
            at += 8 if wire == FIXED64 else 4
            if at > end:
                raise MalformedProtobuf("unexpected EOF")
        elif wire == START_GROUP:
            depth += 1
        elif wire == END_GROUP:
            depth -= 1  # below zero cannot be: a group's end outside a group is refused before anything is skipped
        else:
            raise MalformedProtobuf(f"proto: illegal wireType {wire}")
        if depth == 0:
            return at
        tag, at = read_varint(data, at, end)
        wire = tag & 7


def to_signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
