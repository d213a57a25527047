"""Resources that are served and never stored: Binding, Eviction, access and token reviews, and Scale as a view of a
workload.

Nothing is stored. A NodeMetric knows what a pod uses as a whole, so all of it is shown at the pod's first container.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from koord.api.model import Obj
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.api_errors import ApiFieldError
from koord.embedded.apiserver.catalog import ScalePaths, ServedResource
from koord.embedded.apiserver.kinds.validators import format_selector
from koord.embedded.apiserver.rest import request_body
from koord.embedded.apiserver.rest.create_update import ObjectWriter, to_served_version
from koord.embedded.apiserver.rest.listing import parse_selection
from koord.embedded.apiserver.rest.object_metadata import deep_copy
from koord.embedded.apiserver.rest.options import WriteOptions, write_options
from koord.embedded.apiserver.rest.patch import (
    apply_patch,
    decode_patch,
    invalid_patch_result,
    patch_options,
    patch_type,
)
from koord.embedded.apiserver.rest.request_context import RequestContext, ServerDeps, WriteResult
from koord.embedded.apiserver.rest.responses import json_response
from koord.embedded.apiserver.rest.subresource_strategy import MAIN_STRATEGY
from koord.embedded.apiserver.schema.builtin_decoding import DecodeResult, decode_builtin
from koord.embedded.apiserver.schema.builtin_types import builtin_types
from koord.embedded.apiserver.schema.schema_node import SchemaNode
from koord.embedded.apiserver.store.collection import StoreRecord
from koord.kube.transport.interface import APPLY_PATCH, ApiResponse


@functools.cache
def _virtual_resource(group: str, version: str, kind: str, like: str = "") -> ServedResource:
    """Describe a kind that is not stored. `like` is the version whose fields it has, when its own is not served."""
    node = builtin_types().node_for(group, like or version, kind)
    assert node is not None, f"{kind} is built in"
    return ServedResource(
        group=group,
        version=version,
        kind=kind,
        plural=f"{kind.lower()}s",
        schema_node=node,
        decode=functools.partial(decode_builtin, node=node),
    )


def binding_resources() -> tuple[ServedResource, ...]:
    return (_virtual_resource("", "v1", "Binding"),)


def eviction_resources() -> tuple[ServedResource, ...]:
    """Return the versions of Eviction. The server still takes the old one, though discovery does not list it."""
    return _virtual_resource("policy", "v1", "Eviction"), _virtual_resource("policy", "v1beta1", "Eviction", like="v1")


def scale_resource() -> ServedResource:
    return _virtual_resource("autoscaling", "v1", "Scale")


USER_GROUPS = ("system:masters", "system:authenticated")  # whoever gets in may do everything here


def user_info(user: str) -> Obj:
    return {"username": user, "uid": user, "groups": list(USER_GROUPS)}


def answer_review(kind: str, obj: Obj, user: str, tokens: Mapping[str, str], now: str) -> Obj:
    """Return the posted review with its status. `tokens` maps bearer tokens to users."""
    spec = obj.get("spec") or {}
    match kind:
        case "SelfSubjectReview":
            return {
                "kind": kind,
                "apiVersion": "authentication.k8s.io/v1",
                "metadata": {"creationTimestamp": now},
                "status": {"userInfo": user_info(user)},
            }
        case "TokenReview":
            return {**obj, "status": _token_review_status(spec, tokens)}
        case "SelfSubjectRulesReview":
            return {**obj, "spec": {}, "status": _allow_all_rules()}
        case _:
            _check_access(kind, spec)
            return {**obj, "status": {"allowed": True}}


def _token_review_status(spec: Obj, tokens: Mapping[str, str]) -> Obj:
    if not spec.get("token"):
        raise api_errors.bad_request("token is required for TokenReview in authentication")
    user = tokens.get(spec["token"])
    if user is None:
        return {"user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": user_info(user)}


def _allow_all_rules() -> Obj:
    return {
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "incomplete": False,
    }


def _check_access(kind: str, spec: Obj) -> None:
    errors: list[ApiFieldError] = []
    resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
    if resource is not None and path is not None:
        detail = "cannot be specified in combination with resourceAttributes"
        errors.append(api_errors.invalid_value("spec.nonResourceAttributes", path, detail))
    if resource is None and path is None:
        detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
        errors.append(api_errors.invalid_value("spec.resourceAttributes", None, detail))
    if kind != "SelfSubjectAccessReview" and not spec.get("user") and not spec.get("groups"):
        detail = "at least one of user or group must be specified"
        errors.append(api_errors.invalid_value("spec.user", "", detail))
    if errors:
        raise api_errors.invalid("", "authorization.k8s.io", "", errors)


METRICS_GROUP = "metrics.k8s.io"
NODE_METRICS = "nodemetrics.slo.koordinator.sh"
DEFAULT_WINDOW = "1m0s"
_SCHEMA = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_SHOWN = ("cpu", "memory")


def metrics_resources() -> list[ServedResource]:
    """Return the two resources of the group."""
    return [
        ServedResource(
            group=METRICS_GROUP,
            version="v1beta1",
            kind=kind,
            plural=plural,
            singular=plural[:-1],
            namespaced=plural == "pods",
            verbs=("get", "list"),
            schema_node=SchemaNode(kind="any"),
            decode=DecodeResult,
            custom=True,
            schema=_SCHEMA,
        )
        for kind, plural in (("NodeMetrics", "nodes"), ("PodMetrics", "pods"))
    ]


class ResourceMetrics:
    def __init__(self, deps: ServerDeps) -> None:
        self._deps = deps

    def read(self, context: RequestContext) -> Obj:
        collection = self._deps.store.collection(context.resource.plural)
        record = collection.get(context.namespace, context.name)
        found: list[Obj] = self._measured(context, [record]) if record is not None else []
        if not found:
            kind = f"{context.resource.plural}.{METRICS_GROUP}"
            raise api_errors.not_found(kind, "", f"{context.namespace}/{context.name}".lstrip("/"))
        return found[0]

    def read_all(self, context: RequestContext) -> list[Obj]:
        query = context.request.query
        described = self._deps.catalog.find("", "v1", context.resource.plural)
        assert described is not None, "pods and nodes are built in"
        labels, fields = query.get("labelSelector", ""), query.get("fieldSelector", "")
        selection = parse_selection(described, context.namespace, labels, fields)
        records = self._deps.store.collection(context.resource.plural).scan(context.namespace)
        return self._measured(context, [record for record in records if selection.matches(record)])

    def _measured(self, context: RequestContext, records: list[StoreRecord]) -> list[Obj]:
        """Return the metrics of those of the objects that a NodeMetric reports on."""
        reports = self._deps.store.collection(NODE_METRICS)
        found: list[Obj] = []
        pods_by_node: dict[str, dict[tuple[str, str], Obj]] = {}
        for record in records:
            obj = record.plain()
            is_pod = context.resource.plural == "pods"
            node = (obj.get("spec") or {}).get("nodeName", "") if is_pod else record.name
            report = reports.get("", node)
            status = (report.plain().get("status") or {}) if report is not None else {}
            if not status.get("updateTime"):
                continue
            if is_pod:
                if node not in pods_by_node:
                    pods = status.get("podsMetric") or ()
                    pods_by_node[node] = {(pod.get("namespace", ""), pod.get("name", "")): pod for pod in pods}
                pod = pods_by_node[node].get((record.namespace, record.name))
                usage = ((pod or {}).get("podUsage") or {}).get("resources")
            else:
                usage = ((status.get("nodeMetric") or {}).get("nodeUsage") or {}).get("resources")
            if usage:
                found.append(self._metrics(context.resource, obj, status["updateTime"], _cpu_and_memory(usage)))
        return found

    def _metrics(self, resource: ServedResource, obj: Obj, stamp: str, usage: Obj) -> Obj:
        meta = {key: obj["metadata"][key] for key in ("name", "namespace", "labels") if obj["metadata"].get(key)}
        made: Obj = {
            "kind": resource.kind,
            "apiVersion": resource.api_version,
            "metadata": {**meta, "creationTimestamp": self._deps.metadata_generator.now()},
            "timestamp": stamp,
            "window": DEFAULT_WINDOW,
        }
        if resource.plural == "nodes":
            return {**made, "usage": usage}
        nothing = dict.fromkeys(usage, "0")
        containers = [container["name"] for container in obj["spec"].get("containers") or ()]
        return {
            **made,
            "containers": [{"name": name, "usage": nothing if at else usage} for at, name in enumerate(containers)],
        }


def _cpu_and_memory(usage: Obj) -> Obj:
    return {name: str(usage.get(name, "0")) for name in _SHOWN}


class ScaleHandler:
    def __init__(self, deps: ServerDeps, writer: ObjectWriter) -> None:
        self._deps = deps
        self._writer = writer

    async def handle(self, context: RequestContext, verb: str) -> ApiResponse:
        if verb == "get":
            return json_response(200, self._scale(context, self._get(context)))
        if verb == "update":
            options = write_options(context.request.query, "UpdateOptions")
            plain = request_body.decode_body(context.request, scale_resource())
            checked = request_body.check_body_kind(scale_resource(), self._deps.catalog, context.request, plain)
            scale = request_body.read_as_kind(
                scale_resource(), context.request, checked, options.field_validation, context.warnings
            )
            self._check_name(context, scale)
            return await self._write(context, lambda _: scale, options, own_uid=True)
        media = patch_type(context)
        options = patch_options(context.request)
        if media == APPLY_PATCH:
            raise api_errors.unsupported_media(
                "the scale subresource takes application/json-patch+json, application/merge-patch+json and "
                "application/strategic-merge-patch+json"
            )
        patch = decode_patch(context.request, media)

        def change(now: Obj) -> Obj:
            return self._read(context, apply_patch(context, media, now, patch), options)

        return await self._write(context, change, options, own_uid=False)

    async def _write(
        self, context: RequestContext, change: Any, options: WriteOptions, *, own_uid: bool
    ) -> ApiResponse:
        paths = context.resource.scale

        def of_workload(old: Obj) -> Obj:
            return with_scaled_replicas(old, change(scale_from_object(old, paths)), paths)

        outcome = await self._writer.update(context, MAIN_STRATEGY, of_workload, options, own_uid=own_uid)
        return json_response(outcome.status, self._scale(context, self._written_object(context, outcome)))

    def _written_object(self, context: RequestContext, outcome: WriteResult) -> Obj:
        if outcome.record is not None:
            return to_served_version(context.resource, outcome.record)
        assert outcome.plain is not None, "a write leaves a record or an object"
        return outcome.plain

    def _scale(self, context: RequestContext, obj: Obj) -> Obj:
        return scale_from_object(obj, context.resource.scale)

    def _get(self, context: RequestContext) -> Obj:
        record = context.collection(self._deps).get(context.namespace, context.name)
        if record is None:
            raise api_errors.not_found(context.resource.plural, context.resource.group, context.name)
        return to_served_version(context.resource, record)

    def _read(self, context: RequestContext, plain: Obj, options: WriteOptions) -> Obj:
        found = scale_resource().decode(plain)
        if found.error:
            raise invalid_patch_result(str(plain), found.error)
        if found.unknown and options.field_validation == "Strict":
            raise api_errors.bad_request(f"strict decoding error: {', '.join(found.unknown)}")
        if options.field_validation == "Warn":
            context.warnings += [text for text in found.unknown if text not in context.warnings]
        scale: Obj = found.value
        return scale

    def _check_name(self, context: RequestContext, scale: Obj) -> None:
        name = scale.get("metadata", {}).get("name", "")
        if name != context.name:
            raise api_errors.bad_request(
                f"the name of the object ({name}) does not match the name on the URL ({context.name})"
            )


def read_dotted_path(obj: Obj, path: str) -> Any:
    value: Any = obj
    for part in path.strip(".").split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def write_dotted_path(obj: Obj, path: str, value: Any) -> None:
    *parents, last = path.strip(".").split(".")
    for part in parents:
        obj = obj.setdefault(part, {})
    obj[last] = value


def scale_from_object(obj: Obj, paths: ScalePaths) -> Obj:
    meta = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: Obj = {"replicas": read_dotted_path(obj, paths.status_replicas) or 0}
    selector = format_selector(read_dotted_path(obj, paths.selector)) if paths.selector else ""
    if selector:
        status["selector"] = selector
    replicas = read_dotted_path(obj, paths.replicas)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def with_scaled_replicas(obj: Obj, scale: Obj, paths: ScalePaths) -> Obj:
    """Return a private copy of `obj` with the replicas that `scale` asks for. Raises when they are invalid."""
    replicas = scale.get("spec", {}).get("replicas", 0)
    name = scale.get("metadata", {}).get("name", "")
    if replicas < 0:
        error = api_errors.invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
        raise api_errors.invalid("Scale", "autoscaling", name, [error])
    new = deep_copy(obj)
    write_dotted_path(new, paths.replicas, replicas)
    given = scale.get("metadata", {})
    new["metadata"]["resourceVersion"] = given.get("resourceVersion") or ""
    if given.get("uid"):
        new["metadata"]["uid"] = given["uid"]
    return new
