"""This module reads the protobuf wire format, and describes messages by the generated table of field numbers and JSON.

It also converts the types whose JSON is not their fields: times, quantities, IntOrString, raw JSON, schema unions.
Errors are in the words of the code that Kubernetes generates for Go.

Bodies have a prefix, an envelope with the kind, and the message. Messages become plain JSON values in one pass without
copies, whatever the bytes are.
"""

from __future__ import annotations

import base64
import functools
import gzip
import math
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from importlib import resources as package_files
from typing import Any, Literal

import msgspec

from koord.api.model import decode
from koord.embedded.apiserver.schema import builtin_types
from koord.kube.transport.interface import DECODE_ERRORS
from koord.values import duration, timestamp

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


# What fields mean -----------------------------------------------------------------------------------------------

MessageFields = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZERO_TIME = datetime(1, 1, 1, tzinfo=UTC)
RUNTIME_PACKAGE = "io.k8s.apimachinery.pkg.runtime."
RUNTIME_UNKNOWN = RUNTIME_PACKAGE + "Unknown"


def _timestamp(fields: MessageFields, microseconds: int) -> datetime:
    seconds = fields.get("seconds", 0)
    try:
        return _EPOCH + timedelta(seconds=seconds, microseconds=microseconds)
    except OverflowError:
        raise MalformedProtobuf(f"{seconds} seconds since 1970 is not in the years 1 to 9999") from None


def _time(fields: MessageFields) -> str | None:
    """Format a time in whole seconds; a time without any field was never set."""
    if not fields:
        return None
    moment = _timestamp(fields, 0)
    return None if moment == _ZERO_TIME else timestamp.text(moment)


