"""This module builds the OpenAPI documents that the server publishes, in versions 2 and 3.

Built-in schemas come from the generated table, custom ones from their CRD. Version 3 documents are what the
real server publishes without descriptions. Version 2 cannot express everything, and the server leaves out
there what old clients would misread. Encoding the documents, as JSON or protobuf, is left to others.

Paths are the operations of each resource, with their parameters. kubectl asks whether PATCH knows `fieldValidation`
before it leaves validation to the server, and `kubectl explain` finds a resource's kind through its paths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from koord.embedded.apiserver.schema.builtin_types import (
    INT_OR_STRING,
    META_V1,
    OBJECT_META,
    QUANTITY,
    BuiltinTypes,
    Subresource,
)
from koord.embedded.apiserver.schema.custom_decoding import TYPE_AND_METADATA as META_FIELDS

Document = dict[str, Any]

_WRITE_QUERY = ("dryRun", "fieldManager", "fieldValidation")
_LIST_QUERY = (
    *("allowWatchBookmarks", "continue", "fieldSelector", "labelSelector", "limit", "resourceVersion"),
    *("resourceVersionMatch", "sendInitialEvents", "timeoutSeconds", "watch"),
)
_DELETE_QUERY = (
    "dryRun",
    "gracePeriodSeconds",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "orphanDependents",
    "propagationPolicy",
)
_DELETE_COLLECTION_QUERY = (
    *_DELETE_QUERY,
    *(name for name in _LIST_QUERY if name not in ("allowWatchBookmarks", "watch")),
)
_LOG_QUERY = (
    *("container", "follow", "insecureSkipTLSVerifyBackend", "limitBytes", "previous", "sinceSeconds", "stream"),
    *("tailLines", "timestamps"),
)
_QUERY_TYPES = {
    **dict.fromkeys(("allowWatchBookmarks", "force", "sendInitialEvents", "watch", "orphanDependents"), "boolean"),
    **dict.fromkeys(("follow", "insecureSkipTLSVerifyBackend", "previous", "timestamps"), "boolean"),
    "ignoreStoreReadErrorWithClusterBreakingPotential": "boolean",
    **dict.fromkeys(("gracePeriodSeconds", "limit", "timeoutSeconds"), "integer"),
    **dict.fromkeys(("limitBytes", "sinceSeconds", "tailLines"), "integer"),
}
_PATCH_MEDIA_TYPES = ("application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json")
_STRATEGIC_MEDIA_TYPE = "application/strategic-merge-patch+json"
# verb -> (method, x-kubernetes-action, word in the operation's id, query parameters, answers)
_VERBS: Mapping[str, tuple[str, str, str, tuple[str, ...], tuple[str, ...]]] = {
    "list": ("get", "list", "list", _LIST_QUERY, ("200",)),
    "create": ("post", "post", "create", _WRITE_QUERY, ("200", "201", "202")),
    "deletecollection": ("delete", "deletecollection", "delete", _DELETE_COLLECTION_QUERY, ("200",)),
    "get": ("get", "get", "read", (), ("200",)),
    "update": ("put", "put", "replace", _WRITE_QUERY, ("200", "201")),
    "patch": ("patch", "patch", "patch", (*_WRITE_QUERY, "force"), ("200", "201")),
    "delete": ("delete", "delete", "delete", _DELETE_QUERY, ("200", "202")),
}
# The real server describes some requests for custom kinds otherwise, although it takes the same.
_CUSTOM_QUERY = {"get": ("resourceVersion",), "deletecollection": _LIST_QUERY}
_RESPONSE_DESCRIPTIONS = {"200": "OK", "201": "Created", "202": "Accepted", "401": "Unauthorized"}


class OpenApiResource(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenApiResource describes one resource; `schema` is the CRD's openAPIV3Schema, None for a built-in kind."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    verbs: tuple[str, ...]
    list_kind: str
    subresources: tuple[Subresource, ...] = ()
    schema: Mapping[str, Any] | None = None


class DefinitionNames:
    """DefinitionNames maps kinds to the names of their schemas. The options of exec and proxy have none."""

    def __init__(self, names: Mapping[tuple[str, str, str], str]) -> None:
        self._names = names

    def definition_name(self, group: str, version: str, kind: str) -> str | None:
        return self._names.get((group, version, kind))


def operations(resource: OpenApiResource, naming: DefinitionNames) -> Iterator[tuple[str, str, Document]]:
    """Yield (path, method, operation), with schemas as plain names, which the dialect turns into refs."""
    root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
    below = f"{root}/namespaces/{{namespace}}/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"
    for verb in ("list", "create", "deletecollection"):
        if verb in resource.verbs:
            yield _operation(below, verb, resource, naming)
    if resource.namespaced and "list" in resource.verbs:
        yield _operation(f"{root}/{resource.plural}", "list", resource, naming)
    for verb in ("get", "update", "patch", "delete"):
        if verb in resource.verbs:
            yield _operation(f"{below}/{{name}}", verb, resource, naming)
    for sub in resource.subresources:
        for verb in sub.verbs:
            if verb in _VERBS:
                yield _operation(f"{below}/{{name}}/{sub.name}", verb, resource, naming, sub)


def _operation(
    path: str, verb: str, resource: OpenApiResource, naming: DefinitionNames, sub: Subresource | None = None
) -> tuple[str, str, Document]:
    method, action, word, query, answers = _VERBS[verb]
    kind = sub.kind if sub else resource.kind
    group = (sub.group if sub else "") or resource.group
    version = (sub.version if sub else "") or resource.version
    body = naming.definition_name(group, version, kind)
    answer = body
    custom = resource.schema is not None
    if custom:
        query = _CUSTOM_QUERY.get(verb, query)
    if sub and sub.name == "log":
        query, answer = _LOG_QUERY, None
    if body is None and sub:  # a stream or a relay: what goes through it is no object
        action, word, query, answers = "connect", f"connect {method.capitalize()}", (), ("200",)
    if verb == "list":
        answer = naming.definition_name(resource.group, resource.version, resource.list_kind)
    elif verb in ("delete", "deletecollection") and sub is None:
        body, answer = META_V1 + "DeleteOptions", META_V1 + "Status"
    operation: Document = {
        "operationId": _operation_id(word, verb, path, resource, sub),
        "parameters": [*_path_parameters(path), *(_query_parameter(name) for name in query)],
        "responses": {code: {"description": _RESPONSE_DESCRIPTIONS[code], "schema": answer} for code in answers}
        | {"401": {"description": _RESPONSE_DESCRIPTIONS["401"], "schema": None}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
    }
    if action == "connect":
        return path, method, operation
    if verb == "patch":
        operation["body"] = (
            META_V1 + "Patch",
            _PATCH_MEDIA_TYPES if custom else (*_PATCH_MEDIA_TYPES, _STRATEGIC_MEDIA_TYPE),
            True,
        )
    elif body and (verb in ("create", "update", "delete") or (verb == "deletecollection" and not custom)):
        media = ("application/json", "application/yaml") if custom else ("*/*",)
        operation["body"] = (body, media, verb in ("create", "update"))
    return path, method, operation


def _operation_id(word: str, verb: str, path: str, resource: OpenApiResource, sub: Subresource | None) -> str:
    group = resource.group.removesuffix(".k8s.io") or "core"
    title = "".join(part[:1].upper() + part[1:] for part in group.replace("-", ".").split("."))
    version = resource.version[:1].upper() + resource.version[1:]
    scope = "Namespaced" if "{namespace}" in path else ""
    if verb == "deletecollection":
        scope = f"Collection{scope}"
    word, _, detail = word.partition(" ")
    version += detail
    tail = "ForAllNamespaces" if resource.namespaced and "{namespace}" not in path else ""
    extra = sub.name[:1].upper() + sub.name[1:] if sub else ""
    return f"{word}{title}{version}{scope}{resource.kind}{extra}{tail}"


def _path_parameters(path: str) -> list[Document]:
    return [
        {"name": name, "in": "path", "required": True, "type": "string"}
        for name in ("name", "namespace")
        if f"{{{name}}}" in path
    ]


def _query_parameter(name: str) -> Document:
    return {"name": name, "in": "query", "type": _QUERY_TYPES.get(name, "string")}


LIST_META = META_V1 + "ListMeta"

_KEYWORDS = ("type", "format", "default", "enum", "required", "oneOf")
_EXTENSION_KEYWORDS = (
    *("group-version-kind", "list-map-keys", "list-type", "map-type", "patch-merge-key", "patch-strategy"),
)
_V2_SCALARS: dict[str, Document] = {
    QUANTITY: {"type": "string"},
    INT_OR_STRING: {"type": "string", "format": "int-or-string"},
}


class OpenApiDialect:
    """An OpenApiDialect knows how a version writes references and what it can express."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._root = "#/components/schemas/" if version == 3 else "#/definitions/"

    def ref(self, name: str) -> Document:
        return {"$ref": self._root + name}

    def ref_with(self, name: str, more: Document) -> Document:
        """Return a reference with keywords beside it; version 3 needs an allOf wrapper for that."""
        if not more or self.version == 2:
            return {**self.ref(name), **more}
        return {**more, "allOf": [self.ref(name)]}


