"""This module decodes ordinary objects of built-in kinds in C, with one msgspec Struct per type.

A compiled type accepts only input whose round trip it can reproduce exactly; anything else (unknown fields, nulls,
wrong types, times in another zone) makes it decline, and the walk in `builtin_decoding` gives the full answer. The
canonical wire forms of quantities and times are defined here as well; koord.values parses them.
"""

from __future__ import annotations

import functools
import keyword
from typing import Annotated, Any, Optional

import msgspec
from msgspec import Meta

from koord.embedded.apiserver.schema.builtin_types import MICRO_TIME
from koord.embedded.apiserver.schema.schema_node import SchemaNode
from koord.values import timestamp
from koord.values.quantity import Quantity

# Times in exactly the form that comes back. The 29th of February is left to the real parser, which knows the years.
_DAY = (
    "((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
    "|(0[13-9]|1[0-2])-(29|30)"
    "|(0[13578]|1[02])-31)"
)  # fmt: skip
_TIME_PREFIX = rf"^(?!0001-01-01T00:00:00)(?!0000)[0-9]{{4}}-{_DAY}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
CANONICAL_SECONDS = _TIME_PREFIX + r"Z$"
CANONICAL_MICROSECONDS = _TIME_PREFIX + r"\.[0-9]{6}Z$"
_ZERO_TIME = timestamp.parse("0001-01-01T00:00:00Z")


def canonical_quantity(value: Any) -> str:
    """Return a quantity as the server writes it back: `1000m` becomes `1`, `1024Mi` becomes `1Gi`.

    Raises ValueError in the server's words for what is not a quantity.
    """
    if isinstance(value, str) or (isinstance(value, int | float) and not isinstance(value, bool)):
        return str(Quantity.parse(value))
    # Go hands the JSON text itself to the parser, whatever it is.
    return str(Quantity.parse(msgspec.json.encode(value).decode()))


def canonical_time(text: str, *, micro: bool) -> str | None:
    """Return a time in UTC with whole seconds, or six decimals for MicroTime. None for the zero time (null)."""
    moment = timestamp.parse_micro(text) if micro else timestamp.parse(text)
    if moment == _ZERO_TIME:
        return None
    return timestamp.micro_text(moment) if micro else timestamp.text(moment)


class _Quantity(str):
    """This type marks a quantity field, so that msgspec calls the decode hook for it."""

    __slots__ = ()


_INT32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]
_INT64 = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_BASE64 = Annotated[
    str, Meta(pattern=r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$")
]
_SECONDS = Annotated[str, Meta(pattern=CANONICAL_SECONDS)]
_MICROSECONDS = Annotated[str, Meta(pattern=CANONICAL_MICROSECONDS)]
_ZERO_TYPES: dict[str, type] = {"string": str, "integer": int, "boolean": bool}


class _NotCompilable(Exception):
    """This exception says that the type contains itself or has its own JSON form: only the walk can decode it."""


def _decode_quantity(kind: type, value: Any) -> Any:
    if kind is _Quantity and value is not None:
        return _Quantity(canonical_quantity(value))
    raise ValueError("not for the quick way")


def decode_fast(value: Any, node: SchemaNode) -> Any:
    """Return the decoded object, or None when the fast path does not apply."""
    target = _root_struct(node)
    if target is None:
        return None
    try:
        return msgspec.to_builtins(msgspec.convert(value, target, dec_hook=_decode_quantity), enc_hook=str)
    except msgspec.ValidationError:
        return None


@functools.lru_cache(maxsize=1024)
def _root_struct(node: SchemaNode) -> Any:
    """Return the Struct of a root node, or None when some type in it cannot be compiled."""
    if node.kind != "object" or not node.go_type:
        return None
    try:
        return _struct_cache().struct_for(node, ())
    except _NotCompilable:
        return None


class _StructCache:
    """This cache holds compiled Structs by definition name, so that types shared by many kinds are compiled once."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def struct_for(self, node: SchemaNode, above: tuple[str, ...]) -> Any:
        """Return the Struct of a node. `above` are the types compiled around it, to detect one that contains itself."""
        if node.go_type in self._known:
            return self._known[node.go_type]
        if node.go_type in above or not node.go_type:
            raise _NotCompilable(node.go_type)
        fields: list[tuple[str, Any, Any]] = []
        names: dict[str, str] = {}
        for position, (key, field) in enumerate(node.fields.items()):
            name = key if key.isidentifier() and not keyword.iskeyword(key) else f"field_{position}"
            names[name] = key
            fields.append((name, *_field_type_and_default(field, (*above, node.go_type))))
        title = node.go_type.rpartition(".")[2]
        built = msgspec.defstruct(title, fields, rename=names, omit_defaults=True, forbid_unknown_fields=True)
        self._known[node.go_type] = built
        return built


@functools.cache
def _struct_cache() -> _StructCache:
    return _StructCache()


def _always_written(default: Any) -> Any:
    """Return a default that msgspec's omit_defaults does not recognise, so that the field is always written."""
    return msgspec.field(default_factory=default)


def _none() -> None:
    return None


def _field_type_and_default(field: SchemaNode, above: tuple[str, ...]) -> tuple[Any, Any]:
    """Return the type and default of one field; the default decides whether an empty value is written."""
    kind = _msgspec_type(field, above)
    if field.pointer:
        return Optional[kind], None if field.omit_empty else _always_written(_none)  # noqa: UP045 - built at run time
    if field.kind == "list" or field.kind == "map":
        if field.omit_empty:
            return kind, msgspec.field(default_factory=list if field.kind == "list" else dict)
        return Optional[Annotated[kind, Meta(min_length=1)]], _always_written(_none)  # noqa: UP045
    if field.kind == "object":
        if field.omit_zero:
            raise _NotCompilable(field.go_type)
        return kind, _always_written(kind)
    if field.kind == "string" and field.go_type:  # a time that is not a pointer: absent is written as null
        return Optional[kind], None if field.omit_zero else _always_written(_none)  # noqa: UP045
    if field.kind in _ZERO_TYPES:
        zero = _ZERO_TYPES[field.kind]
        return kind, zero() if field.omit_empty else _always_written(zero)
    if field.kind == "quantity":
        return kind, _always_written(lambda: "0")
    if field.kind == "int-or-string":
        return kind, _always_written(int)
    if field.kind == "any":
        return Any, _always_written(_none)
    raise _NotCompilable(f"{field.kind} {field.go}")


def _msgspec_type(node: SchemaNode, above: tuple[str, ...]) -> Any:
    match node.kind:
        case "object":
            return _struct_cache().struct_for(node, above)
        case "list":
            assert node.items is not None, "a list has an item type"
            return list[_element_type(node.items, above)]  # type: ignore[misc]
        case "map":
            assert node.values is not None, "a map has a value type"
            return dict[str, _element_type(node.values, above)]  # type: ignore[misc]
        case "string" if node.format == "byte":
            return _BASE64
        case "string" if node.go_type:
            return _MICROSECONDS if node.go_type == MICRO_TIME else _SECONDS
        case "string":
            return str
        case "integer":
            return _INT64 if node.format == "int64" else _INT32
        case "boolean":
            return bool
        case "quantity":
            return _Quantity
        case "int-or-string":
            return _INT32 | str
        case "any" if node.go_type.endswith(("RawExtension", "FieldsV1")):
            return Any
    raise _NotCompilable(f"{node.kind} {node.go}")


def _element_type(node: SchemaNode, above: tuple[str, ...]) -> Any:
    if node.pointer:
        raise _NotCompilable(node.go)
    return _msgspec_type(node, above)
