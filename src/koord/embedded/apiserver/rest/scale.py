"""The scale subresource: autoscaling/v1 Scale as a view of a workload, and its GET, PUT and PATCH."""

from __future__ import annotations

from typing import Any

from koord.api.model import Obj
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.catalog import ScalePaths
from koord.embedded.apiserver.kinds.validators import format_selector
from koord.embedded.apiserver.rest import request_body, virtual_resources
from koord.embedded.apiserver.rest.create_update import ObjectWriter, to_served_version
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
from koord.kube.transport.interface import APPLY_PATCH, ApiResponse


class ScaleHandler:
    def __init__(self, deps: ServerDeps, writer: ObjectWriter) -> None:
        self._deps = deps
        self._writer = writer

    async def handle(self, context: RequestContext, verb: str) -> ApiResponse:
        if verb == "get":
            return json_response(200, self._scale(context, self._get(context)))
        if verb == "update":
            options = write_options(context.request.query, "UpdateOptions")
            plain = request_body.decode_body(context.request, virtual_resources.scale_resource())
            checked = request_body.check_body_kind(
                virtual_resources.scale_resource(), self._deps.catalog, context.request, plain
            )
            scale = request_body.read_as_kind(
                virtual_resources.scale_resource(), context.request, checked, options.field_validation, context.warnings
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
        found = virtual_resources.scale_resource().decode(plain)
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
