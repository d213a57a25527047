"""Join what OpenAPI says of built-in types (names, types, merge keys) with what Go sources say (pointer, omitempty).

Pure: text and documents in, one table out. Sentences are left out, so the table holds facts only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

Document = dict[str, Any]

STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.M | re.S)
NAMED = re.compile(r"^type (\w+) (=? ?)((?:\[\]|map\[|\*)?[\w.\[\]*]+)$", re.M)
FIELD = re.compile(r"^\t(?:(\w+)\s+)?([\w.*\[\]{}]+)\s+`[^`]*?json:\"([^\"]*)\"[^`]*`", re.M)
IMPORT = re.compile(r"^(?:\t|import )(?:(\w+) )?\"([\w./-]+)\"$", re.M)
BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.S)
BUILTIN_GO = {"string", "bool", "int", "int32", "int64", "uint64", "uint32", "float64", "byte", "interface{}", "any"}

# Types with their own JSON form: their struct fields never reach the wire.
OPAQUE = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Patch",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time",
    "io.k8s.apimachinery.pkg.runtime.RawExtension",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray",
}


class GoField(dict[str, str]):
    """`name` on the wire, `go` (the type as Go's reflection prints it), `omit` (e, z) and `via` (inlined struct)."""


def package_of(definition: str) -> str:
    """The Go import path of a definition: io.k8s.api.core.v1.Pod lives in k8s.io/api/core/v1."""
    parts = definition.split(".")
    return "k8s.io/" + "/".join(parts[2:-1])


def definition_of(package: str, name: str) -> str:
    return "io.k8s." + package.removeprefix("k8s.io/").replace("/", ".") + "." + name


class GoSource:
    """The struct definitions of a set of Go packages, read with patterns that fit gofmt's layout."""

    def __init__(self, packages: Mapping[str, Mapping[str, str]]) -> None:
        """`packages`: import path -> file name -> text."""
        self._structs: dict[str, list[GoField]] = {}
        self._same: dict[str, str] = {}
        raw: dict[str, tuple[str, dict[str, str], str]] = {}
        for path, files in packages.items():
            for text in files.values():
                clean = BLOCK_COMMENT.sub("", text)
                imports = {alias or target.rsplit("/", 1)[-1]: target for alias, target in IMPORT.findall(clean)}
                for name, body in STRUCT.findall(clean):
                    raw[f"{path}.{name}"] = (path, imports, body)
                for name, _, target in NAMED.findall(clean):
                    if "." in target and "[" not in target:
                        alias, _, other = target.lstrip("*").partition(".")
                        if alias in imports:
                            self._same[f"{path}.{name}"] = f"{imports[alias]}.{other}"
                    elif re.fullmatch(r"[A-Z]\w*", target):
                        self._same[f"{path}.{name}"] = f"{path}.{target}"
        self._raw = raw

    def fields(self, package: str, name: str) -> list[GoField]:
        """Fields in the order in which Go writes them; inlined structs are spliced in where they stand."""
        key = f"{package}.{name}"
        while key not in self._raw and key in self._same:
            key = self._same[key]
        if key in self._structs:
            return self._structs[key]
        if key not in self._raw:
            raise LookupError(f"no Go struct {key}")
        path, imports, body = self._raw[key]
        found = list(self._read(path, imports, body))
        self._structs[key] = found
        return found

    def _read(self, path: str, imports: Mapping[str, str], body: str) -> Iterator[GoField]:
        for name, expression, tag in FIELD.findall(body):
            wire, *options = tag.split(",")
            if wire == "-":
                continue
            if "inline" in options or (not wire and not name):
                alias, dot, inner = expression.lstrip("*").rpartition(".")
                package = imports[alias] if dot else path
                for field in self.fields(package, inner):
                    yield GoField({**field, "via": ".".join(filter(None, (inner, field.get("via", ""))))})
                continue
            field = GoField(name=wire or name, go=_reflected(expression, path, imports))
            omit = ("e" if "omitempty" in options else "") + ("z" if "omitzero" in options else "")
            if omit:
                field["omit"] = omit
            yield field


def _reflected(expression: str, path: str, imports: Mapping[str, str]) -> str:
    """A type as Go's reflection prints it: unqualified names get their package's last element, aliases of import go."""
    own = path.rsplit("/", 1)[-1]

    def qualify(found: re.Match[str]) -> str:
        word = found.group(0)
        if "." in word:
            package, _, name = word.partition(".")
            return f"{imports[package].rsplit('/', 1)[-1]}.{name}"
        return word if word in BUILTIN_GO or word == "map" else f"{own}.{word}"

    # Uint8 is what reflection calls a byte.
    return re.sub(r"[\w.]+(?:\{\})?", qualify, expression).replace("[]byte", "[]uint8")


def _leaf(schema: Document) -> Document:
    """A property's schema without sentences, with a reference as {"ref": name} whichever way it was wrapped."""
    out: Document = {}
    for key, value in schema.items():
        if key == "description":
            continue
        if key == "$ref":
            out["ref"] = value.rsplit("/", 1)[-1]
        elif key == "allOf":
            out["ref"] = value[0]["$ref"].rsplit("/", 1)[-1]
        elif key in ("items", "additionalProperties"):
            out["items" if key == "items" else "values"] = _leaf(value)
        elif key.startswith("x-kubernetes-"):
            out[key.removeprefix("x-kubernetes-")] = value
        else:
            out[key] = value
    return out


def definitions(schemas: Mapping[str, Document], source: GoSource) -> Document:
    """Definition name -> {fields (in Go's order), required, gvk, ...}. A field unknown to either side is an error."""
    table: Document = {}
    for name in sorted(schemas):
        entry = _leaf({k: v for k, v in schemas[name].items() if k != "properties"})
        kinds = entry.pop("group-version-kind", None)
        if kinds:
            entry["gvk"] = [[k["group"], k["version"], k["kind"]] for k in kinds]
        properties = schemas[name].get("properties")
        if properties is None or name in OPAQUE:
            if name not in OPAQUE and schemas[name].get("type") != "object":
                raise LookupError(f"{name} has no properties and is not a known opaque type")
            table[name] = entry
            continue
        package = package_of(name)
        fields: Document = {}
        for field in source.fields(package, name.rsplit(".", 1)[-1]):
            if field["name"] not in properties:
                continue  # a Go field kept out of OpenAPI on purpose (protobuf only, feature not served)
            fields[field["name"]] = {
                **_leaf(properties[field["name"]]),
                **{k: v for k, v in field.items() if k != "name"},
            }
        missing = set(properties) - set(fields)
        if missing:
            raise LookupError(f"{name}: fields {sorted(missing)} are in OpenAPI but not in the Go source")
        entry["fields"] = fields
        table[name] = entry
    return table


def resources(discovery: list[Document], lists: Mapping[str, Document]) -> list[Document]:
    """One row per served resource, from aggregated discovery; storage hashes come from the plain resource lists."""
    rows: list[Document] = []
    for group in discovery:
        name = group["metadata"].get("name", "")
        for served in group["versions"]:
            prefix = f"apis/{name}/{served['version']}" if name else f"api/{served['version']}"
            hashes = {r["name"]: r.get("storageVersionHash", "") for r in lists[prefix]["resources"]}
            rows += [_resource(name, served["version"], found, hashes) for found in served.get("resources", [])]
    return rows


def _resource(group: str, version: str, found: Document, hashes: Mapping[str, str]) -> Document:
    row: Document = {
        "group": group,
        "version": version,
        "kind": found["responseKind"]["kind"],
        "plural": found["resource"],
        "singular": found["singularResource"],
        "namespaced": found["scope"] == "Namespaced",
        "verbs": found["verbs"],
    }
    for ours, theirs in (("short_names", "shortNames"), ("categories", "categories")):
        if found.get(theirs):
            row[ours] = found[theirs]
    if hashes.get(found["resource"]):
        row["storage_hash"] = hashes[found["resource"]]
    below = [
        {
            "name": sub["subresource"],
            "kind": sub["responseKind"]["kind"],
            **({"group": sub["responseKind"]["group"]} if sub["responseKind"].get("group") else {}),
            **({"version": sub["responseKind"]["version"]} if sub["responseKind"].get("version") else {}),
            "verbs": sub["verbs"],
        }
        for sub in found.get("subresources", [])
    ]
    if below:
        row["subresources"] = below
    return row
