"""Dispatch a request to the verb that it asks for and build its response."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.api_errors import StatusError, bad_request
from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.rest import pod_subresources, request_body, responses, virtual_resources
from koord.embedded.apiserver.rest.conversion import TransformedEncoding
from koord.embedded.apiserver.rest.create_update import ObjectWriter, to_served_version
from koord.embedded.apiserver.rest.delete import DeleteOutcome, Deleter
from koord.embedded.apiserver.rest.listing import list_page
from koord.embedded.apiserver.rest.object_metadata import deep_copy
from koord.embedded.apiserver.rest.options import (
    WriteOptions,
    delete_options,
    list_options,
    parse_resource_version,
    resource_version_too_large,
    write_options,
)
from koord.embedded.apiserver.rest.patch import Patcher
from koord.embedded.apiserver.rest.pod_subresources import PodSubresources
from koord.embedded.apiserver.rest.request_context import RequestContext, ServerDeps, WriteResult
from koord.embedded.apiserver.rest.responses import ListBody, ResponseFormat, json_response, response_body
from koord.embedded.apiserver.rest.subresource_strategy import MAIN_STRATEGY, SubresourceStrategy, strategy_for
from koord.embedded.apiserver.rest.virtual_resources import METRICS_GROUP, ResourceMetrics, ScaleHandler, answer_review
from koord.embedded.apiserver.store.collection import StoreRecord
from koord.kube.transport.interface import ApiResponse, UnstructuredBody

_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
REVIEW_GROUPS = ("authentication.k8s.io", "authorization.k8s.io")
_STREAMS = frozenset(("exec", "attach", "portforward"))


class VerbDispatcher:
    def __init__(
        self,
        deps: ServerDeps,
        tables: Callable[[RequestContext, ResponseFormat], TransformedEncoding],
        tokens: Mapping[str, str],
    ) -> None:
        self._deps = deps
        self._transformed = tables
        self._tokens = tokens
        self._writer = ObjectWriter(deps)
        self._deleter = Deleter(deps, self._writer)
        self._patcher = Patcher(deps, self._writer)
        self._pods = PodSubresources(deps, self._writer, self._deleter)
        self._scale = ScaleHandler(deps, self._writer)
        self._metrics = ResourceMetrics(deps)

    async def dispatch(self, context: RequestContext, response_format: ResponseFormat) -> ApiResponse:
        method = context.request.method
        verb = _VERBS.get(method)
        if verb is None:
            raise api_errors.method_not_allowed()
        if context.resource.group == METRICS_GROUP:
            return self._resource_metrics(context, verb, response_format)
        if context.subresource:
            return await self._on_subresource(context, verb, response_format)
        if not context.name:
            return await self._on_collection(context, verb, response_format)
        if verb == "create" or verb not in context.resource.verbs:
            raise api_errors.method_not_allowed()
        if verb == "get":
            return self._object_response(context, response_format, 200, self._get(context))
        if verb == "update":
            return self._write_response(context, response_format, await self._update(context, MAIN_STRATEGY))
        if verb == "patch":
            return self._write_response(context, response_format, await self._patcher.patch(context, MAIN_STRATEGY))
        return await self._delete(context, response_format)

    async def _on_collection(self, context: RequestContext, verb: str, response_format: ResponseFormat) -> ApiResponse:
        resource = context.resource
        if verb == "create" and "create" in resource.verbs:
            if resource.group in REVIEW_GROUPS:
                return self._review(context, response_format)
            if resource.plural == "bindings":
                return await self._bind(context)
            return self._write_response(context, response_format, await self._create(context))
        if verb == "get" and "list" in resource.verbs:
            page = list_page(context, self._deps, list_options(context.request.query, watch=False))
            return self._list_response(context, response_format, page.records, page.metadata)
        if verb == "delete" and "deletecollection" in resource.verbs:
            options = delete_options(context.request.query, self._optional_body(context))
            listing = list_options(context.request.query, watch=False)
            records, metadata = await self._deleter.delete_collection(context, options, listing)
            return self._list_response(context, response_format, records, metadata)
        raise api_errors.method_not_allowed()

    async def _on_subresource(self, context: RequestContext, verb: str, response_format: ResponseFormat) -> ApiResponse:
        name, resource = context.subresource, context.resource
        if verb not in resource.subresources[name].verbs:
            raise api_errors.method_not_allowed()
        if name == "scale":
            return await self._scale.handle(context, verb)
        update_strategy = strategy_for(resource, name)
        if update_strategy is not None:
            if verb == "get":
                return self._object_response(context, response_format, 200, self._get(context))
            if verb == "update":
                return self._write_response(context, response_format, await self._update(context, update_strategy))
            return self._write_response(context, response_format, await self._patcher.patch(context, update_strategy))
        if resource.storage == "pods" and name == "binding":
            return await self._bind(context)
        if resource.storage == "pods" and name == "eviction":
            options = write_options(context.request.query, "CreateOptions")
            await self._pods.evict(
                context, self._read_virtual(context, options, virtual_resources.eviction_resources()), options
            )
            return json_response(201, responses.CREATED_STATUS_OBJECT)
        if resource.storage == "pods" and name == "log":
            return self._log(context)
        return self._not_implemented(context)

    def _log(self, context: RequestContext) -> ApiResponse:
        """Answer with the log as it is now. Whoever follows it asks `ApiServer.follow_log`."""
        pod = self._get(context).plain()
        if not pod.get("spec", {}).get("nodeName"):
            return ApiResponse(status=204, body=responses.TextBody(b""), content_type="text/plain")
        text = pod_subresources.read_log(pod, pod_subresources.read_log_options(context.request.query), self._deps)
        return ApiResponse(status=200, body=responses.TextBody(text), content_type="text/plain")

    # Reads -------------------------------------------------------------------------------------------------------

    def _get(self, context: RequestContext) -> StoreRecord:
        version = context.request.query.get("resourceVersion", "")
        if version:
            asked = parse_resource_version(version)
            if asked > self._deps.store.revision:
                raise resource_version_too_large(asked, self._deps.store.revision)
        record = context.collection(self._deps).get(context.namespace, context.name)
        if record is None:
            raise api_errors.not_found(context.resource.plural, context.resource.group, context.name)
        return record

    def _resource_metrics(self, context: RequestContext, verb: str, response_format: ResponseFormat) -> ApiResponse:
        if verb != "get":
            raise api_errors.method_not_allowed()
        if context.name:
            return json_response(200, self._metrics.read(context))
        found = self._metrics.read_all(context)
        if response_format.transform:
            return json_response(200, self._transformed(context, response_format).transform_list(found, {}))
        resource = context.resource
        return json_response(
            200, {"kind": resource.list_kind, "apiVersion": resource.api_version, "metadata": {}, "items": found}
        )

    def _object_response(
        self, context: RequestContext, response_format: ResponseFormat, status: int, record: StoreRecord
    ) -> ApiResponse:
        if response_format.transform:
            return json_response(
                status,
                self._transformed(context, response_format).transform_object(
                    to_served_version(context.resource, record)
                ),
            )
        return ApiResponse(status=status, body=response_body(context.resource, record))

    def _list_response(
        self, context: RequestContext, response_format: ResponseFormat, records: list[StoreRecord], metadata: Obj
    ) -> ApiResponse:
        if response_format.transform:
            objects = [to_served_version(context.resource, record) for record in records]
            return json_response(200, self._transformed(context, response_format).transform_list(objects, metadata))
        return ApiResponse(status=200, body=ListBody(context.resource, metadata, records))

    # Writes ------------------------------------------------------------------------------------------------------

    def _write_response(
        self, context: RequestContext, response_format: ResponseFormat, outcome: WriteResult
    ) -> ApiResponse:
        if outcome.record is not None:
            return self._object_response(context, response_format, outcome.status, outcome.record)
        assert outcome.plain is not None, "a write leaves a record or an object"
        if response_format.transform:
            return json_response(
                outcome.status, self._transformed(context, response_format).transform_object(outcome.plain)
            )
        return json_response(outcome.status, outcome.plain)

    async def _create(self, context: RequestContext) -> WriteResult:
        options = write_options(context.request.query, "CreateOptions")
        obj = self._read_body(context, options.field_validation)
        return await self._writer.create(context, obj, options)

    def _read_body(self, context: RequestContext, validation: Any) -> Obj:
        resource, request = context.resource, context.request
        plain = request_body.decode_body(request, resource)
        checked = request_body.check_body_kind(resource, self._deps.catalog, request, plain)
        return request_body.read_as_kind(resource, request, checked, validation, context.warnings)

    async def _update(self, context: RequestContext, update_strategy: SubresourceStrategy) -> WriteResult:
        options = write_options(context.request.query, "UpdateOptions")
        obj = self._read_body(context, options.field_validation)
        obj.setdefault("metadata", {})
        missing = context.collection(self._deps).get(context.namespace, context.name) is None
        if missing and update_strategy is MAIN_STRATEGY and context.resource.strategy.creates_on_update:
            if not obj["metadata"].get("name"):
                raise bad_request(
                    f"the name of the object ({context.name} based on URL) was undeterminable: name must be provided"
                )
            return await self._writer.create(context, obj, options, name=context.name)
        return await self._writer.update(context, update_strategy, lambda _: deep_copy(obj), options, own_uid=True)

    async def _delete(self, context: RequestContext, response_format: ResponseFormat) -> ApiResponse:
        options = delete_options(context.request.query, self._optional_body(context))
        done = await self._deleter.delete(context, options)
        status = 202 if not done.removed and options.orphan_dependents is False else 200
        if done.removed and not context.resource.delete_returns_object:
            return json_response(200, responses.deletion_status(context.resource, context.name, done.uid))
        return self._deleted_response(context, response_format, status, done)

    def _deleted_response(
        self, context: RequestContext, response_format: ResponseFormat, status: int, done: DeleteOutcome
    ) -> ApiResponse:
        if done.record is not None:
            return self._object_response(context, response_format, status, done.record)
        plain = done.plain or {}
        if context.resource.conversion is not None:
            plain = context.resource.conversion.from_storage(plain)
        return json_response(status, plain)

    def _optional_body(self, context: RequestContext) -> Any:
        body = context.request.body
        if body is None or body == b"":
            return None
        return request_body.decode_delete_options(context.request)

    # Questions and errands ---------------------------------------------------------------------------------------

    def _read_virtual(self, context: RequestContext, options: WriteOptions, kinds: Sequence[ServedResource]) -> Obj:
        """Read the body as one of the versions of a kind that is not stored."""
        request = context.request
        plain = request_body.decode_body(request, kinds[0])
        said = plain.get("apiVersion") if isinstance(plain, dict) else None
        kind = next((kind for kind in kinds if kind.api_version == said), kinds[0])
        checked = request_body.check_body_kind(kind, self._deps.catalog, request, plain)
        return request_body.read_as_kind(kind, request, checked, options.field_validation, context.warnings)

    def _review(self, context: RequestContext, response_format: ResponseFormat) -> ApiResponse:
        options = write_options(context.request.query, "CreateOptions")
        obj = self._read_body(context, options.field_validation)
        obj.setdefault("metadata", {})
        now = self._deps.metadata_generator.now()
        user = context.request.user or "admin"
        review = answer_review(context.resource.kind, obj, user, self._tokens, now)
        if response_format.transform:
            review = self._transformed(context, response_format).transform_object(review)
        return json_response(201, review)

    async def _bind(self, context: RequestContext) -> ApiResponse:
        options = write_options(context.request.query, "CreateOptions")
        binding = self._read_virtual(context, options, virtual_resources.binding_resources())
        pods = self._deps.catalog.find("", "v1", "pods")
        assert pods is not None, "pods are built in"
        name = context.name or binding.get("metadata", {}).get("name", "")
        pod = msgspec.structs.replace(context, resource=pods, name=name)
        await self._pods.bind(pod, binding, options)
        return ApiResponse(status=201, body=UnstructuredBody(responses.CREATED_STATUS_OBJECT))

    def _not_implemented(self, context: RequestContext) -> ApiResponse:
        """Answer subresources that need a kubelet, a network or a signing key, none of which this server has."""
        record = self._get(context)
        if context.resource.storage == "pods":
            assigned = record.plain().get("spec", {}).get("nodeName")
            if context.subresource in _STREAMS and not assigned:
                raise bad_request(f"pod {context.name} does not have a host assigned")
        raise StatusError(
            501,
            "NotImplemented",
            f"the embedded API server has no {context.subresource} for {context.resource.qualified}"
            + (": its nodes are simulated and run no processes" if context.resource.storage == "pods" else ""),
            details={"name": context.name, "kind": context.resource.plural},
        )
