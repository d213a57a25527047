"""These functions build protobuf bytes by hand, for tests that need bytes that no client would send."""

from __future__ import annotations

MAGIC = b"k8s\x00"


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def chunk(field: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    return MAGIC + chunk(1, chunk(1, api_version) + chunk(2, kind)) + chunk(2, raw)


def named(name: str) -> bytes:
    """Build metadata with a name, which is field 1 of field 1 in every kind."""
    return chunk(1, chunk(1, name))
