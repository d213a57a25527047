"""These functions compile the openAPIV3Schema of a CRD version into nodes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from koord.embedded.apiserver.schema.node import Kind, Node

Schema = Mapping[str, Any]

_KINDS: dict[str, Kind] = {
    "object": "object",
    "array": "list",
    "string": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
}
# Rules that apply to a value as it is; the combinators are compiled to nodes of their own.
_PLAIN_RULES = (
    "maximum",
    "exclusiveMaximum",
    "minimum",
    "exclusiveMinimum",
    "maxLength",
    "minLength",
    "pattern",
    "maxItems",
    "minItems",
    "uniqueItems",
    "multipleOf",
    "maxProperties",
    "minProperties",
    "enum",
)


def compile_schema(schema: Schema) -> Node:
    """Compile a schema that has passed `crd_validation` into nodes.

    Combinators (anyOf, ...) become nodes inside `rules`.
    """
    node = Node(kind=_kind(schema))
    node.fields = {key: compile_schema(sub) for key, sub in (schema.get("properties") or {}).items()}
    node.required = tuple(schema.get("required") or ())
    node.format = schema.get("format") or ""
    node.nullable = bool(schema.get("nullable"))
    node.preserve_unknown = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    node.embedded = bool(schema.get("x-kubernetes-embedded-resource"))
    node.atomic = schema.get("x-kubernetes-map-type") == "atomic"
    node.list_type = schema.get("x-kubernetes-list-type") or "atomic"
    node.list_keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
    if schema.get("default") is not None:  # a null default is no default
        node.default = copy.deepcopy(schema["default"])
    if isinstance(schema.get("items"), dict):
        node.items = compile_schema(schema["items"])
    node.rules = {rule: schema[rule] for rule in _PLAIN_RULES if schema.get(rule) not in (None, "", False, [])}
    _compile_additional(schema, node)
    for combinator in ("allOf", "anyOf", "oneOf"):
        if schema.get(combinator):
            node.rules[combinator] = [compile_schema(sub) for sub in schema[combinator]]
    if schema.get("not") is not None:
        node.rules["not"] = compile_schema(schema["not"])
    return node


def _kind(schema: Schema) -> Kind:
    if schema.get("x-kubernetes-int-or-string"):
        return "int-or-string"
    if not schema.get("type"):
        return "any"
    if schema["type"] == "object" and not schema.get("properties") and schema.get("additionalProperties") is not None:
        return "map"
    return _KINDS.get(schema["type"], "any")  # a type that does not exist is reported by soundness


def _compile_additional(schema: Schema, node: Node) -> None:
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        node.values = compile_schema(more)
    elif more is True:
        # Any value may stand here, but nothing is known of what is inside it, so pruning empties it.
        node.values = Node(kind="any")
    elif more is False:
        node.rules["additionalProperties"] = False
        node.values = Node(kind="any")


def has_default(node: Node) -> bool:
    return node.default is not msgspec.UNSET