def builtin_schema(builtin: BuiltinTypes, name: str, dialect: OpenApiDialect) -> Document:
    entry = builtin.definition_entry(name)
    if dialect.version == 2 and name in _V2_SCALARS:
        return dict(_V2_SCALARS[name])
    out = _schema_keywords(entry, dialect)
    if "fields" in entry:
        out["properties"] = {key: _field_schema(entry["fields"][key], dialect) for key in sorted(entry["fields"])}
    if name == OBJECT_META:
        out["description"] = _METADATA_DESCRIPTION
        out["properties"]["creationTimestamp"]["description"] = _CREATION_DESCRIPTION
    if "gvk" in entry:
        out["x-kubernetes-group-version-kind"] = [
            {"group": group, "kind": kind, "version": version} for group, version, kind in entry["gvk"]
        ]
    if "unions" in entry:
        out["x-kubernetes-unions"] = entry["unions"]
    return out


def _schema_keywords(entry: Mapping[str, Any], dialect: OpenApiDialect) -> Document:
    out = {key: entry[key] for key in _KEYWORDS if key in entry}
    out |= {f"x-kubernetes-{key}": entry[key] for key in _EXTENSION_KEYWORDS if key in entry}
    if dialect.version == 2:
        out.pop("default", None)
        out.pop("oneOf", None)
    return out


