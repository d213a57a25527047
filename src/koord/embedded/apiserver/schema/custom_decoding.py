"""This module decodes custom objects: metadata, pruning, defaults and dropped nulls, with a fast path for objects
that need none of it.

It also collects the errors of strict decoding. Values are validated by `custom_validation`. The metadata and type of
resources embedded in custom objects are those of objects.
"""

from __future__ import annotations

import copy
import functools
import keyword
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Optional

import msgspec
from msgspec import Meta

from koord.embedded.apiserver.api_errors import ApiFieldError, invalid_value, required
from koord.embedded.apiserver.schema import builtin_decoding, string_formats
from koord.embedded.apiserver.schema.builtin_decoding import DecodeResult
from koord.embedded.apiserver.schema.builtin_types import OBJECT_META, builtin_types
from koord.embedded.apiserver.schema.schema_node import SchemaNode, has_default
from koord.values import go_regexp

# This module accepts custom objects that need no further processing, with one msgspec type per CRD schema.
#
# An object that fits has no unknown field, no missing default, no null or number to normalize and no invalid value,
# so it is stored as it came. One that does not fit may still be valid: the full walks (`prune`, `custom_validation`)
# decide.

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


TYPE_AND_METADATA = frozenset(("apiVersion", "kind", "metadata"))


def prune(obj: Any, node: SchemaNode, *, root: bool = True) -> list[str]:
    """Prune the object in place and return the sorted paths of the removed fields.

    `root`: the object is a resource, so its apiVersion, kind and metadata stay whatever the schema says.
    """
    gone: list[str] = []
    _prune(obj, node, "", gone, resource=root or node.embedded)
    return sorted(gone)


def _prune(value: Any, node: SchemaNode | None, path: str, gone: list[str], *, resource: bool) -> None:
    if isinstance(value, dict):
        _prune_object(value, node, path, gone, resource=resource)
    elif isinstance(value, list):
        if node is not None and node.preserve_unknown:
            # Inside a free list only free items stay free: the rule is inherited one level at a time.
            for at, item in enumerate(value):
                if node.items is not None:
                    _prune_preserved_item(item, node.items, f"{path}[{at}]", gone)
            return
        items = node.items if node is not None else None
        for at, item in enumerate(value):
            _prune(item, items, f"{path}[{at}]", gone, resource=items is not None and items.embedded)


def _prune_object(
    value: dict[str, Any], node: SchemaNode | None, path: str, gone: list[str], *, resource: bool
) -> None:
    free = node is not None and node.preserve_unknown
    for key in list(value):
        if resource and key in TYPE_AND_METADATA:
            continue
        at = f"{path}.{key}" if path else key
        known = node.fields.get(key, node.values) if node is not None else None
        if known is not None:
            _prune(value[key], _known_or_none(known), at, gone, resource=known.embedded)
        elif not free:
            if path or key not in TYPE_AND_METADATA:
                gone.append(at)
            del value[key]


def _prune_preserved_item(value: Any, node: SchemaNode, path: str, gone: list[str]) -> None:
    """Prune the known fields inside an item of a list that preserves unknown fields; the item keeps its own."""
    if isinstance(value, dict):
        for key, item in value.items():
            if node.embedded and key in TYPE_AND_METADATA:
                continue
            known = node.fields.get(key, node.values)
            if known is not None:
                _prune(item, _known_or_none(known), f"{path}.{key}", gone, resource=known.embedded)
    elif isinstance(value, list) and node.items is not None:
        for at, item in enumerate(value):
            _prune_preserved_item(item, node.items, f"{path}[{at}]", gone)


def _known_or_none(node: SchemaNode) -> SchemaNode | None:
    """Return None for `additionalProperties: true`, which allows a value without saying what is in it."""
    blank = node.kind == "any" and not (node.preserve_unknown or node.fields or node.items or node.values)
    return None if blank else node


def drop_nulls(value: Any, node: SchemaNode | None) -> None:
    """Remove map entries that are null where the schema neither allows null nor has a default."""
    if isinstance(value, dict):
        for key in list(value):
            known = node.fields.get(key, node.values) if node is not None else None
            if value[key] is None and known is not None and not known.nullable and not has_default(known):
                if _known_or_none(known) is not None:
                    del value[key]
            else:
                drop_nulls(value[key], known)
    elif isinstance(value, list):
        for item in value:
            drop_nulls(item, node.items if node is not None else None)


def apply_defaults(value: Any, node: SchemaNode | None) -> None:
    """Apply defaults in place where a value is absent, or null against the schema; defaults are defaulted in turn."""
    if node is None:
        return
    if isinstance(value, dict):
        for key, field in node.fields.items():
            if has_default(field) and (key not in value or (value[key] is None and not field.nullable)):
                value[key] = copy.deepcopy(field.default)
        for key, item in value.items():
            known = node.fields.get(key)
            if known is None and node.values is not None:
                known = node.values
                if item is None and not known.nullable and has_default(known):
                    value[key] = copy.deepcopy(known.default)
            apply_defaults(value[key], known)
    elif isinstance(value, list) and node.items is not None:
        for at, item in enumerate(value):
            if item is None and not node.items.nullable and has_default(node.items):
                value[at] = copy.deepcopy(node.items.default)
            apply_defaults(value[at], node.items)


def decode_custom(obj: dict[str, Any], node: SchemaNode, *, preserve: bool = False) -> DecodeResult:
    """Return the object as the server stores it; the argument stays. `preserve`: the CRD keeps unknown fields."""
    if not preserve and fits_fast_path(obj, node):
        return _decode_unchanged(obj)
    return decode_custom_by_walk(obj, node, preserve=preserve)


