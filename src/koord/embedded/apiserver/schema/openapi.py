"""These functions build the OpenAPI documents that the server publishes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from koord.embedded.apiserver.schema.builtin import META, Builtin
from koord.embedded.apiserver.schema.openapi_paths import Described, Naming, operations
from koord.embedded.apiserver.schema.openapi_schemas import (
    Dialect,
    closure,
    custom_list,
    custom_name,
    custom_schema,
    referenced,
)

Document = dict[str, Any]

_MEDIA = ("application/json", "application/yaml")
_TOKEN = {"type": "apiKey", "name": "authorization", "in": "header"}
# Every document speaks of these, whatever its kinds are.
_ALWAYS = (META + "DeleteOptions", META + "Patch", META + "Status")


def v3_document(builtin: Builtin, resources: Sequence[Described]) -> Document:
    """Build the OpenAPI 3 document of one group-version from the resources served in it."""
    dialect = Dialect(3)
    paths = _paths(builtin, resources, _v3_operation)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": builtin.release},
        "paths": paths,
        "components": {
            "schemas": _schemas(builtin, resources, paths, dialect),
            "securitySchemes": {"BearerToken": _TOKEN},
        },
    }


def v2_document(builtin: Builtin, resources: Sequence[Described]) -> Document:
    """Build the one OpenAPI 2 document of all resources."""
    dialect = Dialect(2)
    paths = _paths(builtin, resources, _v2_operation)
    return {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": builtin.release},
        "paths": paths,
        "definitions": _schemas(builtin, resources, paths, dialect),
        "securityDefinitions": {"BearerToken": _TOKEN},
        "security": [{"BearerToken": []}],
    }


def v3_index(documents: Mapping[str, bytes]) -> Document:
    """Build `/openapi/v3`, the index of the documents; the hash lets clients cache a document for ever.

    `documents`: path below /openapi/v3 ("api/v1", "apis/apps/v1") -> the document's bytes.
    """
    return {
        "paths": {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={document_hash(raw)}"}
            for path, raw in sorted(documents.items())
        }
    }


def document_hash(raw: bytes) -> str:
    """Return the hash of a document, which is also its ETag between quotes."""
    return hashlib.sha512(raw).hexdigest().upper()


def _naming(builtin: Builtin, resources: Sequence[Described]) -> Naming:
    names: dict[tuple[str, str, str], str] = {
        gvk: name for name in builtin.names() if not name.startswith(META) for gvk in builtin.kinds_of(name)
    }
    for found in resources:
        if found.schema is not None:
            for kind in (found.kind, found.list_kind):
                names[found.group, found.version, kind] = custom_name(found.group, found.version, kind)
    return Naming(names)


def _paths(builtin: Builtin, resources: Sequence[Described], spelled: Any) -> Document:
    naming = _naming(builtin, resources)
    paths: Document = {}
    for resource in resources:
        for path, method, operation in operations(resource, naming):
            paths.setdefault(path, {})[method] = spelled(operation)
    return dict(sorted(paths.items()))


def _schemas(builtin: Builtin, resources: Sequence[Described], paths: Document, dialect: Dialect) -> Document:
    out: Document = {}
    for found in resources:
        if found.schema is not None:
            where = (found.group, found.version)
            out[custom_name(*where, found.kind)] = custom_schema(found.schema, *where, found.kind, dialect)
            out[custom_name(*where, found.list_kind)] = custom_list(*where, found.kind, found.list_kind, dialect)
    needed = {*_ALWAYS, *referenced(paths), *referenced(out)} - out.keys()
    return dict(sorted({**closure(builtin, needed, dialect), **out}.items()))


def _v3_operation(operation: Document) -> Document:
    ref = Dialect(3).ref
    out = {k: v for k, v in operation.items() if k not in ("body", "responses", "parameters")}
    out["parameters"] = [
        {**{k: v for k, v in p.items() if k != "type"}, "schema": {"type": p["type"]}} for p in operation["parameters"]
    ]
    if "body" in operation:
        name, media, needed = operation["body"]
        out["requestBody"] = {"content": {kind: {"schema": ref(name)} for kind in media}}
        if needed:
            out["requestBody"]["required"] = True
    out["responses"] = {}
    for code, answer in operation["responses"].items():
        out["responses"][code] = {"description": answer["description"]}
        if code != "401":
            schema = ref(answer["schema"]) if answer["schema"] else {"type": "string"}
            out["responses"][code]["content"] = {kind: {"schema": schema} for kind in _MEDIA}
    return out


def _v2_operation(operation: Document) -> Document:
    ref = Dialect(2).ref
    out = {k: v for k, v in operation.items() if k not in ("body", "responses", "parameters")}
    out["consumes"] = list(operation["body"][1]) if "body" in operation else ["*/*"]
    out["produces"] = list(_MEDIA)
    out["schemes"] = ["https"]
    out["parameters"] = list(operation["parameters"])
    if "body" in operation:
        name, _, needed = operation["body"]
        body: Document = {"name": "body", "in": "body", "schema": ref(name)}
        out["parameters"].append({**body, "required": True} if needed else body)
    out["responses"] = {}
    for code, answer in operation["responses"].items():
        out["responses"][code] = {"description": answer["description"]}
        if code != "401":
            out["responses"][code]["schema"] = ref(answer["schema"]) if answer["schema"] else {"type": "string"}
    return out
