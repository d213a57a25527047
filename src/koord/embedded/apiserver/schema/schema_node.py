"""This module defines SchemaNode, the one type that describes the structure of a JSON value for all kinds.

Built-in kinds load nodes from the generated field table; CRDs compile to them from their structural schema,
see `compile_schema`. Validation, pruning, defaulting, strategic merge, server-side apply and `kubectl
explain` all walk the same nodes. Whether a CRD's schema is valid is left to `crd_validation`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from koord.cel.evaluation import names_in
from koord.cel.syntax import CelError, Node, parse

SchemaKind = Literal[
    "object",  # named fields
    "map",  # free keys, one value type
    "list",
    "string",
    "integer",
    "number",
    "boolean",
    "quantity",  # string or number on the wire
    "int-or-string",
    "any",  # nothing known: RawExtension, JSON, x-kubernetes-preserve-unknown-fields without properties
]


class ValidationRule(msgspec.Struct, kw_only=True, frozen=True):
    """A rule of x-kubernetes-validations, parsed."""

    text: str
    tree: Node | CelError
    message: str = ""
    message_expression: str = ""
    message_tree: Node | CelError | None = None
    reason: str = ""
    field_path: str = ""
    optional_old: bool = False  # it is evaluated without an old value too
    is_transition: bool = False  # it speaks of the old value


class SchemaNode(msgspec.Struct, kw_only=True, eq=False):
    """A SchemaNode describes the structure of one value.

    Nodes may form cycles (JSONSchemaProps contains itself), so they compare by identity and are never printed whole.
    """

    kind: SchemaKind
    fields: dict[str, SchemaNode] = {}  # object
    required: tuple[str, ...] = ()
    values: SchemaNode | None = None  # map
    items: SchemaNode | None = None  # list
    # x-kubernetes-list-type / -list-map-keys / -map-type; a plain list is atomic, a plain map granular.
    list_type: Literal["atomic", "set", "map"] = "atomic"
    list_keys: tuple[str, ...] = ()
    atomic: bool = False  # x-kubernetes-map-type: atomic
    # x-kubernetes-patch-strategy ("merge", "replace", "retainKeys", "merge,retainKeys") and -patch-merge-key
    patch_strategy: frozenset[str] = frozenset()
    patch_key: str = ""
    format: str = ""  # int32, int64, date-time, byte, ...
    go_type: str = ""  # definition name of a built-in object ("io.k8s.api.core.v1.PodSpec"), for explain and OpenAPI
    # Built-ins only: how the Go type behind this place behaves. They belong to the place, not to the shared definition.
    go: str = ""  # the type as Go prints it in decoding errors, "*int32", "[]v1.Container"
    via: str = ""  # name of the inlined struct that holds the field, "VolumeSource"
    omit_empty: bool = False  # false, 0, "", empty lists and maps, and nil pointers are not written
    omit_zero: bool = False  # a struct without content is not written either
    pointer: bool = False  # false, 0 and "" are values of their own, unlike absent
    # Both: a built-in's default is what OpenAPI says (server-side apply needs it for list keys); it is never applied.
    default: Any = msgspec.UNSET
    rules: dict[str, Any] = {}  # minimum, maximum, enum, pattern, minLength, oneOf, ...: JSON schema's own names
    # CRDs only
    preserve_unknown: bool = False
    embedded: bool = False  # x-kubernetes-embedded-resource
    nullable: bool = False
    validations: tuple[ValidationRule, ...] = ()
    has_validations: bool = False  # here or below


Schema = Mapping[str, Any]

_KINDS_BY_TYPE: dict[str, SchemaKind] = {
    "object": "object",
    "array": "list",
    "string": "string",
    "integer": "integer",
    "number": "number",
    "boolean": "boolean",
}
# Rules that apply to a value as it is; the combinators are compiled to nodes of their own.
_VALUE_KEYWORDS = (
    *("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems"),
    *("minItems", "uniqueItems", "multipleOf", "maxProperties", "minProperties", "enum"),
)


def compile_schema(schema: Schema) -> SchemaNode:
    """Compile a schema that has passed `crd_validation`. Combinators (anyOf, ...) become nodes inside `rules`."""
    node = SchemaNode(kind=_kind(schema))
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
    node.rules = {rule: schema[rule] for rule in _VALUE_KEYWORDS if schema.get(rule) not in (None, "", False, [])}
    _compile_additional(schema, node)
    for combinator in ("allOf", "anyOf", "oneOf"):
        if schema.get(combinator):
            node.rules[combinator] = [compile_schema(sub) for sub in schema[combinator]]
    if schema.get("not") is not None:
        node.rules["not"] = compile_schema(schema["not"])
    node.validations = tuple(_compile_validation(row) for row in schema.get("x-kubernetes-validations") or ())
    below = (*node.fields.values(), node.items, node.values)
    node.has_validations = bool(node.validations) or any(one is not None and one.has_validations for one in below)
    return node


def _compile_validation(row: Schema) -> ValidationRule:
    text, message = row.get("rule") or "", row.get("messageExpression") or ""
    tree = parse(text)
    return ValidationRule(
        text=text,
        tree=tree,
        message=row.get("message") or "",
        message_expression=message,
        message_tree=parse(message) if message else None,
        reason=row.get("reason") or "",
        field_path=row.get("fieldPath") or "",
        optional_old=bool(row.get("optionalOldSelf")),
        is_transition=not isinstance(tree, CelError) and "oldSelf" in names_in(tree),
    )


def _kind(schema: Schema) -> SchemaKind:
    if schema.get("x-kubernetes-int-or-string"):
        return "int-or-string"
    if not schema.get("type"):
        return "any"
    if schema["type"] == "object" and not schema.get("properties") and schema.get("additionalProperties") is not None:
        return "map"
    return _KINDS_BY_TYPE.get(schema["type"], "any")  # a type that does not exist is reported by soundness


def _compile_additional(schema: Schema, node: SchemaNode) -> None:
    more = schema.get("additionalProperties")
    if isinstance(more, dict):
        node.values = compile_schema(more)
    elif more is True:
        # Any value may stand here, but nothing is known of what is inside it, so pruning empties it.
        node.values = SchemaNode(kind="any")
    elif more is False:
        node.rules["additionalProperties"] = False
        node.values = SchemaNode(kind="any")


def has_default(node: SchemaNode) -> bool:
    return node.default is not msgspec.UNSET