def decode_custom_by_walk(obj: dict[str, Any], node: SchemaNode, *, preserve: bool = False) -> DecodeResult:
    out = normalize_numbers(obj)
    unknown: list[str] = []
    if "metadata" in out:
        meta = decode_object_meta(out["metadata"])
        if meta.error:
            return DecodeResult(None, (), meta.error)
        out["metadata"] = meta.value
        unknown += [f"metadata.{name}" for name in unknown_field_paths(meta.unknown)]
    if not preserve:
        unknown += prune(out, node)
    apply_defaults(out, node)
    if not preserve:
        drop_nulls(out, node)
    try:
        unknown += coerce_embedded_metadata(out, node)
    except EmbeddedMetadataError as stop:
        return DecodeResult(None, (), str(stop))
    return DecodeResult(out, tuple(f'unknown field "{path}"' for path in unknown))


def _decode_unchanged(obj: dict[str, Any]) -> DecodeResult:
    out: dict[str, Any] = msgspec.to_builtins(obj)
    if "metadata" not in out:
        return DecodeResult(out)
    meta = decode_object_meta(out["metadata"])
    if meta.error:
        return DecodeResult(None, (), meta.error)
    out["metadata"] = meta.value
    return DecodeResult(out, tuple(f'unknown field "metadata.{name}"' for name in unknown_field_paths(meta.unknown)))


def normalize_numbers(value: Any) -> Any:
    """Return a private copy in which a float without a fraction is an integer, which is how Go writes it back."""
    if isinstance(value, dict):
        return {k: normalize_numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [normalize_numbers(v) for v in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    return value


_LABEL = "[a-z]([-a-z0-9]*[a-z0-9])?"
_BAD_KIND = (
    "may have mixed case, but should otherwise match: a DNS-1035 label must consist of lower case alphanumeric "
    "characters or '-', start with an alphabetic character, and end with an alphanumeric character "
    f"(e.g. 'my-name',  or 'abc-123', regex used for validation is '{_LABEL}')"
)


class EmbeddedMetadataError(Exception):
    """This error says that embedded metadata or type cannot be decoded; it fails the request at once."""

    def __init__(self, error: ApiFieldError) -> None:
        super().__init__(str(error))
        self.error = error


def _embedded_resources(value: Any, node: SchemaNode | None, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield every embedded resource with its path, outer ones first."""
    if node is None:
        return
    if isinstance(value, dict):
        if node.embedded:
            yield value, path
        for key in sorted(value):
            known = node.fields.get(key)
            if known is not None:
                yield from _embedded_resources(value[key], known, f"{path}.{key}" if path else key)
            elif node.values is not None:
                yield from _embedded_resources(value[key], node.values, f"{path}[{key}]")
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _embedded_resources(item, node.items, f"{path}[{at}]")


def coerce_embedded_metadata(value: Any, node: SchemaNode | None, path: str = "") -> list[str]:
    """Decode embedded metadata as ObjectMeta in place, and return the paths of its unknown fields."""
    return [name for found, at in _embedded_resources(value, node, path) for name in _coerce_metadata(found, at)]


def _coerce_metadata(value: dict[str, Any], path: str) -> list[str]:
    for key in ("apiVersion", "kind"):
        if key in value and not isinstance(value[key], str):
            raise EmbeddedMetadataError(invalid_value(f"{path}.{key}", value[key], "must be a string"))
    if "metadata" not in value:
        return []
    found = decode_object_meta(value["metadata"])
    if found.error:
        raise EmbeddedMetadataError(invalid_value(f"{path}.metadata", with_sorted_keys(value["metadata"]), found.error))
    value["metadata"] = found.value
    return [f"{path}.metadata.{name}" for name in unknown_field_paths(found.unknown)]


def decode_object_meta(metadata: Any) -> builtin_decoding.DecodeResult:
    """Decode ObjectMeta as Go does, with sorted keys, because the server decodes them in that order."""
    if isinstance(metadata, dict):
        metadata = dict(sorted(metadata.items()))
    if metadata is None:
        metadata = {}
    return builtin_decoding.decode_builtin(metadata, builtin_types().definition_node(OBJECT_META))


def with_sorted_keys(value: Any) -> Any:
    """Return the value with sorted keys, as Go prints a map inside a message."""
    return msgspec.json.decode(msgspec.json.encode(value, order="sorted"))


def unknown_field_paths(messages: tuple[str, ...]) -> list[str]:
    return [m.removeprefix('unknown field "').removesuffix('"') for m in messages]


def embedded_resource_errors(value: Any, node: SchemaNode | None, path: str) -> list[ApiFieldError]:
    """Return the errors of the apiVersion and kind of embedded resources; their names are left to each kind."""
    return [
        error
        for found, at in _embedded_resources(value, node, path)
        for error in _api_version_and_kind_errors(found, at)
    ]


def _api_version_and_kind_errors(value: dict[str, Any], path: str) -> list[ApiFieldError]:
    errors = [required(f"{path}.{key}") for key in ("apiVersion", "kind") if key not in value]
    version, kind = value.get("apiVersion"), value.get("kind")
    for key, text in (("apiVersion", version), ("kind", kind)):
        if key in value and not isinstance(text, str):
            errors.append(invalid_value(f"{path}.{key}", text, "must be a string"))
        elif text == "":
            errors.append(invalid_value(f"{path}.{key}", text, "must not be empty"))
    if isinstance(version, str) and version.count("/") > 1:
        errors.append(invalid_value(f"{path}.apiVersion", version, f"unexpected GroupVersion string: {version}"))
    if isinstance(kind, str) and kind and not (len(kind) <= 63 and re.fullmatch(_LABEL, kind.lower())):
        errors.append(invalid_value(f"{path}.kind", kind, _BAD_KIND))
    return errors
