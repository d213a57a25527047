"""These functions decode ordinary objects of built-in kinds with one msgspec Struct per type."""

from __future__ import annotations

import functools
import keyword
from typing import Annotated, Any, Optional

import msgspec
from msgspec import Meta

from koord.embedded.apiserver.schema.builtin import MICRO_TIME
from koord.embedded.apiserver.schema.node import Node
from koord.embedded.apiserver.schema.scalar import CANONICAL_MICROSECONDS, CANONICAL_SECONDS, canonical_quantity


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
_ZEROS: dict[str, type] = {"string": str, "integer": int, "boolean": bool}


class _NoCompiledForm(Exception):
    """This exception says that the type contains itself or has its own JSON form: only the walk can decode it."""


def _read(kind: type, value: Any) -> Any:
    if kind is _Quantity and value is not None:
        return _Quantity(canonical_quantity(value))
    raise ValueError("not for the quick way")


def convert(value: Any, node: Node) -> Any:
    """Return the decoded object, or None when the fast path does not apply."""
    target = _compiled(node)
    if target is None:
        return None
    try:
        return msgspec.to_builtins(msgspec.convert(value, target, dec_hook=_read), enc_hook=str)
    except msgspec.ValidationError:
        return None


@functools.lru_cache(maxsize=1024)
def _compiled(node: Node) -> Any:
    """Return the Struct of a root node, or None when some type in it cannot be compiled."""
    if node.kind != "object" or not node.go_type:
        return None
    try:
        return _structs().of(node, ())
    except _NoCompiledForm:
        return None


class _Structs:
    """This cache holds compiled Structs by definition name, so that types shared by many kinds are compiled once."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def of(self, node: Node, above: tuple[str, ...]) -> Any:
        """Return the Struct of a node.

        `above` are the types being compiled around it, to detect a type that contains itself.
        """
        if node.go_type in self._known:
            return self._known[node.go_type]
        if node.go_type in above or not node.go_type:
            raise _NoCompiledForm(node.go_type)
        fields: list[tuple[str, Any, Any]] = []
        names: dict[str, str] = {}
        for position, (key, field) in enumerate(node.fields.items()):
            name = key if key.isidentifier() and not keyword.iskeyword(key) else f"field_{position}"
            names[name] = key
            fields.append((name, *_slot(field, (*above, node.go_type))))
        title = node.go_type.rpartition(".")[2]
        built = msgspec.defstruct(title, fields, rename=names, omit_defaults=True, forbid_unknown_fields=True)
        self._known[node.go_type] = built
        return built


@functools.cache
def _structs() -> _Structs:
    return _Structs()


def _always(default: Any) -> Any:
    """Return a default that msgspec's omit_defaults does not recognise, so that the field is always written."""
    return msgspec.field(default_factory=default)


def _nothing() -> None:
    return None


def _slot(field: Node, above: tuple[str, ...]) -> tuple[Any, Any]:
    """Return the type and default of one field; the default decides whether an empty value is written."""
    kind = _type(field, above)
    if field.pointer:
        return Optional[kind], None if field.omit_empty else _always(_nothing)  # noqa: UP045 - built at run time
    if field.kind == "list" or field.kind == "map":
        if field.omit_empty:
            return kind, msgspec.field(default_factory=list if field.kind == "list" else dict)
        return Optional[Annotated[kind, Meta(min_length=1)]], _always(_nothing)  # noqa: UP045
    if field.kind == "object":
        if field.omit_zero:
            raise _NoCompiledForm(field.go_type)
        return kind, _always(kind)
    if field.kind == "string" and field.go_type:  # a time that is not a pointer: absent is written as null
        return Optional[kind], None if field.omit_zero else _always(_nothing)  # noqa: UP045
    if field.kind in _ZEROS:
        zero = _ZEROS[field.kind]
        return kind, zero() if field.omit_empty else _always(zero)
    if field.kind == "quantity":
        return kind, _always(lambda: "0")
    if field.kind == "int-or-string":
        return kind, _always(int)
    if field.kind == "any":
        return Any, _always(_nothing)
    raise _NoCompiledForm(f"{field.kind} {field.go}")


def _type(node: Node, above: tuple[str, ...]) -> Any:
    match node.kind:
        case "object":
            return _structs().of(node, above)
        case "list":
            assert node.items is not None, "a list has an item type"
            return list[_element(node.items, above)]  # type: ignore[misc]
        case "map":
            assert node.values is not None, "a map has a value type"
            return dict[str, _element(node.values, above)]  # type: ignore[misc]
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
    raise _NoCompiledForm(f"{node.kind} {node.go}")


def _element(node: Node, above: tuple[str, ...]) -> Any:
    if node.pointer:
        raise _NoCompiledForm(node.go)
    return _type(node, above)
