"""This module decodes custom objects: metadata, pruning of unknown fields, defaults, dropping of nulls.

It also collects the errors of strict decoding. Values are validated by `custom_validation`. The metadata and type of
resources embedded in custom objects are those of objects.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from koord.embedded.apiserver.api_errors import ApiFieldError, invalid_value, required
from koord.embedded.apiserver.schema import builtin_decoding
from koord.embedded.apiserver.schema.builtin_decoding import DecodeResult
from koord.embedded.apiserver.schema.builtin_types import OBJECT_META, builtin_types
from koord.embedded.apiserver.schema.custom_fast_path import fits_fast_path
from koord.embedded.apiserver.schema.schema_node import SchemaNode, has_default

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
