"""Join the protobuf definitions of Kubernetes (numbers, types) with its Go sources (names in JSON, what is inlined).

Pure: text in, one table out. Sentences are left out, so the table holds facts only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

PACKAGE = re.compile(r"^package ([\w.]+);", re.M)
MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.M | re.S)
PROTO_FIELD = re.compile(r"^  (optional|repeated|map<string, ([\w.]+)>) ?([\w.]+)?\s+(\w+) = (\d+);$", re.M)
COMMENT = re.compile(r"^\s*//.*\n", re.M)
STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.M | re.S)
SLICE = re.compile(r"^type (\w+) \[\]", re.M)
GO_FIELD = re.compile(r"^\t(?:(\w+)\s+)?([\w.*\[\]{}]+)\s+`([^`]*)`", re.M)
TAG = re.compile(r'(\w+):"([^"]*)"')

SCALARS = {"string", "bytes", "bool", "int32", "int64", "double"}
MODULES = ("k8s.io/api", "k8s.io/apimachinery", "k8s.io/apiextensions-apiserver", "k8s.io/kube-aggregator")
_MACHINERY = "io.k8s.apimachinery.pkg."
_EXTENSIONS = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1."
ENVELOPE = _MACHINERY + "runtime.Unknown"
# Older clients still evict with the first, though its group version is no longer served; types of other releases have
# durations where this one has none.
BESIDES = ("io.k8s.api.policy.v1beta1.Eviction", _MACHINERY + "apis.meta.v1.Duration")
# Written by hand in JSON: their messages keep the names of the protobuf definition.
OPAQUE = {
    ENVELOPE,
    _MACHINERY + "runtime.TypeMeta",
    _MACHINERY + "runtime.RawExtension",
    _MACHINERY + "api.resource.Quantity",
    _MACHINERY + "util.intstr.IntOrString",
    _MACHINERY + "apis.meta.v1.Duration",
    _MACHINERY + "apis.meta.v1.FieldsV1",
    _MACHINERY + "apis.meta.v1.MicroTime",
    _MACHINERY + "apis.meta.v1.Time",
    _EXTENSIONS + "JSON",
    _EXTENSIONS + "JSONSchemaPropsOrArray",
    _EXTENSIONS + "JSONSchemaPropsOrBool",
    _EXTENSIONS + "JSONSchemaPropsOrStringArray",
}
# Definitions of the API that never travel as protobuf.
JSON_ONLY = {_MACHINERY + "version.Info"}

Row = list[Any]  # number, name in JSON ("" when inlined), type ("[]" and "{}" in front for lists and maps), name in Go


class Source:
    """One folder: its protobuf package, and the Go structs whose tags say which number is which JSON name."""

    def __init__(self, proto: str, go: Iterable[str]) -> None:
        found = PACKAGE.search(proto)
        if found is None:
            raise LookupError("a protobuf file without a package")
        self.prefix = definition_of(found.group(1)) + "."
        self.messages = dict(MESSAGE.findall(COMMENT.sub("", proto)))
        self.structs: dict[str, dict[int, tuple[str, str]]] = {}
        self.slices: set[str] = set()
        for text in go:
            self.slices |= set(SLICE.findall(text))
            for name, body in STRUCT.findall(text):
                self.structs[name] = _tagged(body)


def definition_of(name: str) -> str:
    """k8s.io.apiextensions_apiserver.pkg.X is io.k8s.apiextensions-apiserver.pkg.X to OpenAPI."""
    _, _, rest = name.lstrip(".").partition("k8s.io.")
    return "io.k8s." + rest.replace("_", "-")


def _tagged(body: str) -> dict[int, tuple[str, str]]:
    """Number -> (Go name, JSON name); the JSON name is empty for an inlined struct and `-` for one left out."""
    fields: dict[int, tuple[str, str]] = {}
    for name, expression, tags in GO_FIELD.findall(body):
        found = dict(TAG.findall(tags))
        if found.get("protobuf", "-") == "-":
            continue
        number = int(found["protobuf"].split(",")[1])
        wire = found.get("json", "").split(",")[0]
        fields[number] = (name or expression.lstrip("*").rpartition(".")[2], wire)
    return fields


def messages(sources: Iterable[Source], definitions: Iterable[str]) -> dict[str, Any]:
    """Every message that the definitions lead to, by definition name. A definition without a message is an error."""
    owners = {source.prefix + name: source for source in sources for name in source.messages}
    wanted = [ENVELOPE, *BESIDES, *(name for name in definitions if name not in JSON_ONLY)]
    table: dict[str, Any] = {}
    while wanted:
        name = wanted.pop()
        if name in table:
            continue
        if name not in owners:
            raise LookupError(f"{name} has no protobuf message")
        table[name] = _message(name, owners[name])
        wanted += [kind for row in table[name]["fields"] if (kind := row[2].lstrip("[]{}")) not in SCALARS]
    return dict(sorted(table.items()))


def _message(full: str, source: Source) -> dict[str, Any]:
    name = full.removeprefix(source.prefix)
    rows: list[Row] = []
    known = source.structs.get(name, {})
    for shape, values, kind, field, number in PROTO_FIELD.findall(source.messages[name]):
        if full in OPAQUE or name in source.slices:
            go, wire = field[:1].upper() + field[1:], field
        elif int(number) in known:
            go, wire = known[int(number)]
        else:
            raise LookupError(f"{full}: no Go field has number {number}")
        if wire == "-":
            continue
        prefix = {"optional": "", "repeated": "[]"}.get(shape, "{}")
        rows.append([int(number), wire, prefix + _type(values or kind, source), go])
    lines = [line for line in source.messages[name].splitlines() if line.strip()]
    if len(lines) != len(PROTO_FIELD.findall(source.messages[name])):
        raise ValueError(f"{full}: a line of its definition was not understood")
    entry: dict[str, Any] = {"fields": sorted(rows)}
    if name in source.slices:
        entry["wraps"] = True  # a Go list that protobuf cannot have without a message around it
    return entry


def _type(name: str, source: Source) -> str:
    if name in SCALARS:
        return name
    return definition_of(name) if "." in name else source.prefix + name
