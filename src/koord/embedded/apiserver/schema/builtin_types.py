"""This module provides the built-in resources and a node for each type, from the generated field table.

The table is data of one Kubernetes release; it is read once and turned into nodes on first use.
"""

from __future__ import annotations

import functools
import gzip
from collections.abc import Mapping
from importlib import resources as package_files
from typing import Any

import msgspec

from koord.embedded.apiserver.schema.schema_node import SchemaKind, SchemaNode

META_V1 = "io.k8s.apimachinery.pkg.apis.meta.v1."
TIME = META_V1 + "Time"
MICRO_TIME = META_V1 + "MicroTime"
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
OBJECT_META = META_V1 + "ObjectMeta"
_APIEXTENSIONS_V1 = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."
JSON_SCHEMA = _APIEXTENSIONS_V1 + "JSONSchemaProps"
# One schema where Go's type accepts an alternative to it: a list, a boolean, a list of strings.
SCHEMA_UNIONS = {JSON_SCHEMA + "OrArray", JSON_SCHEMA + "OrBool", JSON_SCHEMA + "OrStringArray"}
# Types with a JSON form of their own.
_TYPES_WITH_OWN_JSON: dict[str, tuple[SchemaKind, str]] = {
    TIME: ("string", "date-time"),
    MICRO_TIME: ("string", "date-time"),
    QUANTITY: ("quantity", ""),
    INT_OR_STRING: ("int-or-string", "int-or-string"),
    META_V1 + "FieldsV1": ("any", ""),
    META_V1 + "Patch": ("any", ""),
    "io.k8s.apimachinery.pkg.runtime.RawExtension": ("any", ""),
    _APIEXTENSIONS_V1 + "JSON": ("any", ""),
    **dict.fromkeys(SCHEMA_UNIONS, ("any", "")),
}
_SCALARS: dict[str, SchemaKind] = {"string": "string", "integer": "integer", "number": "number", "boolean": "boolean"}

_GO_SCALARS = {("string", ""): "string", ("boolean", ""): "bool", ("integer", "int32"): "int32"}


class Subresource(msgspec.Struct, frozen=True):
    name: str
    kind: str
    verbs: tuple[str, ...]
    group: str = ""  # empty: the group of the resource itself
    version: str = ""


class BuiltinResource(msgspec.Struct, frozen=True):
    """A BuiltinResource is one row of discovery, as the real server of that release reports it."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool
    verbs: tuple[str, ...]
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    storage_hash: str = ""
    subresources: tuple[Subresource, ...] = ()


class _FieldTable(msgspec.Struct):
    release: str
    resources: tuple[BuiltinResource, ...]
    definitions: dict[str, dict[str, Any]]


class BuiltinTypes:
    """BuiltinTypes builds nodes on first use and shares them; cycles between definitions are cycles between nodes."""

    def __init__(self, table: bytes) -> None:
        found = msgspec.json.decode(table, type=_FieldTable)
        self.release = found.release
        self._resources = found.resources
        self._definitions = found.definitions
        self._nodes: dict[str, SchemaNode] = {}
        self._names = {
            (group, version, kind): name
            for name, entry in found.definitions.items()
            for group, version, kind in entry.get("gvk", ())
        }

    def resources(self) -> tuple[BuiltinResource, ...]:
        return self._resources

    def definition_names(self) -> tuple[str, ...]:
        """Return the names of all definitions."""
        return tuple(self._definitions)

    def kinds_of(self, name: str) -> list[tuple[str, str, str]]:
        """Return the (group, version, kind) triples that a definition serves; options types serve many."""
        return [(group, version, kind) for group, version, kind in self._definitions[name].get("gvk", ())]

    def definition_name(self, group: str, version: str, kind: str) -> str | None:
        return self._names.get((group, version, kind))

    def node_for(self, group: str, version: str, kind: str) -> SchemaNode | None:
        name = self._names.get((group, version, kind))
        return self.definition_node(name) if name else None

    def definition_entry(self, name: str) -> Mapping[str, Any]:
        """Return a definition as the generated table has it, for publishing it again."""
        return self._definitions[name]

    def definition_node(self, name: str) -> SchemaNode:
        node = self._nodes.get(name)
        if node is not None:
            return node
        entry = self._definitions[name]
        if name in _TYPES_WITH_OWN_JSON:
            kind, form = _TYPES_WITH_OWN_JSON[name]
            whole = kind == "any"  # raw JSON inside a built-in kind is owned as one piece
            node = SchemaNode(kind=kind, format=form, go_type=name, go=_go_type_name(name), atomic=whole)
            self._nodes[name] = node
            return node
        node = SchemaNode(
            kind="object",
            go_type=name,
            go=_go_type_name(name),
            required=tuple(entry.get("required", ())),
            atomic=entry.get("map-type") == "atomic",
        )
        self._nodes[name] = node  # before its fields, which may lead back here
        for key, field in entry.get("fields", {}).items():
            node.fields[key] = self._field(field)
        return node

    def _field(self, field: dict[str, Any]) -> SchemaNode:
        node = self._node_for_use(field)
        node.go = field["go"]
        _set_element_types(node)
        node.pointer = field["go"].startswith("*")
        node.via = field.get("via", "")
        omit = field.get("omit", "")
        node.omit_empty = "e" in omit
        node.omit_zero = "z" in omit
        return node

    def _node_for_use(self, schema: dict[str, Any]) -> SchemaNode:
        """Build a node for one use of a type: what OpenAPI says beside a reference holds for that use only."""
        if "ref" in schema:
            target = self.definition_node(schema["ref"])
            # The copy shares the dict of fields, which may still be filling up when types refer to each other.
            node = SchemaNode(
                kind=target.kind,
                fields=target.fields,
                required=target.required,
                format=target.format,
                go_type=target.go_type,
                go=target.go,
                atomic=target.atomic,
            )
        elif schema["type"] == "array":
            node = SchemaNode(kind="list", items=self._node_for_use(schema["items"]))
            node.list_type = schema.get("list-type", "atomic")
            node.list_keys = tuple(schema.get("list-map-keys", ()))
        elif "values" in schema:
            node = SchemaNode(kind="map", values=self._node_for_use(schema["values"]))
        elif schema["type"] == "object":
            node = SchemaNode(kind="any")
        else:
            node = SchemaNode(kind=_SCALARS[schema["type"]], format=schema.get("format", ""))
            if "enum" in schema:
                node.rules = {"enum": schema["enum"]}
        if "map-type" in schema:
            node.atomic = schema["map-type"] == "atomic"
        node.default = schema.get("default", msgspec.UNSET)
        node.patch_key = schema.get("patch-merge-key", "")
        if "patch-strategy" in schema:
            node.patch_strategy = frozenset(schema["patch-strategy"].split(","))
        return node


def _set_element_types(node: SchemaNode) -> None:
    """Set the Go type of the elements of lists and maps: what follows the brackets, or a scalar type."""
    element = node.items or node.values
    if element is None or element.go:
        return
    go = node.go.lstrip("*")
    element.go = go.partition("]")[2] if "]" in go else _GO_SCALARS[element.kind, element.format]
    element.pointer = element.go.startswith("*")
    _set_element_types(element)


def _go_type_name(definition: str) -> str:
    """Return the name that Go prints for a definition: io.k8s.api.core.v1.PodSpec is v1.PodSpec."""
    return ".".join(definition.rsplit(".", 2)[-2:])


@functools.cache
def builtin_types() -> BuiltinTypes:
    packed = package_files.files(__package__).joinpath("builtin.json.gz").read_bytes()
    return BuiltinTypes(gzip.decompress(packed))
