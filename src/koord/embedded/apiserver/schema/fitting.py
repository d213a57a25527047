"""This module accepts custom objects that need no further processing, with one msgspec type per CRD schema.

An object that fits has no unknown field, no missing default, no null or number to normalize and no invalid
value, so it is stored as it came. One that does not fit may still be valid: the full walks (`prune`,
`custom_validation`) decide.
"""

from __future__ import annotations

import functools
import keyword
from typing import Annotated, Any, Literal, Optional

import msgspec
from msgspec import Meta

from koord.embedded.apiserver.schema import formats, goregex
from koord.embedded.apiserver.schema.node import Node
from koord.embedded.apiserver.schema.structural import has_default

_INT64 = (1 << 63) - 1
_KNOWN_RULES = {
    "string": {"minLength", "maxLength", "pattern", "enum"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum"},
    "list": {"minItems", "maxItems"},
    "map": {"minProperties", "maxProperties"},
    "int-or-string": {"pattern", "anyOf"},
}


class _Free:
    """This type accepts any JSON whose numbers are written back unchanged."""


class _Settled:
    """This type accepts the same except null, for a field that the schema names, where null would be dropped."""


class _Number:
    """This type accepts a number that is written back unchanged."""


class _Formatted(str):
    """This type accepts a string in the format that its subclass names."""

    __slots__ = ()
    name = ""


class _Beyond(Exception):
    """This exception says that msgspec cannot check a rule: the schema, or this part of it, is left to the walks."""


def fits(obj: Any, node: Node) -> bool:
    """Return whether the object is valid and complete as it is.

    Metadata and duplicates in set and map lists are not checked.
    """
    target = _root(node)
    if target is None:
        return False
    try:
        msgspec.convert(obj, target, dec_hook=_read)
    except msgspec.ValidationError:
        return False
    return True


def _read(kind: type, value: Any) -> Any:
    """Check a value for one of the marker types above; msgspec needs an instance back, which is never used."""
    if issubclass(kind, _Formatted):
        good = isinstance(value, str) and formats.fits(kind.name, value)
    elif kind is _Number:
        good = isinstance(value, int | float) and not isinstance(value, bool) and _is_settled(value)
    else:
        good = _is_settled(value) and (kind is _Free or value is not None)
    if not good:
        raise ValueError("needs a further look")
    return kind()


def _is_settled(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_settled, value.values()))
    if isinstance(value, list):
        return all(map(_is_settled, value))
    if isinstance(value, float):
        return not value.is_integer() or abs(value) >= 1e21
    return isinstance(value, bool) or not isinstance(value, int) or -_INT64 <= value <= _INT64


@functools.lru_cache(maxsize=512)
def _root(node: Node) -> Any:
    """Return the type of a whole resource, or None when its schema cannot be compiled."""
    if node.kind not in ("object", "map") or node.rules or node.values is not None:
        return None
    try:
        meta = {"apiVersion": (str, msgspec.UNSET), "kind": (str, msgspec.UNSET), "metadata": (Any, msgspec.UNSET)}
        return _struct(node, meta)
    except _Beyond:
        return None


def _struct(node: Node, given: dict[str, tuple[Any, Any]]) -> Any:
    fields: list[Any] = []
    names: dict[str, str] = {}
    for at, key in enumerate({**given, **node.fields}):
        name = key if key.isidentifier() and not keyword.iskeyword(key) else f"field_{at}"
        names[name] = key
        if key in given:
            fields.append((name, *given[key]))
        elif key in node.required or has_default(node.fields[key]):  # a default must be put in, so absence is doubt
            fields.append((name, _type(node.fields[key])))
        else:
            fields.append((name, _type(node.fields[key]), msgspec.UNSET))
    return msgspec.defstruct("Custom", fields, rename=names, kw_only=True, forbid_unknown_fields=True)


def _type(node: Node) -> Any:
    kind = _plain(node)
    # An enumeration holds for null as well.
    return Optional[kind] if node.nullable and "enum" not in node.rules else kind  # noqa: UP045 - built at run time


def _plain(node: Node) -> Any:
    rules = node.rules
    if rules.keys() - _KNOWN_RULES.get(node.kind, set()) or node.embedded:
        raise _Beyond
    match node.kind:
        case "object" | "map" if node.preserve_unknown and not node.fields and node.values is None:
            return dict[str, _Free]
        case "object" if not node.preserve_unknown and node.values is None:
            return _struct(node, {})
        case "map" if node.values is not None and not node.fields and not node.required:
            return Annotated[dict[str, _type(node.values)], _sizes(rules, "Properties")]  # type: ignore[misc]
        case "list" if node.items is not None and not node.preserve_unknown:
            return Annotated[list[_type(node.items)], _sizes(rules, "Items")]  # type: ignore[misc]
        case "string":
            return _string(node)
        case "integer":
            return _integer(rules)
        case "boolean":
            return bool
        case "number" if not node.format:
            return _Number
        case "int-or-string" if rules.get("anyOf") is None or _is_idiom(rules["anyOf"]):
            text = Annotated[str, Meta(pattern=_pattern(rules))] if "pattern" in rules else str
            return Annotated[int, Meta(ge=-_INT64 - 1, le=_INT64)] | text
        case "any" if node.preserve_unknown and not node.fields and node.items is None:
            return _Settled
    raise _Beyond


def _is_idiom(options: list[Node]) -> bool:
    """Return whether the options are anyOf integer and string, which int-or-string implies."""
    return [o.kind for o in options] == ["integer", "string"] and not any(o.rules for o in options)


def _sizes(rules: dict[str, Any], what: str) -> Meta:
    return Meta(min_length=rules.get(f"min{what}"), max_length=rules.get(f"max{what}"))


def _pattern(rules: dict[str, Any]) -> str:
    return goregex.compiled(rules["pattern"]).pattern


def _string(node: Node) -> Any:
    rules = node.rules
    if node.format and formats.known(node.format):
        if rules:
            raise _Beyond
        return type("Formatted", (_Formatted,), {"__slots__": (), "name": node.format})
    if "enum" in rules:
        if rules.keys() != {"enum"} or not all(isinstance(one, str) for one in rules["enum"]):
            raise _Beyond
        return Literal[tuple(rules["enum"])]
    pattern = _pattern(rules) if "pattern" in rules else None
    return Annotated[str, Meta(min_length=rules.get("minLength"), max_length=rules.get("maxLength"), pattern=pattern)]


def _integer(rules: dict[str, Any]) -> Any:
    if "enum" in rules:
        if rules.keys() != {"enum"} or not all(type(one) is int for one in rules["enum"]):
            raise _Beyond
        return Literal[tuple(rules["enum"])]
    if not all(type(rules[name]) in (int, bool) for name in rules):
        raise _Beyond
    low, high = rules.get("minimum"), rules.get("maximum")
    # Strict limits on integers are the next integers.
    low = -_INT64 - 1 if low is None else low + bool(rules.get("exclusiveMinimum"))
    high = _INT64 if high is None else high - bool(rules.get("exclusiveMaximum"))
    if rules.get("multipleOf") is not None and rules["multipleOf"] <= 0:
        raise _Beyond
    return Annotated[int, Meta(ge=low, le=high, multiple_of=rules.get("multipleOf"))]


@functools.lru_cache(maxsize=512)
def has_identities(node: Node) -> bool:
    """Return whether some list below the node must not repeat its items."""
    if node.list_type in ("set", "map"):
        return True
    below = [*node.fields.values(), node.items, node.values]
    return any(has_identities(n) for n in below if n is not None)
