"""This module validates the x-kubernetes list type, map type and preserve extensions of a CRD's schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from koord.embedded.apiserver.api_errors import ApiFieldError, forbidden_field, invalid_value, not_supported, required

Schema = Mapping[str, Any]


def extension_errors(schema: Schema, path: str) -> list[ApiFieldError]:
    """Return the errors of the extensions of one schema; the caller visits its subschemas."""
    return [
        *_preserve_and_map_type_errors(schema, path),
        *_list_type_errors(schema, path),
        *(_list_map_key_errors(schema, path) if schema.get("x-kubernetes-list-type") == "map" else ()),
        *_list_member_errors(schema, path),
    ]


def _wrong_type_error(schema: Schema, path: str, problem: str) -> ApiFieldError:
    kind = schema.get("type")
    return invalid_value(f"{path}.type", kind, problem) if kind else required(f"{path}.type", problem)


def _preserve_and_map_type_errors(schema: Schema, path: str) -> Iterator[ApiFieldError]:
    if schema.get("x-kubernetes-preserve-unknown-fields") is False:
        yield invalid_value(f"{path}.x-kubernetes-preserve-unknown-fields", False, "must be true or undefined")
    map_type = schema.get("x-kubernetes-map-type")
    if map_type is None:
        return
    if schema.get("type") != "object":
        yield _wrong_type_error(schema, path, "must be object if x-kubernetes-map-type is specified")
    if map_type not in ("atomic", "granular"):
        yield not_supported(f"{path}.x-kubernetes-map-type", map_type, ("atomic", "granular"))


def _list_type_errors(schema: Schema, path: str) -> Iterator[ApiFieldError]:
    list_type = schema.get("x-kubernetes-list-type")
    keys = schema.get("x-kubernetes-list-map-keys")
    if list_type is not None:
        if schema.get("type") != "array":
            yield _wrong_type_error(schema, path, "must be array if x-kubernetes-list-type is specified")
        elif list_type == "set" and isinstance(schema.get("items"), dict):
            yield from _set_item_errors(schema["items"], f"{path}.items")
        if list_type not in ("atomic", "set", "map"):
            yield not_supported(f"{path}.x-kubernetes-list-type", list_type, ("atomic", "set", "map"))
    if keys and list_type != "map":
        at, problem = f"{path}.x-kubernetes-list-type", "must be map if x-kubernetes-list-map-keys is non-empty"
        yield required(at, problem) if list_type is None else invalid_value(at, list_type, problem)


def _set_item_errors(items: Schema, path: str) -> Iterator[ApiFieldError]:
    problem = "must be atomic as item of a list with x-kubernetes-list-type=set"
    inner = items.get("x-kubernetes-list-type")
    if items.get("type") == "array" and inner not in (None, "atomic"):
        yield invalid_value(f"{path}.x-kubernetes-list-type", inner, problem)
    if items.get("type") == "object" and items.get("x-kubernetes-map-type") != "atomic":
        # The server shows the item's list type here, which an object does not have.
        yield invalid_value(f"{path}.x-kubernetes-map-type", inner, problem)


def _list_map_key_errors(schema: Schema, path: str) -> Iterator[ApiFieldError]:
    keys = schema.get("x-kubernetes-list-map-keys") or []
    items = schema.get("items")
    at = f"{path}.x-kubernetes-list-map-keys"
    if not keys:
        yield required(at, "must not be empty if x-kubernetes-list-type is map")
    if items is None:
        yield required(f"{path}.items", "must have a schema if x-kubernetes-list-type is map")
    if not isinstance(items, dict):
        return
    if items.get("type") != "object":
        problem = "must be object if parent array's x-kubernetes-list-type is map"
        yield invalid_value(f"{path}.items.type", items.get("type") or "", problem)
        return
    seen: set[str] = set()
    for key in keys:
        field = (items.get("properties") or {}).get(key)
        if field is None:
            yield invalid_value(at, keys, "entries must all be names of item properties")
        elif field.get("type") in ("array", "object"):
            problem = "must be a scalar type if parent array's x-kubernetes-list-type is map"
            yield invalid_value(f"{path}.items.properties[{key}].type", items["type"], problem)
        if key in seen:
            yield invalid_value(at, keys, "must not contain duplicate entries")
        seen.add(key)


def _list_member_errors(schema: Schema, path: str) -> Iterator[ApiFieldError]:
    """Yield errors where items of sets and list maps, or their keys, may be null or missing."""
    list_type, items = schema.get("x-kubernetes-list-type"), schema.get("items")
    if list_type not in ("set", "map") or not isinstance(items, dict):
        return
    if items.get("nullable"):
        problem = f"cannot be nullable when x-kubernetes-list-type is {list_type}"
        yield forbidden_field(f"{path}.items.nullable", problem)
    if list_type != "map":
        return
    for key in schema.get("x-kubernetes-list-map-keys") or []:
        field = (items.get("properties") or {}).get(key)
        if field is None:
            continue
        at = f"{path}.items.properties[{key}]"
        named = "this property is in x-kubernetes-list-map-keys, so it"
        if key not in (items.get("required") or ()) and field.get("default") is None:
            yield required(f"{at}.default", f"{named} must have a default or be a required property")
        if field.get("nullable"):
            yield forbidden_field(f"{at}.nullable", f"{named} cannot be nullable")
