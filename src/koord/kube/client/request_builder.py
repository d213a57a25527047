"""This module builds the requests of the Kubernetes API's verbs. It sends nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.resource import Resource
from koord.api.model import Model, to_dict
from koord.kube.transport.interface import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, ApiRequest

PatchKind = Literal["merge", "strategic", "json"]
Propagation = Literal["Foreground", "Background", "Orphan"]
FieldValidation = Literal["Ignore", "Warn", "Strict"]
VersionMatch = Literal["Exact", "NotOlderThan"]
Unstructured = dict[str, Any]

_PATCH_TYPE = {"merge": MERGE_PATCH, "strategic": STRATEGIC_PATCH, "json": JSON_PATCH}


def _object_path(resource: Resource[Object], namespace: str | None, name: str, subresource: str | None = None) -> str:
    """Return the path of one object. A missing name is an error: a delete would become a delete of everything."""
    if not name:
        raise ValueError(f"a {resource.kind} is addressed by name, and the name is empty")
    return resource.path(_required_namespace(resource, namespace), name, subresource)


def _required_namespace(resource: Resource[Object], namespace: str | None) -> str | None:
    if resource.namespaced and not namespace:
        raise ValueError(f"{resource.kind} is namespaced and no namespace was given")
    return namespace


def _query(given: Mapping[str, str | bool | int | None]) -> dict[str, str]:
    """Build the query of what was asked for: absent, empty and false parameters are left to the server."""
    return {key: "true" if value is True else str(value) for key, value in given.items() if value is not None and value}


def _write_query(
    dry_run: bool, field_manager: str | None, field_validation: str | None = None, force: bool = False
) -> dict[str, str]:
    return _query(
        {
            "dryRun": "All" if dry_run else None,
            "fieldManager": field_manager,
            "fieldValidation": field_validation,
            "force": force,
        }
    )


def _with_type_meta(resource: Resource[Object], obj: Model | Unstructured, subresource: str | None) -> Unstructured:
    """Return the object as dicts with apiVersion and kind. Subresources' bodies (Binding, Scale) are other kinds."""
    plain = to_dict(obj) if isinstance(obj, Model) else obj
    if subresource and subresource != "status":
        return plain
    named = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {**named, **plain}


def _metadata_field(plain: Unstructured, field: str) -> str:
    metadata = plain.get("metadata")
    value = metadata.get(field) if isinstance(metadata, dict) else None
    return value if isinstance(value, str) else ""


def get(
    resource: Resource[Object],
    name: str,
    namespace: str | None = None,
    *,
    subresource: str | None = None,
    resource_version: str | None = None,
) -> ApiRequest:
    query = {} if resource_version is None else {"resourceVersion": resource_version}
    return ApiRequest(method="GET", path=_object_path(resource, namespace, name, subresource), query=query)


def listing(
    resource: Resource[Object],
    namespace: str | None = None,
    *,
    labels: str = "",
    fields: str = "",
    limit: int = 0,
    resource_version: str | None = None,
    resource_version_match: VersionMatch | None = None,
) -> ApiRequest:
    """Build a list of all objects that match, in pages of `limit` (0: one page)."""
    query = _query({"labelSelector": labels, "fieldSelector": fields, "limit": limit})
    if resource_version is not None:  # "0" and "" are different questions
        query["resourceVersion"] = resource_version
    if resource_version_match is not None:
        query["resourceVersionMatch"] = resource_version_match
    return ApiRequest(method="GET", path=resource.path(namespace), query=query)


def next_page(first: ApiRequest, token: str) -> ApiRequest:
    """Build the request of the next page. A continue token names its version; the server refuses both together."""
    kept = {k: v for k, v in first.query.items() if k not in ("resourceVersion", "resourceVersionMatch")}
    return msgspec.structs.replace(first, query={**kept, "continue": token})


def without_limit(first: ApiRequest) -> ApiRequest:
    return msgspec.structs.replace(first, query={k: v for k, v in first.query.items() if k != "limit"})


