"""This module builds the OpenAPI documents that the server publishes, in versions 2 and 3.

Built-in schemas come from the generated table, custom ones from their CRD. Version 3 documents are what the
real server publishes without descriptions. Version 2 cannot express everything, and the server leaves out
there what old clients would misread. Encoding the documents, as JSON or protobuf, is left to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from koord.embedded.apiserver.schema.builtin import INT_OR_STRING, META, OBJECT_META, QUANTITY, Builtin
from koord.embedded.apiserver.schema.prune import META as META_FIELDS

Document = dict[str, Any]
LIST_META = META + "ListMeta"

_FACTS = ("type", "format", "default", "enum", "required", "oneOf")
_EXTENSIONS = ("group-version-kind", "list-map-keys", "list-type", "map-type", "patch-merge-key", "patch-strategy")
_OLD_SCALARS: dict[str, Document] = {
    QUANTITY: {"type": "string"},
    INT_OR_STRING: {"type": "string", "format": "int-or-string"},
}


class Dialect:
    """An OpenApiDialect knows how a version writes references and what it can express."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._root = "#/components/schemas/" if version == 3 else "#/definitions/"

    def ref(self, name: str) -> Document:
        return {"$ref": self._root + name}

    def place(self, name: str, more: Document) -> Document:
        """Return a reference with keywords beside it; version 3 needs an allOf wrapper for that."""
        if not more or self.version == 2:
            return {**self.ref(name), **more}
        return {**more, "allOf": [self.ref(name)]}


def builtin_schema(builtin: Builtin, name: str, dialect: Dialect) -> Document:
    entry = builtin.table(name)
    if dialect.version == 2 and name in _OLD_SCALARS:
        return dict(_OLD_SCALARS[name])
    out = _facts(entry, dialect)
    if "fields" in entry:
        out["properties"] = {key: _field(entry["fields"][key], dialect) for key in sorted(entry["fields"])}
    if "gvk" in entry:
        out["x-kubernetes-group-version-kind"] = [
            {"group": group, "kind": kind, "version": version} for group, version, kind in entry["gvk"]
        ]
    if "unions" in entry:
        out["x-kubernetes-unions"] = entry["unions"]
    return out


def _facts(entry: Mapping[str, Any], dialect: Dialect) -> Document:
    out = {key: entry[key] for key in _FACTS if key in entry}
    out |= {f"x-kubernetes-{key}": entry[key] for key in _EXTENSIONS if key in entry}
    if dialect.version == 2:
        out.pop("default", None)
        out.pop("oneOf", None)
    return out


def _field(entry: Mapping[str, Any], dialect: Dialect) -> Document:
    out = _facts(entry, dialect)
    if "ref" in entry:
        return dialect.place(entry["ref"], out)
    if "items" in entry:
        out["items"] = _field(entry["items"], dialect)
    if "values" in entry:
        out["additionalProperties"] = _field(entry["values"], dialect)
    return out


def referenced(schema: Any) -> Iterator[str]:
    """Yield the names of the definitions that a schema refers to."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                yield value.rpartition("/")[2]
            else:
                yield from referenced(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from referenced(item)


def closure(builtin: Builtin, names: Iterable[str], dialect: Dialect) -> Document:
    """Return the schemas of these definitions and of all definitions that they refer to."""
    out: Document = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in out:
            out[name] = builtin_schema(builtin, name, dialect)
            waiting += referenced(out[name])
    return out


def custom_name(group: str, version: str, kind: str) -> str:
    """Return the definition name of a custom kind: reversed group, version and kind, as in Go packages."""
    return ".".join([*reversed(group.split(".")), version, kind])


def custom_schema(schema: Mapping[str, Any], group: str, version: str, kind: str, dialect: Dialect) -> Document:
    out = _custom(schema, dialect)
    out.setdefault("type", "object")
    if out.get("x-kubernetes-preserve-unknown-fields") and dialect.version == 2:
        out = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    known = out.get("properties", {})
    out["properties"] = {**_typed(dialect), **{k: v for k, v in known.items() if k not in META_FIELDS}}
    out["x-kubernetes-group-version-kind"] = [{"group": group, "kind": kind, "version": version}]
    return out


def custom_list(group: str, version: str, kind: str, list_kind: str, dialect: Dialect) -> Document:
    return {
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "items": {"type": "array", "items": dialect.ref(custom_name(group, version, kind))},
            "kind": {"type": "string"},
            "metadata": dialect.ref(LIST_META),
        },
        "x-kubernetes-group-version-kind": [{"group": group, "kind": list_kind, "version": version}],
    }


_BELOW = ("allOf", "anyOf", "oneOf")
_ONLY_NEW = ("default", "nullable", "not", *_BELOW)


def _custom(schema: Mapping[str, Any], dialect: Dialect) -> Document:
    old = dialect.version == 2
    out: Document = {}
    for key, value in schema.items():
        if old and key in _ONLY_NEW:
            continue
        if key == "properties":
            out[key] = {name: _custom(sub, dialect) for name, sub in value.items()}
        elif key in ("items", "additionalProperties", "not") and isinstance(value, dict):
            out[key] = _custom(value, dialect)
        elif key in _BELOW:
            out[key] = [_custom(sub, dialect) for sub in value]
        else:
            out[key] = value
    if old and (schema.get("nullable") or schema.get("x-kubernetes-preserve-unknown-fields")):
        # Old clients would refuse a null, or prune what they do not know: say less.
        for key in ("type", "properties", "items", "additionalProperties", "required", "enum", "format"):
            out.pop(key, None)
    elif schema.get("x-kubernetes-embedded-resource"):
        out["properties"] = {
            **_typed(dialect),
            **{k: v for k, v in out.get("properties", {}).items() if k not in META_FIELDS},
        }
        stated = out.get("required", [])
        out["required"] = [*stated, *(key for key in ("kind", "apiVersion") if key not in stated)]
    return out


def _typed(dialect: Dialect) -> Document:
    """Return the properties that every resource has, embedded ones too."""
    return {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": dialect.ref(OBJECT_META)}
