"""This module encodes and decodes protobuf messages as structs, by the types and numbers of their fields.

A struct has the fields that koord uses; all others are skipped when they are read. Structs nest, and none contains
itself, so bytes cannot nest deeper than the structs do. Whatever the bytes are, decoding ends with a message or with
a WireError.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Any, Generic, Protocol, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import msgspec

VARINT, FIXED64, BYTES, START_GROUP, END_GROUP, FIXED32 = range(6)
MAX_FIELD_NUMBER = (1 << 29) - 1
_MAX_VARINT_BYTES = 10
_WORD = (1 << 64) - 1
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
_TRUNCATED = "the message is truncated"

T = TypeVar("T")


class WireError(ValueError):
    """A WireError says why bytes do not follow their protocol, or why a value has no encoding."""


def read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the unsigned 64-bit number at `at`, and where it ends."""
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if at >= end:
            raise WireError(_TRUNCATED)
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value > _WORD:
                break
            return value, at
    raise WireError("a number has more than 64 bits")


def read_length_delimited(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return where the length-delimited value whose length is at `at` starts and ends."""
    size, at = read_varint(data, at, end)
    if size > end - at:
        raise WireError(_TRUNCATED)
    return at, at + size


def skip_value(data: bytes, at: int, end: int, wire: int) -> int:
    """Return where the value at `at` ends; nested groups are counted without recursion."""
    depth = 0
    while True:
        if wire == VARINT:
            _, at = read_varint(data, at, end)
        elif wire == BYTES:
            _, at = read_length_delimited(data, at, end)
        elif wire in _FIXED_SIZES:
            at += _FIXED_SIZES[wire]
            if at > end:
                raise WireError(_TRUNCATED)
        elif wire == START_GROUP:
            depth += 1
        else:  # read_tag lets no other wire type through
            depth -= 1
        if depth < 0:
            raise WireError("a group ends that did not begin")
        if depth == 0:
            return at
        _, wire, at = read_tag(data, at, end)


def read_tag(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Return the field number and wire type at `at`, and where the value begins."""
    tag, at = read_varint(data, at, end)
    number, wire = tag >> 3, tag & 7
    if not 1 <= number <= MAX_FIELD_NUMBER:
        raise WireError(f"{number} is no field number")
    if wire > FIXED32:
        raise WireError(f"field {number} has the unknown wire type {wire}")
    return number, wire, at


def write_varint(out: bytearray, value: int) -> None:
    """Append a number; a negative one takes ten bytes, as its two's complement."""
    value &= _WORD
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def write_length_delimited(out: bytearray, number: int, data: bytes | bytearray) -> None:
    """Append a length-delimited field with its tag."""
    write_varint(out, number << 3 | BYTES)
    write_varint(out, len(data))
    out += data


# Scalars ---------------------------------------------------------------------------------------------------------


class Scalar(Protocol):
    """A Scalar converts one scalar type of protobuf; `zero` is the value that is not written."""

    @property
    def wire(self) -> int: ...

    @property
    def zero(self) -> Any: ...

    def parse(self, raw: Any) -> Any:
        """Return the value of a number (VARINT) or of bytes (BYTES)."""

    def dump(self, value: Any) -> Any:
        """Return the number or the bytes to write; raises WireError for a value of another type or range."""


class IntegerScalar(msgspec.Struct, frozen=True):
    """IntegerScalar is a signed or unsigned integer of 32 or 64 bits; an enum is a signed one of 32."""

    bits: int
    signed: bool
    wire: int = VARINT
    zero: int = 0

    def parse(self, raw: int) -> int:
        raw &= (1 << self.bits) - 1
        return raw - (1 << self.bits) if self.signed and raw >> (self.bits - 1) else raw

    def dump(self, value: int) -> int:
        low, high = (-(1 << self.bits - 1), 1 << self.bits - 1) if self.signed else (0, 1 << self.bits)
        if not isinstance(value, int) or not low <= value < high:
            raise WireError(f"{value!r} is no {'' if self.signed else 'u'}int{self.bits}")
        return value


class BoolScalar(msgspec.Struct, frozen=True):
    wire: int = VARINT
    zero: bool = False

    def parse(self, raw: int) -> bool:
        return raw != 0

    def dump(self, value: bool) -> int:
        if not isinstance(value, bool):
            raise WireError(f"{value!r} is no bool")
        return int(value)


class StringScalar(msgspec.Struct, frozen=True):
    wire: int = BYTES
    zero: str = ""

    def parse(self, raw: bytes) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise WireError("a string is not UTF-8") from None

    def dump(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise WireError(f"{value!r} is no string")
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise WireError("a string has no UTF-8 encoding") from None


class BytesScalar(msgspec.Struct, frozen=True):
    wire: int = BYTES
    zero: bytes = b""

    def parse(self, raw: bytes) -> bytes:
        return raw

    def dump(self, value: bytes) -> bytes:
        if not isinstance(value, bytes):
            raise WireError(f"{value!r} is no bytes")
        return value


class ZigZagScalar(msgspec.Struct, frozen=True):
    """ZigZagScalar is a signed integer of 32 bits of which small negative values are short: sint32."""

    wire: int = VARINT
    zero: int = 0

    def parse(self, raw: int) -> int:
        raw &= (1 << 32) - 1
        return (raw >> 1) ^ -(raw & 1)

    def dump(self, value: int) -> int:
        value = INT32.dump(value)
        return (value << 1) ^ (value >> 31)


INT32, INT64 = IntegerScalar(32, True), IntegerScalar(64, True)
SINT32 = ZigZagScalar()
UINT32, UINT64 = IntegerScalar(32, False), IntegerScalar(64, False)
BOOL, STRING, DATA = BoolScalar(), StringScalar(), BytesScalar()
# Types of struct fields; those that Python tells apart by itself need no name of their own.
Int32: TypeAlias = Annotated[int, INT32]
Int64: TypeAlias = Annotated[int, INT64]
Uint32: TypeAlias = Annotated[int, UINT32]
Uint64: TypeAlias = Annotated[int, UINT64]
_PLAIN_SCALARS: dict[Any, Scalar] = {bool: BOOL, str: STRING, bytes: DATA}


# Fields ----------------------------------------------------------------------------------------------------------


class Field(Protocol):
    """A Field reads and writes one attribute of a struct."""

    @property
    def number(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def wire(self) -> int: ...

    def read(self, found: list[Any]) -> Any:
        """Return the attribute's value from all values of the field in a message; there is at least one."""

    def write(self, value: Any, out: bytearray) -> None: ...


class ScalarField(msgspec.Struct, frozen=True):
    """ScalarField is one scalar; of several the last counts, and the zero value is not written."""

    number: int
    name: str
    scalar: Scalar

    @property
    def wire(self) -> int:
        return self.scalar.wire

    def read(self, found: list[Any]) -> Any:
        return self.scalar.parse(found[-1])

    def write(self, value: Any, out: bytearray) -> None:
        raw = self.scalar.dump(value)
        if value == self.scalar.zero:
            return
        if self.scalar.wire == VARINT:
            write_varint(out, self.number << 3 | VARINT)
            write_varint(out, raw)
        else:
            write_length_delimited(out, self.number, raw)


class RequiredField(ScalarField, frozen=True):
    """RequiredField is one scalar that is written whatever it is, as proto2 demands of required fields."""

    def write(self, value: Any, out: bytearray) -> None:
        raw = self.scalar.dump(value)
        write_varint(out, self.number << 3 | self.scalar.wire)
        if self.scalar.wire == BYTES:
            write_varint(out, len(raw))
            out += raw
        else:
            write_varint(out, raw)


class IntegerListField(msgspec.Struct, frozen=True):
    """IntegerListField is a tuple of integers or enum values, each with its tag as proto2 writes them."""

    number: int
    name: str
    scalar: Scalar
    wire: int = VARINT

    def read(self, found: list[Any]) -> tuple[int, ...]:
        return tuple(self.scalar.parse(raw) for raw in found)

    def write(self, value: tuple[int, ...], out: bytearray) -> None:
        for one in value:
            write_varint(out, self.number << 3 | VARINT)
            write_varint(out, self.scalar.dump(one))


class StringListField(msgspec.Struct, frozen=True):
    """StringListField is a tuple of strings."""

    number: int
    name: str
    wire: int = BYTES

    def read(self, found: list[Any]) -> tuple[str, ...]:
        return tuple(STRING.parse(raw) for raw in found)

    def write(self, value: tuple[str, ...], out: bytearray) -> None:
        for text in value:
            write_length_delimited(out, self.number, STRING.dump(text))


class StringMapField(msgspec.Struct, frozen=True):
    """StringMapField is a dictionary of strings: a map field, or a list of messages with key 1 and value 2."""

    number: int
    name: str
    wire: int = BYTES

    def read(self, found: list[Any]) -> dict[str, str]:
        pairs = (_MAP_ENTRY.decode(raw) for raw in found)
        return {pair.key: pair.value for pair in pairs}

    def write(self, value: dict[str, str], out: bytearray) -> None:
        for key, text in value.items():
            write_length_delimited(out, self.number, _MAP_ENTRY.encode(_MapEntry(key, text)))


class SortedStringMapField(StringMapField, frozen=True):
    """SortedStringMapField writes equal maps as equal bytes, and states empty keys and values, as other encoders do."""

    def write(self, value: dict[str, str], out: bytearray) -> None:
        for key, text in sorted(value.items()):
            entry = bytearray()
            write_length_delimited(entry, 1, STRING.dump(key))
            write_length_delimited(entry, 2, STRING.dump(text))
            write_length_delimited(out, self.number, entry)


class NestedField(msgspec.Struct, frozen=True):
    """NestedField is one message or None; a message given several times has the fields of all."""

    number: int
    name: str
    codec: MessageCodec[Any]
    wire: int = BYTES

    def read(self, found: list[Any]) -> Any:
        return self.codec.decode(b"".join(found))

    def write(self, value: Any, out: bytearray) -> None:
        if value is not None:
            write_length_delimited(out, self.number, self.codec.encode(value))


class MessageListField(msgspec.Struct, frozen=True):
    """MessageListField is a tuple of messages."""

    number: int
    name: str
    codec: MessageCodec[Any]
    wire: int = BYTES

    def read(self, found: list[Any]) -> tuple[Any, ...]:
        return tuple(self.codec.decode(raw) for raw in found)

    def write(self, value: tuple[Any, ...], out: bytearray) -> None:
        for one in value:
            write_length_delimited(out, self.number, self.codec.encode(one))


class OptionalField(msgspec.Struct, frozen=True):
    """OptionalField is a scalar or None: a message whose presence says that it is set, with the scalar as field 1."""

    number: int
    name: str
    scalar: Scalar
    wire: int = BYTES

    def read(self, found: list[Any]) -> Any:
        inner = b"".join(found)
        values = [raw for number, raw in iterate_fields(inner, {1: self.scalar.wire}) if number == 1]
        return self.scalar.parse(values[-1]) if values else self.scalar.zero

    def write(self, value: Any, out: bytearray) -> None:
        if value is not None:
            inner = bytearray()
            ScalarField(1, self.name, self.scalar).write(value, inner)
            write_length_delimited(out, self.number, bytes(inner))


# Messages --------------------------------------------------------------------------------------------------------


def iterate_fields(data: bytes, wires: dict[int, int]) -> Iterator[tuple[int, Any]]:
    """Yield number and value of the fields in `wires`, which gives the wire type that each must have."""
    at, end = 0, len(data)
    while at < end:
        number, wire, at = read_tag(data, at, end)
        wanted = wires.get(number)
        if wanted is None:
            at = skip_value(data, at, end, wire)
        elif wire != wanted:
            raise WireError(f"field {number} has the wire type {wire} and not {wanted}")
        elif wire == VARINT:
            value, at = read_varint(data, at, end)
            yield number, value
        else:
            start, at = read_length_delimited(data, at, end)
            yield number, data[start:at]


class MessageCodec(Generic[T]):
    """A MessageCodec encodes and decodes one struct by its fields; `codec_of` makes it."""

    def __init__(self, struct: type[T], *fields: Field) -> None:
        self.struct = struct
        self._fields = {field.number: field for field in fields}
        self._wires = {field.number: field.wire for field in fields}
        assert len(self._fields) == len(fields), f"{struct.__name__} has two fields of one number"

    def decode(self, data: bytes) -> T:
        """Decode a message; raises WireError."""
        found: dict[int, list[Any]] = {}
        try:
            for number, value in iterate_fields(data, self._wires):
                found.setdefault(number, []).append(value)
        except WireError as error:
            raise WireError(f"{self.struct.__name__}: {error}") from None
        return self.struct(**{self._fields[number].name: self._read(number, raw) for number, raw in found.items()})

    def encode(self, value: T) -> bytes:
        """Encode a message; raises WireError where a value does not fit its field."""
        out = bytearray()
        for field in self._fields.values():
            try:
                field.write(getattr(value, field.name), out)
            except WireError as error:
                raise WireError(f"{self.struct.__name__}.{field.name}: {error}") from None
        return bytes(out)

    def _read(self, number: int, raw: list[Any]) -> Any:
        field = self._fields[number]
        try:
            return field.read(raw)
        except WireError as error:
            raise WireError(f"{self.struct.__name__}.{field.name}: {error}") from None


class _MapEntry(msgspec.Struct, frozen=True):
    key: str = ""
    value: str = ""


_MAP_ENTRY = MessageCodec(_MapEntry, ScalarField(1, "key", STRING), ScalarField(2, "value", STRING))


_CODECS: dict[type[Any], MessageCodec[Any]] = {}


def codec_of(struct: type[T]) -> MessageCodec[T]:
    """Return the codec of a struct whose fields have the numbers in its `field_numbers`, or 1 and on."""
    codec = _CODECS.get(struct)
    if codec is None:
        hints = get_type_hints(struct, include_extras=True)
        numbers = getattr(struct, "field_numbers", itertools.count(1))
        names: tuple[str, ...] = struct.__struct_fields__  # type: ignore[attr-defined]
        codec = MessageCodec(struct, *(_field(number, name, hints[name]) for number, name in zip(numbers, names)))
        _CODECS[struct] = codec
    return codec


def _field(number: int, name: str, hint: Any) -> Field:
    """Return the field for an attribute of a type; `| None` tells an absent scalar or message from an empty one."""
    args = get_args(hint)
    if NoneType in args:
        scalar = _scalar(args[0])
        return NestedField(number, name, codec_of(args[0])) if scalar is None else OptionalField(number, name, scalar)
    scalar = _scalar(hint)
    if scalar is not None:
        return ScalarField(number, name, scalar)
    if get_origin(hint) is tuple:
        if args[0] is str:
            return StringListField(number, name)
        return MessageListField(number, name, codec_of(args[0]))
    if get_origin(hint) is Annotated:
        field: Field = hint.__metadata__[0](number, name)
        return field
    return StringMapField(number, name) if get_origin(hint) is dict else NestedField(number, name, codec_of(hint))


def _scalar(hint: Any) -> Scalar | None:
    if get_origin(hint) is Annotated and isinstance(hint.__metadata__[0], IntegerScalar):
        return hint.__metadata__[0]
    return _PLAIN_SCALARS.get(hint)
