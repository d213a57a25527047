"""This module accepts custom objects that need no further processing, with one msgspec type per CRD schema.

An object that fits has no unknown field, no missing default, no null or number to normalize and no invalid value, so it
is stored as it came. One that does not fit may still be valid: the full walks (`prune`, `custom_validation`) decide.
"""

from __future__ import annotations

import functools
import keyword
from typing import Annotated, Any, Literal, Optional

import msgspec
from msgspec import Meta

from koord.embedded.apiserver.schema import string_formats
from koord.embedded.apiserver.schema.schema_node import SchemaNode, has_default
from koord.values import go_regexp

_INT64 = (1 << 63) - 1
_COMPILABLE_KEYWORDS = {
    "string": {"minLength", "maxLength", "pattern", "enum"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "enum"},
    "list": {"minItems", "maxItems"},
    "map": {"minProperties", "maxProperties"},
    "int-or-string": {"pattern", "anyOf"},
}


class _AnyJson:
    """This type accepts any JSON whose numbers are written back unchanged."""


class _NonNullJson:
    """This type accepts the same except null, for a field that the schema names, where null would be dropped."""


class _NormalizedNumber:
    """This type accepts a number that is written back unchanged."""


class _FormattedString(str):
    """This type accepts a string in the format that its subclass names."""

    __slots__ = ()
    name = ""


class _NotCompilable(Exception):
    """This exception says that msgspec cannot check a rule: the schema, or this part of it, is left to the walks."""


def fits_fast_path(obj: Any, node: SchemaNode) -> bool:
    """Return whether the object is valid and complete as it is, metadata and duplicate items apart."""
    target = _root_type(node)
    if target is None:
        return False
    try:
        msgspec.convert(obj, target, dec_hook=_check_marker)
    except msgspec.ValidationError:
        return False
    return True


def _check_marker(kind: type, value: Any) -> Any:
    """Check a value for one of the marker types above; msgspec needs an instance back, which is never used."""
    if issubclass(kind, _FormattedString):
        good = isinstance(value, str) and string_formats.has_format(kind.name, value)
    elif kind is _NormalizedNumber:
        good = isinstance(value, int | float) and not isinstance(value, bool) and _is_normalized(value)
    else:
        good = _is_normalized(value) and (kind is _AnyJson or value is not None)
    if not good:
        raise ValueError("needs a further look")
    return kind()


def _is_normalized(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_normalized, value.values()))
    if isinstance(value, list):
        return all(map(_is_normalized, value))
    if isinstance(value, float):
        return not value.is_integer() or abs(value) >= 1e21
    return isinstance(value, bool) or not isinstance(value, int) or -_INT64 <= value <= _INT64


@functools.lru_cache(maxsize=512)
def _root_type(node: SchemaNode) -> Any:
    """Return the type of a whole resource, or None when its schema cannot be compiled."""
    if node.kind not in ("object", "map") or node.rules or node.values is not None:
        return None
    try:
        meta = {"apiVersion": (str, msgspec.UNSET), "kind": (str, msgspec.UNSET), "metadata": (Any, msgspec.UNSET)}
        return _struct_type(node, meta)
    except _NotCompilable:
        return None


def _struct_type(node: SchemaNode, given: dict[str, tuple[Any, Any]]) -> Any:
    fields: list[Any] = []
    names: dict[str, str] = {}
    for at, key in enumerate({**given, **node.fields}):
        name = key if key.isidentifier() and not keyword.iskeyword(key) else f"field_{at}"
        names[name] = key
        if key in given:
            fields.append((name, *given[key]))
        elif key in node.required or has_default(node.fields[key]):  # a default must be put in, so absence is doubt
            fields.append((name, _field_type(node.fields[key])))
        else:
            fields.append((name, _field_type(node.fields[key]), msgspec.UNSET))
    return msgspec.defstruct("Custom", fields, rename=names, kw_only=True, forbid_unknown_fields=True)