def _micro_time(fields: MessageFields) -> str | None:
    if not fields:
        return None
    nanoseconds = fields.get("nanos", 0)
    moment = _timestamp(fields, nanoseconds // 1000 if nanoseconds >= 0 else -(-nanoseconds // 1000))
    return None if moment == _ZERO_TIME else timestamp.micro_text(moment)


def _duration(fields: MessageFields) -> str:
    return duration.text(fields.get("duration", 0))


def _quantity(fields: MessageFields) -> Any:
    return fields.get("string", "0")


def _int_or_string(fields: MessageFields) -> int | str:
    kind = fields.get("type", 0)
    if kind not in (0, 1):
        raise MalformedProtobuf("impossible IntOrString.Type")
    return str(fields.get("strVal", "")) if kind else int(fields.get("intVal", 0))


def _decode_json(raw: bytes) -> Any:
    if not raw:
        return None
    try:
        return decode(raw, object)
    except DECODE_ERRORS as error:
        raise MalformedProtobuf(f"json parse error: {error}") from None


def _schema_or_array(fields: MessageFields) -> Any:
    return fields.get("jSONSchemas") or fields.get("schema")


def _schema_or_bool(fields: MessageFields) -> Any:
    return fields["schema"] if "schema" in fields else fields.get("allows", False)


def _schema_or_strings(fields: MessageFields) -> Any:
    return fields.get("property") or fields.get("schema")


# In these, bytes stay bytes: elsewhere they become base64.
JSON_FORMS: Mapping[str, Callable[[MessageFields], Any]] = {
    RUNTIME_UNKNOWN: lambda fields: fields,
    builtin_types.TIME: _time,
    builtin_types.MICRO_TIME: _micro_time,
    builtin_types.META_V1 + "Duration": _duration,
    builtin_types.META_V1 + "FieldsV1": lambda fields: _decode_json(fields.get("Raw", b"")),
    builtin_types.QUANTITY: _quantity,
    builtin_types.INT_OR_STRING: _int_or_string,
    RUNTIME_PACKAGE + "RawExtension": lambda fields: _decode_json(fields.get("raw", b"")),
    builtin_types.JSON_SCHEMA.removesuffix("SchemaProps"): lambda fields: _decode_json(fields.get("raw", b"")),
    builtin_types.JSON_SCHEMA + "OrArray": _schema_or_array,
    builtin_types.JSON_SCHEMA + "OrBool": _schema_or_bool,
    builtin_types.JSON_SCHEMA + "OrStringArray": _schema_or_strings,
}


FieldShape = Literal["one", "list", "map"]
_REPLACEMENT = dict.fromkeys(range(0xDC80, 0xDD00), "\ufffd")


def decode_text(raw: bytes) -> str:
    """Decode UTF-8; each invalid byte becomes one replacement character, as when Go writes JSON."""
    try:
        return str(raw, "utf-8")
    except UnicodeDecodeError:
        return str(raw, "utf-8", "surrogateescape").translate(_REPLACEMENT)


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _decode_double(raw: bytes) -> int | float:
    """Decode a double; a whole one becomes an integer, which is how Go writes it and JSON is read back."""
    (value,) = struct.unpack("<d", raw)
    if not math.isfinite(value):
        raise MalformedProtobuf(f"json: unsupported value: {value}")
    return int(value) if value.is_integer() and abs(value) < 1e21 else float(value)


class ScalarType(msgspec.Struct, frozen=True):
    wire: int
    from_varint: Callable[[int], Any] = int  # for varints
    from_bytes: Callable[[bytes], Any] = bytes  # for the others


_STRING = ScalarType(BYTES, from_bytes=decode_text)
_SCALARS: Mapping[str, ScalarType] = {
    "string": _STRING,
    "bytes": ScalarType(BYTES, from_bytes=_base64),
    "bool": ScalarType(VARINT, from_varint=bool),
    "int32": ScalarType(VARINT, from_varint=lambda value: to_signed(value, 32)),
    "int64": ScalarType(VARINT, from_varint=lambda value: to_signed(value, 64)),
    "double": ScalarType(FIXED64, from_bytes=_decode_double),
}
_RAW = ScalarType(BYTES)


class MessageField(msgspec.Struct, frozen=True):
    name: str  # in JSON; empty when the fields of its message belong to the message around it
    go: str
    shape: FieldShape
    scalar: ScalarType | None  # None: a message
    message: str = ""

    @property
    def wire(self) -> int:
        return BYTES if self.shape == "map" or self.scalar is None else self.scalar.wire


class MessageType(msgspec.Struct, frozen=True):
    name: str  # as Go calls it
    fields: Mapping[int, MessageField]
    form: Callable[[dict[str, Any]], Any] | None  # how the fields become JSON, when they are not JSON themselves


class _FieldRow(msgspec.Struct, array_like=True):
    number: int
    json: str
    type: str
    go: str


class _MessageEntry(msgspec.Struct):
    fields: list[_FieldRow]
    wraps: bool = False


class MessageTable:
    """The MessageTable holds all messages by definition name, compiled on first use."""

    def __init__(self, table: bytes) -> None:
        self._entries = msgspec.json.decode(table, type=dict[str, _MessageEntry])
        self._compiled: dict[str, MessageType] = {}

    def __contains__(self, definition: str) -> bool:
        return definition in self._entries

    def message_type(self, definition: str) -> MessageType:
        found = self._compiled.get(definition)
        if found is None:
            found = self._compiled[definition] = self._compile(definition)
        return found

    def _compile(self, definition: str) -> MessageType:
        entry = self._entries[definition]
        form = (lambda fields: fields.get("items", [])) if entry.wraps else JSON_FORMS.get(definition)
        raw = definition in JSON_FORMS
        fields = {row.number: _field(row, raw) for row in entry.fields}
        return MessageType(definition.rpartition(".")[2], fields, form)


def _field(row: _FieldRow, raw: bool) -> MessageField:
    kind = row.type.lstrip("[]{}")
    shape: FieldShape = "list" if row.type.startswith("[]") else "map" if row.type.startswith("{}") else "one"
    scalar = _RAW if raw and kind == "bytes" else _SCALARS.get(kind)
    return MessageField(row.json, row.go, shape, scalar, "" if scalar else kind)


@functools.cache
def message_table() -> MessageTable:
    packed = package_files.files(__package__).joinpath("messages.json.gz").read_bytes()
    return MessageTable(gzip.decompress(packed))


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
        return builtin_types.META_V1 + kind
    return builtin_types.builtin_types().definition_name(group, version, kind) or _UNSERVED_DEFINITIONS.get(
        (group, version, kind)
    )
