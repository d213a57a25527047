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

from koord.embedded.apiserver.schema.node import Kind, Node

META = "io.k8s.apimachinery.pkg.apis.meta.v1."
TIME = META + "Time"
MICRO_TIME = META + "MicroTime"
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
OBJECT_META = META + "ObjectMeta"
_EXTENSIONS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."
JSON_SCHEMA = _EXTENSIONS + "JSONSchemaProps"
# One schema where Go's type accepts an alternative to it: a list, a boolean, a list of strings.
SCHEMA_UNIONS = {JSON_SCHEMA + "OrArray", JSON_SCHEMA + "OrBool", JSON_SCHEMA + "OrStringArray"}
# Types with a JSON form of their own.
_SPECIAL: dict[str, tuple[Kind, str]] = {
    TIME: ("string", "date-time"),
    MICRO_TIME: ("string", "date-time"),
    QUANTITY: ("quantity", ""),
    INT_OR_STRING: ("int-or-string", "int-or-string"),
    META + "FieldsV1": ("any", ""),
    META + "Patch": ("any", ""),
    "io.k8s.apimachinery.pkg.runtime.RawExtension": ("any", ""),
    _EXTENSIONS + "JSON": ("any", ""),
    **dict.fromkeys(SCHEMA_UNIONS, ("any", "")),
}
_SCALARS: dict[str, Kind] = {"string": "string", "integer": "integer", "number": "number", "boolean": "boolean"}

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


class _Table(msgspec.Struct):
    release: str
    resources: tuple[BuiltinResource, ...]
    definitions: dict[str, dict[str, Any]]


class Builtin:
    """BuiltinTypes builds nodes on first use and shares them; cycles between definitions are cycles between nodes."""

    def __init__(self, table: bytes) -> None:
        found = msgspec.json.decode(table, type=_Table)
        self.release = found.release
        self._resources = found.resources
        self._definitions = found.definitions
        self._nodes: dict[str, Node] = {}
        self._names = {
            (group, version, kind): name
            for name, entry in found.definitions.items()
            for group, version, kind in entry.get("gvk", ())
        }

    def resources(self) -> tuple[BuiltinResource, ...]:
        return self._resources

    def names(self) -> tuple[str, ...]:
        """Return the names of all definitions."""
        return tuple(self._definitions)

    def kinds_of(self, name: str) -> list[tuple[str, str, str]]:
        """Return the (group, version, kind) triples that a definition serves; options types serve many."""
        return [(group, version, kind) for group, version, kind in self._definitions[name].get("gvk", ())]

    def definition_name(self, group: str, version: str, kind: str) -> str | None:
        return self._names.get((group, version, kind))

    def node_for(self, group: str, version: str, kind: str) -> Node | None:
        name = self._names.get((group, version, kind))
        return self.definition(name) if name else None

    def table(self, name: str) -> Mapping[str, Any]:
        """Return a definition as the generated table has it, for publishing it again."""
        return self._definitions[name]

    def definition(self, name: str) -> Node:
        node = self._nodes.get(name)
        if node is not None:
            return node
        entry = self._definitions[name]
        if name in _SPECIAL:
            kind, form = _SPECIAL[name]
            whole = kind == "any"  # raw JSON inside a built-in kind is owned as one piece
            node = Node(kind=kind, format=form, go_type=name, go=_go_name(name), atomic=whole)
            self._nodes[name] = node
            return node
        node = Node(
            kind="object",
            go_type=name,
            go=_go_name(name),
            required=tuple(entry.get("required", ())),
            atomic=entry.get("map-type") == "atomic",
        )
        self._nodes[name] = node  # before its fields, which may lead back here
        for key, field in entry.get("fields", {}).items():
            node.fields[key] = self._field(field)
        return node

    def _field(self, field: dict[str, Any]) -> Node:
        node = self._place(field)
        node.go = field["go"]
        _name_elements(node)
        node.pointer = field["go"].startswith("*")
        node.via = field.get("via", "")
        omit = field.get("omit", "")
        node.omit_empty = "e" in omit
        node.omit_zero = "z" in omit
        return node

    def _place(self, schema: dict[str, Any]) -> Node:
        """Build a node of its own for one use of a type: what OpenAPI says beside a reference holds for that use only.

        """
        if "ref" in schema:
            target = self.definition(schema["ref"])
            # The copy shares the dict of fields, which may still be filling up when types refer to each other.
            node = Node(
                kind=target.kind,
                fields=target.fields,
                required=target.required,
                format=target.format,
                go_type=target.go_type,
                go=target.go,
                atomic=target.atomic,
            )
        elif schema["type"] == "array":
            node = Node(kind="list", items=self._place(schema["items"]))
            node.list_type = schema.get("list-type", "atomic")
            node.list_keys = tuple(schema.get("list-map-keys", ()))
        elif "values" in schema:
            node = Node(kind="map", values=self._place(schema["values"]))
        elif schema["type"] == "object":
            node = Node(kind="any")
        else:
            node = Node(kind=_SCALARS[schema["type"]], format=schema.get("format", ""))
            if "enum" in schema:
                node.rules = {"enum": schema["enum"]}
        if "map-type" in schema:
            node.atomic = schema["map-type"] == "atomic"
        node.default = schema.get("default", msgspec.UNSET)
        node.patch_key = schema.get("patch-merge-key", "")
        if "patch-strategy" in schema:
            node.patch_strategy = frozenset(schema["patch-strategy"].split(","))
        return node


def _name_elements(node: Node) -> None:
    """Set the Go type of the elements of lists and maps: what follows the brackets, or a scalar type."""
    element = node.items or node.values
    if element is None or element.go:
        return
    go = node.go.lstrip("*")
    element.go = go.partition("]")[2] if "]" in go else _GO_SCALARS[element.kind, element.format]
    element.pointer = element.go.startswith("*")
    _name_elements(element)


def _go_name(definition: str) -> str:
    """Return the name that Go prints for a definition: io.k8s.api.core.v1.PodSpec is v1.PodSpec."""
    return ".".join(definition.rsplit(".", 2)[-2:])


@functools.cache
def builtin() -> Builtin:
    packed = package_files.files(__package__).joinpath("builtin.json.gz").read_bytes()
    return Builtin(gzip.decompress(packed))
