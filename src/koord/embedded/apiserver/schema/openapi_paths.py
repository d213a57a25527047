"""This module builds the paths of OpenAPI documents: the operations of each resource, with their parameters.

kubectl asks whether PATCH knows `fieldValidation` before it leaves validation to the server, and `kubectl
explain` finds a resource's kind through its paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from koord.embedded.apiserver.schema.builtin_types import META_V1, Subresource

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
