"""This module handles resources embedded in custom objects: their metadata and type are those of objects."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from koord.embedded.apiserver.api_errors import ApiFieldError, invalid_value, required
from koord.embedded.apiserver.schema import builtin_decoding
from koord.embedded.apiserver.schema.builtin_types import OBJECT_META, builtin_types
from koord.embedded.apiserver.schema.schema_node import SchemaNode

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