def _field_type(node: SchemaNode) -> Any:
    kind = _non_null_type(node)
    # An enumeration holds for null as well.
    return Optional[kind] if node.nullable and "enum" not in node.rules else kind  # noqa: UP045 - built at run time


def _non_null_type(node: SchemaNode) -> Any:
    rules = node.rules
    if rules.keys() - _COMPILABLE_KEYWORDS.get(node.kind, set()) or node.embedded:
        raise _NotCompilable
    match node.kind:
        case "object" | "map" if node.preserve_unknown and not node.fields and node.values is None:
            return dict[str, _AnyJson]
        case "object" if not node.preserve_unknown and node.values is None:
            return _struct_type(node, {})
        case "map" if node.values is not None and not node.fields and not node.required:
            return Annotated[dict[str, _field_type(node.values)], _length_limits(rules, "Properties")]  # type: ignore[misc]
        case "list" if node.items is not None and not node.preserve_unknown:
            return Annotated[list[_field_type(node.items)], _length_limits(rules, "Items")]  # type: ignore[misc]
        case "string":
            return _string_type(node)
        case "integer":
            return _integer_type(rules)
        case "boolean":
            return bool
        case "number" if not node.format:
            return _NormalizedNumber
        case "int-or-string" if rules.get("anyOf") is None or _is_int_or_string_idiom(rules["anyOf"]):
            text = Annotated[str, Meta(pattern=_python_pattern(rules))] if "pattern" in rules else str
            return Annotated[int, Meta(ge=-_INT64 - 1, le=_INT64)] | text
        case "any" if node.preserve_unknown and not node.fields and node.items is None:
            return _NonNullJson
    raise _NotCompilable


def _is_int_or_string_idiom(options: list[SchemaNode]) -> bool:
    """Return whether the options are anyOf integer and string, which int-or-string implies."""
    return [o.kind for o in options] == ["integer", "string"] and not any(o.rules for o in options)


def _length_limits(rules: dict[str, Any], what: str) -> Meta:
    return Meta(min_length=rules.get(f"min{what}"), max_length=rules.get(f"max{what}"))


def _python_pattern(rules: dict[str, Any]) -> str:
    return go_regexp.compile_regexp(rules["pattern"]).pattern


def _string_type(node: SchemaNode) -> Any:
    rules = node.rules
    if node.format and string_formats.is_known_format(node.format):
        if rules:
            raise _NotCompilable
        return type("Formatted", (_FormattedString,), {"__slots__": (), "name": node.format})
    if "enum" in rules:
        if rules.keys() != {"enum"} or not all(isinstance(one, str) for one in rules["enum"]):
            raise _NotCompilable
        return Literal[tuple(rules["enum"])]
    pattern = _python_pattern(rules) if "pattern" in rules else None
    return Annotated[str, Meta(min_length=rules.get("minLength"), max_length=rules.get("maxLength"), pattern=pattern)]


def _integer_type(rules: dict[str, Any]) -> Any:
    if "enum" in rules:
        if rules.keys() != {"enum"} or not all(type(one) is int for one in rules["enum"]):
            raise _NotCompilable
        return Literal[tuple(rules["enum"])]
    if not all(type(rules[name]) in (int, bool) for name in rules):
        raise _NotCompilable
    low, high = rules.get("minimum"), rules.get("maximum")
    # Strict limits on integers are the next integers.
    low = -_INT64 - 1 if low is None else low + bool(rules.get("exclusiveMinimum"))
    high = _INT64 if high is None else high - bool(rules.get("exclusiveMaximum"))
    if rules.get("multipleOf") is not None and rules["multipleOf"] <= 0:
        raise _NotCompilable
    return Annotated[int, Meta(ge=low, le=high, multiple_of=rules.get("multipleOf"))]


@functools.lru_cache(maxsize=512)
def has_unique_lists(node: SchemaNode) -> bool:
    """Return whether some list below the node must not repeat its items."""
    if node.list_type in ("set", "map"):
        return True
    below = [*node.fields.values(), node.items, node.values]
    return any(has_unique_lists(n) for n in below if n is not None)
