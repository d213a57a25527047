"""These classes describe messages and their fields."""

from __future__ import annotations

import base64
import functools
import gzip
import math
import struct
from collections.abc import Callable, Mapping
from importlib import resources as package_files
from typing import Any, Literal

import msgspec

from koord.embedded.apiserver.protobuf.form import FORMS
from koord.embedded.apiserver.protobuf.wire import BYTES, FIXED64, VARINT, Malformed, signed

Shape = Literal["one", "list", "map"]
_LOST = dict.fromkeys(range(0xDC80, 0xDD00), "\ufffd")


def text(raw: bytes) -> str:
    """Decode UTF-8; each invalid byte becomes one replacement character, as when Go writes JSON."""
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        return str(raw, "utf-8", "surrogateescape").translate(_LOST)


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _number(raw: bytes) -> int | float:
    """Decode a double; a whole one becomes an integer, which is how Go writes it and JSON is read back."""
    (value,) = struct.unpack("<d", raw)
    if not math.isfinite(value):
        raise Malformed(f"json: unsupported value: {value}")
    return int(value) if value.is_integer() and abs(value) < 1e21 else float(value)


class Scalar(msgspec.Struct, frozen=True):
    wire: int
    of_number: Callable[[int], Any] = int  # for varints
    of_bytes: Callable[[bytes], Any] = bytes  # for the others


_STRING = Scalar(BYTES, of_bytes=text)
_SCALARS: Mapping[str, Scalar] = {
    "string": _STRING,
    "bytes": Scalar(BYTES, of_bytes=_base64),
    "bool": Scalar(VARINT, of_number=bool),
    "int32": Scalar(VARINT, of_number=lambda value: signed(value, 32)),
    "int64": Scalar(VARINT, of_number=lambda value: signed(value, 64)),
    "double": Scalar(FIXED64, of_bytes=_number),
}
_RAW = Scalar(BYTES)


class Field(msgspec.Struct, frozen=True):
    name: str  # in JSON; empty when the fields of its message belong to the message around it
    go: str
    shape: Shape
    scalar: Scalar | None  # None: a message
    message: str = ""

    @property
    def wire(self) -> int:
        return BYTES if self.shape == "map" or self.scalar is None else self.scalar.wire


class Message(msgspec.Struct, frozen=True):
    name: str  # as Go calls it
    fields: Mapping[int, Field]
    form: Callable[[dict[str, Any]], Any] | None  # how the fields become JSON, when they are not JSON themselves


class _Row(msgspec.Struct, array_like=True):
    number: int
    json: str
    type: str
    go: str


class _Entry(msgspec.Struct):
    fields: list[_Row]
    wraps: bool = False


class Messages:
    """The MessageTable holds all messages by definition name, compiled on first use."""

    def __init__(self, table: bytes) -> None:
        self._entries = msgspec.json.decode(table, type=dict[str, _Entry])
        self._compiled: dict[str, Message] = {}

    def __contains__(self, definition: str) -> bool:
        return definition in self._entries

    def of(self, definition: str) -> Message:
        found = self._compiled.get(definition)
        if found is None:
            found = self._compiled[definition] = self._compile(definition)
        return found

    def _compile(self, definition: str) -> Message:
        entry = self._entries[definition]
        form = (lambda fields: fields.get("items", [])) if entry.wraps else FORMS.get(definition)
        raw = definition in FORMS
        fields = {row.number: _field(row, raw) for row in entry.fields}
        return Message(definition.rpartition(".")[2], fields, form)


def _field(row: _Row, raw: bool) -> Field:
    kind = row.type.lstrip("[]{}")
    shape: Shape = "list" if row.type.startswith("[]") else "map" if row.type.startswith("{}") else "one"
    scalar = _RAW if raw and kind == "bytes" else _SCALARS.get(kind)
    return Field(row.json, row.go, shape, scalar, "" if scalar else kind)


@functools.cache
def messages() -> Messages:
    packed = package_files.files(__package__).joinpath("messages.json.gz").read_bytes()
    return Messages(gzip.decompress(packed))
