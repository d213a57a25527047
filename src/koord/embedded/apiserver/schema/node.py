"""One type that describes the shape of a JSON value, for built-in kinds and custom ones alike.

Built-in kinds load it from the generated field table, CRDs compile to it from their structural schema. Validation,
pruning, defaulting, strategic merge, server-side apply and `kubectl explain` all walk the same nodes.
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
    """Nodes may form cycles (JSONSchemaProps contains itself), so they compare by identity, never print whole."""

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
    # CRDs only
    preserve_unknown: bool = False
    embedded: bool = False  # x-kubernetes-embedded-resource
    nullable: bool = False
    default: Any = msgspec.UNSET
    rules: dict[str, Any] = {}  # minimum, maximum, enum, pattern, minLength, oneOf, ...: JSON schema's own names
