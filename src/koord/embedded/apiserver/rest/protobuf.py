"""Bodies in Kubernetes' protobuf, which kubectl sends for the kinds that it knows: read into plain JSON values.

Only requests: every client that sends protobuf also takes JSON back. Numbers of fields come from the generated table of
built-in kinds; kinds that are not in it (custom ones) have no protobuf form in Kubernetes either.
"""

from __future__ import annotations

import base64
import functools
import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from koord.embedded.apiserver.schema.builtin import MICRO_TIME, SCHEMA_UNIONS, TIME, builtin
from koord.embedded.apiserver.schema.node import Node

MEDIA_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIGN_BIT = 1 << 63
_YEAR_1, _YEAR_10000 = -62_135_596_800, 253_402_300_800  # in Unix seconds


class Malformed(ValueError):
    """The bytes are not what they claim to be."""


class Unreadable(ValueError):
    """A kind that has no protobuf form here."""


def parse(raw: bytes) -> dict[str, Any]:
    """The object in an envelope (`runtime.Unknown`): plain JSON with kind and apiVersion."""
    if raw[:4] != _MAGIC:
        raise Malformed("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
    envelope = dict(_fields(memoryview(raw)[4:]))
    type_meta = dict(_fields(envelope.get(1, memoryview(b""))))
    api_version, kind = _text(type_meta.get(1, b"")), _text(type_meta.get(2, b""))
    group, _, version = api_version.rpartition("/")
    reader = _reader_of(group, version, kind)
    if reader is None:
        raise Unreadable(f'no kind "{kind}" is registered for version "{api_version}" in scheme')
    return {"kind": kind, "apiVersion": api_version, **reader(envelope.get(2, memoryview(b"")))}


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """Field numbers and raw values of one message: integers for varints, memory for everything else."""
    data = _memory(data)
    at, end = 0, len(data)
    try:
        while at < end:
            key, at = _varint(data, at)
            wire = key & 7
            if wire == _VARINT:
                value, at = _varint(data, at)
                yield key >> 3, value
                continue
            if wire == _BYTES:
                size, at = _varint(data, at)
            elif wire in (_FIXED64, _FIXED32):
                size = 8 if wire == _FIXED64 else 4
            else:
                raise Malformed(f"proto: illegal wireType {wire}")
            if at + size > end:
                raise Malformed("unexpected EOF")
            yield key >> 3, data[at : at + size]
            at += size
    except IndexError:
        raise Malformed("unexpected EOF") from None


def _varint(data: Any, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
        if shift > 63:
            raise Malformed("proto: integer overflow")


def _memory(value: Any) -> Any:
    if isinstance(value, int):
        raise Malformed("proto: wrong wireType")
    return value


def _text(value: Any) -> str:
    try:
        return str(_memory(value), "utf-8")
    except UnicodeDecodeError:
        raise Malformed("proto: invalid UTF-8") from None


def _integer(value: Any) -> int:
    if not isinstance(value, int):
        raise Malformed("proto: wrong wireType")
    return value - (1 << 64) if value & _SIGN_BIT else value


# A reader turns the raw values of one field, in the order in which they came, into a JSON value.
Reader = Callable[[Any], Any]


@functools.lru_cache(maxsize=256)
def _reader_of(group: str, version: str, kind: str) -> Reader | None:
    name = builtin().definition_name(group, version, kind)
    return None if name is None else _message(name)


@functools.lru_cache(maxsize=1024)
def _message(name: str) -> Reader:
    """The reader of one definition. Fields are looked up when it first runs: types may contain themselves."""
    plan: dict[int, Any] = {}

    def read(data: Any) -> dict[str, Any]:
        if not plan:
            plan.update(_plan(name))
        found: dict[str, Any] = {}
        _read_into(found, data, plan)
        return found

    return read


def _plan(name: str) -> dict[int, Any]:
    """Field number -> (JSON name, node), or a nested plan where Go inlines a struct that protobuf does not."""
    plan: dict[int, Any] = {}
    node = builtin().definition(name)
    for key, entry in builtin().table(name).get("fields", {}).items():
        if "pb" not in entry:
            continue
        *outer, last = map(int, entry["pb"].split("."))
        place = plan
        for number in outer:
            place = place.setdefault(number, {})
        place[last] = (key, node.fields[key])
    return plan


def _read_into(found: dict[str, Any], data: Any, plan: dict[int, Any]) -> None:
    for number, raw in _fields(data):
        known = plan.get(number)
        if known is None:
            continue  # a field of a newer client
        if isinstance(known, dict):
            _read_into(found, raw, known)
            continue
        key, node = known
        if node.kind == "list" and node.format != "byte":
            found.setdefault(key, []).extend(_items(raw, node.items))
        elif node.kind == "map":
            entry = dict(_fields(raw))
            found.setdefault(key, {})[_text(entry.get(1, b""))] = _map_value(entry.get(2), node)
        else:
            found[key] = _value(raw, node)


def _items(raw: Any, node: Node) -> list[Any]:
    """One item; or several numbers in one value, where a client packs them."""
    if node.kind == "integer" and not isinstance(raw, int):
        at, packed = 0, []
        while at < len(raw):
            value, at = _varint(raw, at)
            packed.append(_integer(value))
        return packed
    return [_value(raw, node)]


def _map_value(raw: Any, node: Node) -> Any:
    values = node.values
    assert values is not None, "a map has a value type"
    if raw is None:
        raw = b"" if values.kind != "integer" else 0
    if values.kind == "list":  # a list inside a map is a message around it (ExtraValue)
        return [_text(item) for _, item in _fields(raw)]
    return _value(raw, values)


def _value(raw: Any, node: Node) -> Any:
    kind = node.kind
    if kind == "string":
        if node.go_type in (TIME, MICRO_TIME):
            return _time(raw, micro=node.go_type == MICRO_TIME)
        return base64.b64encode(_memory(raw)).decode() if node.format == "byte" else _text(raw)
    if kind == "integer":
        return _integer(raw)
    if kind == "boolean":
        return bool(_integer(raw))
    if kind == "object":
        return _message(node.go_type)(raw)
    if kind == "quantity":
        return _text(dict(_fields(raw)).get(1, b"")) or "0"
    if kind == "int-or-string":
        parts = dict(_fields(raw))
        return _text(parts.get(3, b"")) if parts.get(1) else _integer(parts.get(2, 0))
    if kind == "number":
        if len(_memory(raw)) != 8:
            raise Malformed("proto: wrong wireType")
        return struct.unpack("<d", raw)[0]
    return _open(raw, node)


def _open(raw: Any, node: Node) -> Any:
    """RawExtension, FieldsV1 and JSON: JSON text inside a message."""
    if node.go_type in SCHEMA_UNIONS:
        raise Unreadable("schemas of custom resources are read from JSON and YAML only")
    content = _memory(dict(_fields(raw)).get(1, b""))
    try:
        return msgspec.json.decode(content) if len(content) else None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(str(error)) from None


def _time(raw: Any, *, micro: bool) -> str | None:
    parts = dict(_fields(raw))
    if not parts:
        return None
    seconds, nanos = _integer(parts.get(1, 0)), _integer(parts.get(2, 0))
    if not _YEAR_1 <= seconds < _YEAR_10000 or not 0 <= nanos < 1_000_000_000:
        raise Malformed("proto: time out of range")
    moment = datetime.fromtimestamp(0, UTC) + timedelta(seconds=seconds)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")  # years below 1000 have four digits on the wire
    return f"{text}.{nanos // 1000:06d}Z" if micro else f"{text}Z"