def _field_schema(entry: Mapping[str, Any], dialect: OpenApiDialect) -> Document:
    out = _schema_keywords(entry, dialect)
    if "ref" in entry:
        return dialect.ref_with(entry["ref"], out)
    if "items" in entry:
        out["items"] = _field_schema(entry["items"], dialect)
    if "values" in entry:
        out["additionalProperties"] = _field_schema(entry["values"], dialect)
    return out


def referenced_definitions(schema: Any) -> Iterator[str]:
    """Yield the names of the definitions that a schema refers to."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                yield value.rpartition("/")[2]
            else:
                yield from referenced_definitions(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from referenced_definitions(item)


def definition_closure(builtin: BuiltinTypes, names: Iterable[str], dialect: OpenApiDialect) -> Document:
    """Return the schemas of these definitions and of all definitions that they refer to."""
    out: Document = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in out:
            out[name] = builtin_schema(builtin, name, dialect)
            waiting += referenced_definitions(out[name])
    return out


def custom_definition_name(group: str, version: str, kind: str) -> str:
    """Return the definition name of a custom kind: reversed group, version and kind, as in Go packages."""
    return ".".join([*reversed(group.split(".")), version, kind])


def custom_schema(schema: Mapping[str, Any], group: str, version: str, kind: str, dialect: OpenApiDialect) -> Document:
    out = _translate_schema(schema, dialect)
    out.setdefault("type", "object")
    if out.get("x-kubernetes-preserve-unknown-fields") and dialect.version == 2:
        out = {"type": "object"}  # old clients would prune what properties do not name
    else:
        known = out.get("properties", {})
        out["properties"] = {
            **_type_and_metadata_properties(dialect),
            **{k: v for k, v in known.items() if k not in META_FIELDS},
        }
    out["x-kubernetes-group-version-kind"] = [{"group": group, "kind": kind, "version": version}]
    return out


def custom_list_schema(group: str, version: str, kind: str, list_kind: str, dialect: OpenApiDialect) -> Document:
    return {
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": _TYPE_PROPERTIES["apiVersion"],
            "items": {"type": "array", "items": dialect.ref(custom_definition_name(group, version, kind))},
            "kind": _TYPE_PROPERTIES["kind"],
            "metadata": dialect.ref(LIST_META),
        },
        "x-kubernetes-group-version-kind": [{"group": group, "kind": list_kind, "version": version}],
    }


_COMBINATORS = ("allOf", "anyOf", "oneOf")
_V3_ONLY_KEYWORDS = ("default", "nullable", "not", *_COMBINATORS)


def _translate_schema(schema: Mapping[str, Any], dialect: OpenApiDialect) -> Document:
    old = dialect.version == 2
    out: Document = {}
    for key, value in schema.items():
        if old and key in _V3_ONLY_KEYWORDS:
            continue
        if key == "properties":
            out[key] = {name: _translate_schema(sub, dialect) for name, sub in value.items()}
        elif key in ("items", "additionalProperties", "not") and isinstance(value, dict):
            out[key] = _translate_schema(value, dialect)
        elif key in _COMBINATORS:
            out[key] = [_translate_schema(sub, dialect) for sub in value]
        else:
            out[key] = value
    if old and (schema.get("nullable") or schema.get("x-kubernetes-preserve-unknown-fields")):
        # Old clients would refuse a null, or prune what they do not know: say less.
        for key in ("type", "properties", "items", "additionalProperties", "required", "enum", "format"):
            out.pop(key, None)
    elif schema.get("x-kubernetes-embedded-resource"):
        out["properties"] = {
            **_type_and_metadata_properties(dialect),
            **{k: v for k, v in out.get("properties", {}).items() if k not in META_FIELDS},
        }
        stated = out.get("required", [])
        out["required"] = [*stated, *(key for key in ("kind", "apiVersion") if key not in stated)]
    return out


def _type_and_metadata_properties(dialect: OpenApiDialect) -> Document:
    """Return the properties that every resource has, embedded ones too."""
    return {**_TYPE_PROPERTIES, "metadata": dialect.ref(OBJECT_META)}


_METADATA_DESCRIPTION = "Standard object's metadata."
_CREATION_DESCRIPTION = "CreationTimestamp is a timestamp of the moment at which the server created the object."
_CONVENTIONS = "https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md"
# Clients look for these words to tell a published schema from an empty one.
_TYPE_PROPERTIES: Document = {
    "apiVersion": {
        "description": "APIVersion defines the versioned schema of this representation of an object. Servers should "
        "convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: "
        f"{_CONVENTIONS}#resources",
        "type": "string",
    },
    "kind": {
        "description": "Kind is a string value representing the REST resource this object represents. Servers may "
        "infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: "
        f"{_CONVENTIONS}#types-kinds",
        "type": "string",
    },
}


_MEDIA_TYPES = ("application/json", "application/yaml")
_BEARER_TOKEN = {"type": "apiKey", "name": "authorization", "in": "header"}
# Every document speaks of these, whatever its kinds are.
_COMMON_DEFINITIONS = (META_V1 + "DeleteOptions", META_V1 + "Patch", META_V1 + "Status")


def v3_document(builtin: BuiltinTypes, resources: Sequence[OpenApiResource]) -> Document:
    """Build the OpenAPI 3 document of one group-version from the resources served in it."""
    dialect = OpenApiDialect(3)
    paths = _path_items(builtin, resources, _v3_operation)
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": builtin.release},
        "paths": paths,
        "components": {
            "schemas": _definitions(builtin, resources, paths, dialect),
            "securitySchemes": {"BearerToken": _BEARER_TOKEN},
        },
    }


def v2_document(builtin: BuiltinTypes, resources: Sequence[OpenApiResource]) -> Document:
    """Build the one OpenAPI 2 document of all resources."""
    dialect = OpenApiDialect(2)
    paths = _path_items(builtin, resources, _v2_operation)
    return {
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": builtin.release},
        "paths": paths,
        "definitions": _definitions(builtin, resources, paths, dialect),
        "securityDefinitions": {"BearerToken": _BEARER_TOKEN},
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


def _definition_names(builtin: BuiltinTypes, resources: Sequence[OpenApiResource]) -> DefinitionNames:
    names: dict[tuple[str, str, str], str] = {
        gvk: name
        for name in builtin.definition_names()
        if not name.startswith(META_V1)
        for gvk in builtin.kinds_of(name)
    }
    for found in resources:
        if found.schema is not None:
            for kind in (found.kind, found.list_kind):
                names[found.group, found.version, kind] = custom_definition_name(found.group, found.version, kind)
    return DefinitionNames(names)


def _path_items(builtin: BuiltinTypes, resources: Sequence[OpenApiResource], spelled: Any) -> Document:
    naming = _definition_names(builtin, resources)
    paths: Document = {}
    for resource in resources:
        for path, method, operation in operations(resource, naming):
            paths.setdefault(path, {})[method] = spelled(operation)
    return dict(sorted(paths.items()))


def _definitions(
    builtin: BuiltinTypes, resources: Sequence[OpenApiResource], paths: Document, dialect: OpenApiDialect
) -> Document:
    out: Document = {}
    for found in resources:
        if found.schema is not None:
            where = (found.group, found.version)
            out[custom_definition_name(*where, found.kind)] = custom_schema(found.schema, *where, found.kind, dialect)
            out[custom_definition_name(*where, found.list_kind)] = custom_list_schema(
                *where, found.kind, found.list_kind, dialect
            )
    needed = {*_COMMON_DEFINITIONS, *referenced_definitions(paths), *referenced_definitions(out)} - out.keys()
    return dict(sorted({**definition_closure(builtin, needed, dialect), **out}.items()))


def _v3_operation(operation: Document) -> Document:
    ref = OpenApiDialect(3).ref
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
            out["responses"][code]["content"] = {kind: {"schema": schema} for kind in _MEDIA_TYPES}
    return out


def _v2_operation(operation: Document) -> Document:
    ref = OpenApiDialect(2).ref
    out = {k: v for k, v in operation.items() if k not in ("body", "responses", "parameters")}
    out["consumes"] = list(operation["body"][1]) if "body" in operation else ["*/*"]
    out["produces"] = list(_MEDIA_TYPES)
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
