"""This module validates the schema of a CRD as the API server does when the CRD is written.

Two passes run in the server's order: the structure that makes a schema structural, with its defaults, then
the keywords and extensions. Rules in CEL (x-kubernetes-validations) are checked last: one that names what is not
there, or that would take too long, is rejected.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from koord.embedded.apiserver.api_errors import ApiFieldError, forbidden_field, invalid_value, not_supported, required
from koord.embedded.apiserver.schema import custom_decoding, string_formats
from koord.embedded.apiserver.schema.custom_decoding import TYPE_AND_METADATA, prune
from koord.embedded.apiserver.schema.custom_validation import validate_custom
from koord.embedded.apiserver.schema.schema_node import SchemaNode, compile_schema, has_default
from koord.embedded.apiserver.schema.validation_rules import definition_rule_errors
from koord.values import go_regexp


def default_errors(node: SchemaNode, path: str, *, root: bool = True) -> list[ApiFieldError]:
    """Return the errors of every default below a compiled schema; those of type and metadata are rejected elsewhere."""
    errors = _single_default_errors(node, f"{path}.default") if has_default(node) else []
    if node.items is not None:
        errors += default_errors(node.items, f"{path}.items", root=False)
    for key, field in node.fields.items():
        if key in TYPE_AND_METADATA and (root or node.embedded):
            continue
        errors += default_errors(field, f"{path}.properties[{key}]", root=False)
    return errors


def _single_default_errors(node: SchemaNode, path: str) -> list[ApiFieldError]:
    value = copy.deepcopy(node.default)
    if prune(value, node, root=node.embedded):
        return [invalid_value(path, custom_decoding.with_sorted_keys(node.default), "must not have unknown fields")]
    try:
        custom_decoding.coerce_embedded_metadata(value, node, path)
    except custom_decoding.EmbeddedMetadataError as stop:
        return [stop.error]
    return validate_custom(node.default, node, path)


Schema = Mapping[str, Any]

# With one version, or several with one schema, the server speaks of the schema at this place.
SHARED_SCHEMA_PATH = "spec.validation.openAPIV3Schema"

_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_UNSUPPORTED_KEYWORDS = ("id", "additionalItems", "patternProperties", "definitions", "dependencies", "$ref")
# What a schema may say at the root when status is a subresource, under the names that the message lists.
_ROOT_WITH_STATUS = (
    "Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern "
    "MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields "
    "XValidations"
)
_EXTENSION_NAMES = {
    "x-kubernetes-preserve-unknown-fields": "XPreserveUnknownFields",
    "x-kubernetes-validations": "XValidations",
}


def crd_schema_errors(schema: Schema, path: str = SHARED_SCHEMA_PATH, *, status: bool = False) -> list[ApiFieldError]:
    """Return every error of one openAPIV3Schema; `status`: the version has the status subresource."""
    errors = _root_errors(schema, path, status=status)
    if not _has_unsupported(schema):
        found = sorted(_structural_errors(schema, "root", path), key=str)
        found += [] if found else default_errors(compile_schema(schema), path)
        errors += found
    errors += _openapi_errors(schema, path, root=True)
    return errors if errors else list(definition_rule_errors(compile_schema(schema), path))


def crd_schema_warnings(schema: Schema) -> list[str]:
    """Return the warnings of an accepted schema: string formats that the server does not check."""
    found: list[str] = []
    for sub in _subschemas(schema):
        form = sub.get("format")
        if sub.get("type") == "string" and form and not string_formats.is_known_format(form):
            found.append(f'unrecognized format "{form}"')
    return found


def _subschemas(schema: Schema) -> Iterator[Schema]:
    yield schema
    for _, sub in _child_schemas(schema, ""):
        yield from _subschemas(sub)


def _child_schemas(schema: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    """Yield the direct subschemas with their paths."""
    for key in sorted(schema.get("properties") or {}):
        yield f"{path}.properties[{key}]", schema["properties"][key]
    for name in ("additionalProperties", "items", "not"):
        if isinstance(schema.get(name), dict):
            yield f"{path}.{name}", schema[name]
    for name in ("allOf", "oneOf", "anyOf"):
        for at, sub in enumerate(schema.get(name) or ()):
            yield f"{path}.{name}[{at}]", sub


def _has_unsupported(schema: Schema) -> bool:
    """Return whether the schema has no structural form to check; the second pass then reports the reason."""
    return any(
        any(sub.get(name) for name in (*_UNSUPPORTED_KEYWORDS, "$schema"))
        or isinstance(sub.get("items"), list)
        or sub.get("x-kubernetes-preserve-unknown-fields") is False
        for sub in _subschemas(schema)
    )


def _root_errors(schema: Schema, path: str, *, status: bool) -> list[ApiFieldError]:
    errors: list[ApiFieldError] = []
    if status:
        allowed = _ROOT_WITH_STATUS.split()
        for name, value in schema.items():
            title = _EXTENSION_NAMES.get(name, name[:1].upper() + name[1:])
            if title not in allowed and value not in (None, "", False, [], {}):
                where = "at the root of the schema if the status subresource is enabled"
                problem = f"only [{_ROOT_WITH_STATUS}] fields are allowed {where}"
                errors.append(invalid_value(path, dict(schema), problem))
                break
        if schema.get("type") not in (None, "", "object"):
            problem = (
                'only "object" is allowed as the type at the root of the schema if the status subresource is enabled'
            )
            errors.append(invalid_value(f"{path}.type", schema["type"], problem))
    if schema.get("nullable"):
        errors.append(forbidden_field(f"{path}.nullable", "nullable cannot be true at the root"))
    return errors


_MISSING_TYPE = {
    "root": "must not be empty at the root",
    "item": "must not be empty for specified array items",
    "field": "must not be empty for specified object fields",
}


def _structural_errors(schema: Schema, level: str, path: str) -> Iterator[ApiFieldError]:
    """Yield structural errors; `level` is root, item or field and decides the message about a missing type."""
    kind = schema.get("type") or ""
    items = schema.get("items")
    if kind == "array" and not items and items != {}:
        yield required(f"{path}.items", "must be specified")
    if isinstance(items, dict):
        yield from _structural_errors(items, "item", f"{path}.items")
    fields = schema.get("properties") or {}
    for key, sub in fields.items():
        yield from _structural_errors(sub, "field", f"{path}.properties[{key}]")
    if schema.get("additionalProperties") is not None:
        if level == "root":
            yield forbidden_field(f"{path}.additionalProperties", "must not be used at the root")
        if isinstance(schema["additionalProperties"], dict):
            yield from _structural_errors(schema["additionalProperties"], "field", f"{path}.additionalProperties")
    yield from _extension_conflict_errors(schema, path)
    yield from _value_validation_errors(schema, path)
    yield from _resource_field_errors(schema, level, path)
    if level == "root":
        yield from _completeness_errors(schema, schema, path, path)


def _extension_conflict_errors(schema: Schema, path: str) -> Iterator[ApiFieldError]:
    if schema.get("x-kubernetes-int-or-string"):
        for name in ("x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource"):
            if schema.get(name):
                yield invalid_value(f"{path}.{name}", True, "must be false if x-kubernetes-int-or-string is true")


def _resource_field_errors(schema: Schema, level: str, path: str) -> Iterator[ApiFieldError]:
    kind = schema.get("type") or ""
    fields = schema.get("properties") or {}
    inner = bool(schema.get("x-kubernetes-embedded-resource"))
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
    if inner and kind != "object":
        problem = "must be object if x-kubernetes-embedded-resource is true"
        yield invalid_value(f"{path}.type", kind, problem) if kind else required(f"{path}.type", problem)
    elif not kind and not schema.get("x-kubernetes-int-or-string") and not open_ended:
        yield required(f"{path}.type", _MISSING_TYPE[level])
    if inner and schema.get("additionalProperties") is not None:
        problem = "must not be used if x-kubernetes-embedded-resource is set"
        yield forbidden_field(f"{path}.additionalProperties", problem)
    if level == "root" and kind not in ("", "object"):
        yield invalid_value(f"{path}.type", kind, "must be object at the root")
    if inner or level == "root":
        for key in ("kind", "apiVersion"):
            if key in fields and fields[key].get("type") != "string":
                at = f"{path}.properties[{key}].type"
                yield invalid_value(at, fields[key].get("type") or "", "must be string")
        if "metadata" in fields and fields["metadata"].get("type") != "object":
            at = f"{path}.properties[metadata].type"
            yield invalid_value(at, fields["metadata"].get("type") or "", "must be object")
    if level == "root" and "metadata" in fields and not _restricts_only_names(fields["metadata"]):
        problem = "must not specify anything other than name and generateName, but metadata is implicitly specified"
        yield forbidden_field(f"{path}.properties[metadata]", problem)
    if inner and not open_ended and not fields:
        problem = (
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields"
        )
        yield required(f"{path}.properties", problem)


def _restricts_only_names(metadata: Schema) -> bool:
    if set(metadata.get("properties") or {}) - {"name", "generateName"}:
        return False
    # A description counts as a restriction; a type and a default are validated elsewhere.
    return not any(v for k, v in metadata.items() if k not in ("type", "default", "properties"))


_NESTED_FORBIDDEN = (
    ("type", "must be empty to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    ("x-kubernetes-preserve-unknown-fields", "must be false to be structural"),
    ("x-kubernetes-embedded-resource", "must be false to be structural"),
    ("x-kubernetes-int-or-string", "must be false to be structural"),
    ("x-kubernetes-list-map-keys", "must be empty to be structural"),
    ("x-kubernetes-list-type", "must be undefined to be structural"),
    ("x-kubernetes-map-type", "must be undefined to be structural"),
    ("x-kubernetes-validations", "must be empty to be structural"),
)
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]


def _value_validation_errors(
    schema: Schema, path: str, *, skip_any: bool = False, nested: bool = False
) -> Iterator[ApiFieldError]:
    """Yield errors of combinators, which restrict values but describe no structure, int-or-string idioms apart."""
    skip_any = skip_any or (not nested and schema.get("anyOf") == _INT_OR_STRING)
    all_of = schema.get("allOf") or ()
    for at, sub in enumerate(() if skip_any else schema.get("anyOf") or ()):
        yield from _nested_value_errors(sub, f"{path}.anyOf[{at}]")
    for at, sub in enumerate(all_of):
        idiom = not nested and at == 0 and sub.get("anyOf") == _INT_OR_STRING
        yield from _nested_value_errors(sub, f"{path}.allOf[{at}]", skip_any=idiom)
    for at, sub in enumerate(schema.get("oneOf") or ()):
        yield from _nested_value_errors(sub, f"{path}.oneOf[{at}]")
    if schema.get("not") is not None:
        yield from _nested_value_errors(schema["not"], f"{path}.not")
    pattern = schema.get("pattern")
    if pattern and (problem := go_regexp.regexp_error(pattern)):
        yield invalid_value(f"{path}.pattern", pattern, f"must be a valid regular expression, but isn't: {problem}")


def _nested_value_errors(schema: Schema, path: str, *, skip_any: bool = False) -> Iterator[ApiFieldError]:
    yield from _value_validation_errors(schema, path, skip_any=skip_any, nested=True)
    if isinstance(schema.get("items"), dict):
        yield from _nested_value_errors(schema["items"], f"{path}.items")
    for key, sub in (schema.get("properties") or {}).items():
        yield from _nested_value_errors(sub, f"{path}.properties[{key}]")
    for name, problem in _NESTED_FORBIDDEN:
        if schema.get(name) not in (None, "", False, []):
            yield forbidden_field(f"{path}.{name}", problem)
    if "metadata" in (schema.get("properties") or {}):
        yield forbidden_field(f"{path}.properties[metadata]", "must not be specified in a nested context")


def _completeness_errors(rules: Schema, schema: Schema | None, at: str, path: str) -> Iterator[ApiFieldError]:
    """Yield an error for each field that a combinator restricts and that is not described outside of it."""
    for name in ("allOf", "anyOf", "oneOf", "not"):
        found = rules.get(name)
        for index, sub in enumerate([found] if isinstance(found, dict) else found or ()):
            where = f"{path}.{name}" if name == "not" else f"{path}.{name}[{index}]"
            yield from _coverage_errors(sub, schema, at, where)


def _coverage_errors(rules: Schema, schema: Schema | None, at: str, path: str) -> Iterator[ApiFieldError]:
    if schema is None:
        yield required(at, f"because it is defined in {path}")
        return
    yield from _completeness_errors(rules, schema, at, path)
    if isinstance(rules.get("items"), dict):
        yield from _coverage_errors(rules["items"], schema.get("items"), f"{at}.items", f"{path}.items")
    for key, sub in (rules.get("properties") or {}).items():
        place, where = f"{at}.properties[{key}]", f"{path}.properties[{key}]"
        yield from _coverage_errors(sub, (schema.get("properties") or {}).get(key), place, where)


def _openapi_errors(
    schema: Schema, path: str, *, root: bool = False, no_default: str = "", inside_meta: bool = False
) -> list[ApiFieldError]:
    """Return the errors of the second pass: unsupported keywords, and the rules of the extensions."""
    errors = list(_keyword_errors(schema, path, no_default, inside_meta=inside_meta))
    more = schema.get("additionalProperties")
    if schema.get("uniqueItems"):
        problem = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        errors.append(forbidden_field(f"{path}.uniqueItems", problem))
    if more is not None and more is not True and schema.get("properties"):
        problem = "additionalProperties and properties are mutual exclusive"
        errors.append(forbidden_field(f"{path}.additionalProperties", problem))
    for where, sub in _child_schemas(schema, path):
        reason, meta = no_default, inside_meta
        name = (
            where.removeprefix(f"{path}.properties[").removesuffix("]") if ".properties[" in where[len(path) :] else ""
        )
        if name in ("apiVersion", "kind", "metadata") and (root or schema.get("x-kubernetes-embedded-resource")):
            meta = True
            reason = f"must not be set in top-level {name}" if root else reason
        elif where == f"{path}.additionalProperties" and inside_meta:
            reason = "must not be set inside additionalProperties applying to object metadata"
        errors += _openapi_errors(sub, where, no_default=reason, inside_meta=meta)
    errors += extension_errors(schema, path)
    return errors


def _keyword_errors(schema: Schema, path: str, no_default: str, *, inside_meta: bool) -> Iterator[ApiFieldError]:
    kind = schema.get("type") or ""
    if kind and kind not in _TYPES:
        yield not_supported(f"{path}.type", kind, _TYPES)
    if schema.get("default") is not None and no_default:
        yield forbidden_field(f"{path}.default", no_default)
    for name in _UNSUPPORTED_KEYWORDS:
        if schema.get(name) not in (None, "", {}):
            yield forbidden_field(f"{path}.{name}", f"{name} is not supported")
    if kind == "null":
        yield forbidden_field(f"{path}.type", "type cannot be set to null, use nullable as an alternative")
    if isinstance(schema.get("items"), list):
        yield forbidden_field(f"{path}.items", "items must be a schema object and not an array")
    if inside_meta and schema.get("x-kubernetes-embedded-resource"):
        yield forbidden_field(f"{path}.x-kubernetes-embedded-resource", "must not be used inside of resource meta")


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