def watch(
    resource: Resource[Object],
    namespace: str | None = None,
    *,
    labels: str = "",
    fields: str = "",
    resource_version: str = "",
    bookmarks: bool = True,
    send_initial_events: bool = False,
    timeout_s: int | None = None,
) -> ApiRequest:
    query = _query(
        {
            "watch": True,
            "labelSelector": labels,
            "fieldSelector": fields,
            "resourceVersion": resource_version,
            "allowWatchBookmarks": bookmarks,
            "timeoutSeconds": timeout_s,
        }
    )
    if send_initial_events:
        query["sendInitialEvents"] = "true"
        query["resourceVersionMatch"] = "NotOlderThan"  # the server demands it with sendInitialEvents
    return ApiRequest(method="GET", path=resource.path(namespace), query=query)


def create(
    resource: Resource[Object],
    obj: Model | Unstructured,
    namespace: str | None = None,
    *,
    name: str | None = None,
    subresource: str | None = None,
    dry_run: bool = False,
    field_manager: str | None = None,
    field_validation: FieldValidation | None = None,
) -> ApiRequest:
    """Build a create request. `obj` may omit apiVersion and kind; `namespace` and `name`, which addresses the parent
    of a subresource, are by default the body's own.
    """
    body = _with_type_meta(resource, obj, subresource)
    where = namespace or _metadata_field(body, "namespace") or None
    if subresource:
        path = _object_path(resource, where, name or _metadata_field(body, "name"), subresource)
    else:
        path = resource.path(_required_namespace(resource, where))
    query = _write_query(dry_run, field_manager, field_validation)
    return ApiRequest(method="POST", path=path, query=query, body=body)


def replace(
    resource: Resource[Object],
    obj: Unstructured,
    namespace: str | None = None,
    *,
    name: str | None = None,
    subresource: str | None = None,
    dry_run: bool = False,
    field_manager: str | None = None,
    field_validation: FieldValidation | None = None,
) -> ApiRequest:
    if isinstance(obj, Model):
        raise TypeError(f"a decoded {resource.kind} has lost the fields it does not know: patch it instead")
    body = _with_type_meta(resource, obj, subresource)
    path = _object_path(
        resource,
        namespace or _metadata_field(body, "namespace") or None,
        name or _metadata_field(body, "name"),
        subresource,
    )
    query = _write_query(dry_run, field_manager, field_validation)
    return ApiRequest(method="PUT", path=path, query=query, body=body)


def patch(
    resource: Resource[Object],
    name: str,
    patch: Unstructured | list[Any],
    namespace: str | None = None,
    *,
    kind: PatchKind,
    subresource: str | None = None,
    uid: str | None = None,
    resource_version: str | None = None,
    dry_run: bool = False,
    field_manager: str | None = None,
    field_validation: FieldValidation | None = None,
) -> ApiRequest:
    """Build a patch. `uid` and `resource_version` are preconditions: a write for another object or version fails."""
    wanted = {"uid": uid, "resourceVersion": resource_version}
    required = {field: value for field, value in wanted.items() if value}
    body: Unstructured | list[Any]
    if kind == "json":
        if not isinstance(patch, list):
            raise TypeError("a JSON patch is a list of operations")
        tests = [{"op": "test", "path": f"/metadata/{field}", "value": value} for field, value in required.items()]
        body = [*tests, *patch]
    else:
        if not isinstance(patch, dict):
            raise TypeError(f"a {kind} patch is a map")
        body = {**patch, "metadata": {**(patch.get("metadata") or {}), **required}} if required else patch
    return ApiRequest(
        method="PATCH",
        path=_object_path(resource, namespace, name, subresource),
        query=_write_query(dry_run, field_manager, field_validation),
        body=body,
        content_type=_PATCH_TYPE[kind],
    )


def patch_object(
    resource: Resource[Object],
    obj: Object,
    change: Unstructured,
    *,
    kind: PatchKind,
    subresource: str | None = None,
    exactly: bool = False,
) -> ApiRequest:
    """Build a patch of the very object that was read, known by its UID; `exactly`: in the version that was read."""
    meta = obj.metadata
    version = meta.resource_version if exactly else None
    return patch(
        resource,
        meta.name,
        change,
        meta.namespace or None,
        kind=kind,
        subresource=subresource,
        uid=meta.uid,
        resource_version=version,
    )


