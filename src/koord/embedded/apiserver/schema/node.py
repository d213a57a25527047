"""This module defines SchemaNode, the one type that describes the structure of a JSON value for all kinds.

Built-in kinds load nodes from the generated field table; CRDs compile to them from their structural schema,
see `compile_schema`. Validation, pruning, defaulting, strategic merge, server-side apply and `kubectl
explain` all walk the same nodes. Whether a CRD's schema is valid is left to `crd_validation`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Kind = Literal[
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


class Node(msgspec.Struct, kw_only=True, eq=False):
    """A SchemaNode describes the structure of one value.

    Nodes may form cycles (JSONSchemaProps contains itself), so they compare by identity and are never printed
    whole.
    """

    kind: Kind
    fields: dict[str, Node] = {}  # object
    required: tuple[str, ...] = ()
    values: Node | None = None  # map
    items: Node | None = None  # list
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