def apply(
    resource: Resource[Object],
    obj: Unstructured,
    *,
    field_manager: str,
    force: bool = False,
    namespace: str | None = None,
    subresource: str | None = None,
    dry_run: bool = False,
) -> ApiRequest:
    if isinstance(obj, Model):
        raise TypeError(f"a decoded {resource.kind} would apply every field it read: apply only what you own")
    body = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
    return ApiRequest(
        method="PATCH",
        path=_object_path(
            resource,
            namespace or _metadata_field(body, "namespace") or None,
            _metadata_field(body, "name"),
            subresource,
        ),
        query=_write_query(dry_run, field_manager, force=force),
        body=body,
        content_type=APPLY_PATCH,
    )


def delete_options(
    uid: str | None,
    resource_version: str | None,
    grace_seconds: int | None,
    propagation: str | None,
    dry_run: bool,
    stated: Unstructured | None = None,
) -> Unstructured:
    """Build delete options from single values, on top of `stated`, whose own preconditions stand."""
    options: Unstructured = {**(stated or {})}
    given = {k: v for k, v in (("uid", uid), ("resourceVersion", resource_version)) if v}
    required = {**given, **options.get("preconditions", {})}
    if required:
        options["preconditions"] = required
    if grace_seconds is not None:  # 0 is "now", absent is "as the object says"
        options["gracePeriodSeconds"] = grace_seconds
    if propagation:
        options["propagationPolicy"] = propagation
    if dry_run:
        options["dryRun"] = ["All"]
    return options


def _delete_body(options: Unstructured) -> Unstructured | None:
    return {"apiVersion": "v1", "kind": "DeleteOptions", **options} if options else None


def delete(
    resource: Resource[Object],
    name: str,
    namespace: str | None = None,
    *,
    uid: str | None = None,
    resource_version: str | None = None,
    grace_seconds: int | None = None,
    propagation: Propagation | None = None,
    dry_run: bool = False,
    options: Unstructured | None = None,
) -> ApiRequest:
    """Build a deletion. `options` are further DeleteOptions, as on the wire."""
    options = delete_options(uid, resource_version, grace_seconds, propagation, dry_run, options)
    return ApiRequest(method="DELETE", path=_object_path(resource, namespace, name), body=_delete_body(options))


def delete_collection(
    resource: Resource[Object],
    namespace: str | None = None,
    *,
    labels: str = "",
    fields: str = "",
    grace_seconds: int | None = None,
    propagation: Propagation | None = None,
    dry_run: bool = False,
) -> ApiRequest:
    options = delete_options(None, None, grace_seconds, propagation, dry_run)
    query = _query({"labelSelector": labels, "fieldSelector": fields})
    path = resource.path(_required_namespace(resource, namespace))
    return ApiRequest(method="DELETE", path=path, query=query, body=_delete_body(options))


def bind(namespace: str, pod: str, node: str, *, uid: str, annotations: Mapping[str, str] | None = None) -> ApiRequest:
    metadata: Unstructured = {"name": pod, "namespace": namespace, "uid": uid}
    if annotations:  # merged into the pod's by the server in the same write
        metadata["annotations"] = dict(annotations)
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": metadata,
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    return ApiRequest(method="POST", path=f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", body=body)


def evict(
    namespace: str,
    pod: str,
    *,
    uid: str | None = None,
    grace_seconds: int | None = None,
    dry_run: bool = False,
    options: Unstructured | None = None,
) -> ApiRequest:
    """Build an eviction. An error with `too_many` is an exhausted disruption budget; it is never retried."""
    body: Unstructured = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": namespace},
    }
    options = delete_options(uid, None, grace_seconds, None, dry_run, options)
    if options:
        body["deleteOptions"] = options
    return ApiRequest(method="POST", path=f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body=body)
