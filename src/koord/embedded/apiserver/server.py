"""The API server without a network: it makes the objects that it needs for itself, takes one request and returns one
answer or one watch.

HTTPS clients enter through `http_server`, programs of this process through `koord.embedded.cluster`. All parts of the
server are composed here. Metrics are read from the store when they are asked for: requests pay nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import logging
import random
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from koord.api.model import Obj
from koord.embedded.apiserver import api_errors
from koord.embedded.apiserver.admission.hooks import AdmissionHooks
from koord.embedded.apiserver.admission.namespace_limits import ServiceAccountAdmission
from koord.embedded.apiserver.admission.plugins import standard_admission_chain
from koord.embedded.apiserver.api_errors import StatusError
from koord.embedded.apiserver.catalog import ResourceCatalog, ServedResource, builtin_resources
from koord.embedded.apiserver.crd import definition_strategy
from koord.embedded.apiserver.crd.controller import DefinitionController
from koord.embedded.apiserver.kinds.registry import STRATEGIES
from koord.embedded.apiserver.kinds.strategy import KindStrategy
from koord.embedded.apiserver.rest import pod_subresources, request_context, responses
from koord.embedded.apiserver.rest.conversion import (
    BUILTIN_CONVERSIONS,
    ObjectEncoding,
    TablePrinter,
    TransformedEncoding,
)
from koord.embedded.apiserver.rest.discovery import (
    ComponentRoutes,
    DiscoveryEndpoints,
    HealthEndpoints,
    OpenApiEndpoints,
)
from koord.embedded.apiserver.rest.dispatcher import REVIEW_GROUPS, VerbDispatcher
from koord.embedded.apiserver.rest.options import check_timeout, list_options, query_bool
from koord.embedded.apiserver.rest.request_body import LARGE_YAML_BYTES, parsed_ahead
from koord.embedded.apiserver.rest.request_context import (
    AdmissionChain,
    MetadataGenerator,
    RequestContext,
    ResourcePath,
    ServerDeps,
)
from koord.embedded.apiserver.rest.responses import TextBody
from koord.embedded.apiserver.rest.watch import ServerWatchStream, WatchEncoding, open_watch
from koord.embedded.apiserver.schema.builtin_decoding import decode_builtin
from koord.embedded.apiserver.schema.builtin_types import builtin_types
from koord.embedded.apiserver.schema.schema_node import SchemaNode
from koord.embedded.apiserver.store.journal import JournalError
from koord.embedded.apiserver.store.object_store import EventExpiry, HistoryCompactor, ObjectStore
from koord.kube.transport.interface import JSON, MERGE_PATCH, ApiRequest, ApiResponse
from koord.telemetry import metrics
from koord.telemetry.clock import Clock, WallClock
from koord.telemetry.metrics import MetricDeclaration, MetricReading, MetricRegistry
from koord.telemetry.process import register_process_metrics

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_PRIORITY_CLASSES = (
    ("system-node-critical", 2_000_001_000, "For pods without which their node does not work; they stay on it."),
    ("system-cluster-critical", 2_000_000_000, "For pods that the cluster needs; another node is as good for them."),
)


def bootstrap_objects() -> list[tuple[str, Obj]]:
    """Return pairs of collection path and object, in the order in which they are created."""
    made: list[tuple[str, Obj]] = [
        ("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for name in SYSTEM_NAMESPACES
    ]
    for name, value, description in _PRIORITY_CLASSES:
        obj = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": description,
        }
        made.append(("/apis/scheduling.k8s.io/v1/priorityclasses", obj))
    return made


KUBERNETES = "kubernetes"
SERVICE_ADDRESS = "10.96.0.1"  # the first of the range of Services


def address_objects(url: str) -> list[tuple[str, Obj]]:
    """Return the Service `kubernetes` with its Endpoints and EndpointSlice, for a server at `url`."""
    stated = urlsplit(url)
    address, port = ipaddress.ip_address(stated.hostname or "127.0.0.1"), stated.port or 443
    if address.is_unspecified:  # the server listens everywhere; this machine finds it here
        address = ipaddress.ip_address("127.0.0.1" if address.version == 4 else "::1")
    host = str(address)
    namespace = "/namespaces/default"
    ports = [{"name": "https", "port": port, "protocol": "TCP"}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": KUBERNETES, "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "clusterIP": SERVICE_ADDRESS,
            "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}],
        },
    }
    endpoints = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": KUBERNETES, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}},
        "subsets": [{"addresses": [{"ip": host}], "ports": ports}],
    }
    endpoint_slice = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": KUBERNETES, "labels": {"kubernetes.io/service-name": KUBERNETES}},
        "addressType": f"IPv{address.version}",
        "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
        "ports": ports,
    }
    return [
        (f"/api/v1{namespace}/services", service),
        (f"/api/v1{namespace}/endpoints", endpoints),
        (f"/apis/discovery.k8s.io/v1{namespace}/endpointslices", endpoint_slice),
    ]


log = logging.getLogger(__name__)

RETENTION_PERIOD_S = 60.0  # at most this long between two runs of expiry and compaction

METRICS_PATH = "/metrics"
STORAGE_OBJECTS = MetricDeclaration(
    "apiserver_storage_objects", "Objects that are stored, by resource.", "gauge", ("resource",)
)
WATCHES = MetricDeclaration(
    "koord_apiserver_watches",
    "Watches that are open, of clients and of programs in the process.",
    "gauge",
    ("resource",),
)
REVISION = MetricDeclaration(
    "koord_apiserver_store_revision", "Revision of the store, which every write raises.", "gauge"
)
SERVER_METRICS = (STORAGE_OBJECTS, WATCHES, REVISION)


class MetricsEndpoint:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._registry = MetricRegistry()
        self._registry.source(self._read)
        register_process_metrics(self._registry)

    def respond(self, request: ApiRequest) -> ApiResponse | None:
        if request.path != METRICS_PATH:
            return None
        open_metrics = metrics.prefers_openmetrics(request.accept)
        kind = metrics.OPENMETRICS_CONTENT_TYPE if open_metrics else metrics.TEXT_CONTENT_TYPE
        body = metrics.render((self._registry,), open_metrics=open_metrics)
        return ApiResponse(status=200, body=TextBody(body), content_type=kind)

    def _read(self) -> Iterator[MetricReading]:
        held = sorted(self._store.collections().items())
        yield STORAGE_OBJECTS.reading([((resource,), float(len(found))) for resource, found in held])
        yield WATCHES.reading([((resource,), float(found.watcher_count)) for resource, found in held])
        yield REVISION.reading([((), float(self._store.revision))])


def builtin_catalog(strategies: Mapping[tuple[str, str], KindStrategy] | None = None) -> ResourceCatalog:
    """Return a catalog of all built-in resources; `strategies` by (group, kind) replace the usual ones."""

    def decoder(node: SchemaNode) -> Any:
        return functools.partial(decode_builtin, node=node)

    chosen = {**(STRATEGIES if strategies is None else strategies)}
    chosen[(definition_strategy.CRD_GROUP, definition_strategy.CRD_KIND)] = definition_strategy.DEFINITION_STRATEGY
    return ResourceCatalog(builtin_resources(builtin_types(), decoder, chosen, BUILTIN_CONVERSIONS))


class ApiServer:
    def __init__(
        self,
        store: ObjectStore | None = None,
        catalog: ResourceCatalog | None = None,
        *,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        admission: AdmissionChain | None = None,
        tokens: Mapping[str, str] | None = None,
        service_accounts: bool = False,
    ) -> None:
        """Compose the server. `chance` gives uids and generated names; `tokens` maps bearer tokens to users.

        With `service_accounts` the standard admission gives pods their account and its token's volume.
        """
        self.clock = clock or WallClock()
        self.store = store or ObjectStore()
        self.catalog = catalog or builtin_catalog()
        self.tokens = dict(tokens or {})
        chance = chance or random.SystemRandom()
        metadata_generator = MetadataGenerator(self.clock, chance)
        self.hooks = AdmissionHooks(self.store, self.catalog, metadata_generator.uid)
        accounts = ServiceAccountAdmission(self.store, metadata_generator.name_suffix) if service_accounts else None
        self._deps = ServerDeps(
            store=self.store,
            catalog=self.catalog,
            clock=self.clock,
            chance=chance,
            metadata_generator=metadata_generator,
            admission=admission or standard_admission_chain(self.store, self.hooks, self.catalog, self.clock, accounts),
            expiry=EventExpiry(self.store, self.clock),
        )
        self._printer = TablePrinter(self.clock)
        self._dispatcher = VerbDispatcher(self._deps, self._transformed_encoding, self.tokens)
        self._discovery = DiscoveryEndpoints(self.catalog)
        self._openapi = OpenApiEndpoints(builtin_types(), self.catalog)
        self.component_routes = ComponentRoutes()
        self._crd_controller = DefinitionController(self._deps)
        self._builtin_groups = frozenset(resource.group for resource in self.catalog.resources() if not resource.custom)
        self._health = HealthEndpoints(builtin_types().release, {"store": self._store_health})
        self._metrics = MetricsEndpoint(self.store)
        self._compactor = HistoryCompactor(self.store, self.clock)
        self._retention_task: asyncio.Task[None] | None = None
        self.closed = False

    # Life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve the stored custom resources, create the bootstrap objects, and start to expire Events and history."""
        self._crd_controller.start()
        for path, body in bootstrap_objects():
            await self._bootstrap("POST", path, body)
        self._retention_task = asyncio.create_task(self._run_retention(), name="forgetting")

    async def publish_address(self, url: str) -> None:
        """Publish where the server listens: the Service `kubernetes`, and its Endpoints, which follow the port."""
        for path, body in address_objects(url):
            if await self._bootstrap("POST", path, body) == 409:
                patch: dict[str, Any] = {key: body[key] for key in ("subsets", "endpoints", "ports") if key in body}
                if body["kind"] == "Service":
                    patch = {"spec": {"ports": body["spec"]["ports"]}}
                await self._bootstrap("PATCH", f"{path}/{body['metadata']['name']}", patch)

    async def _bootstrap(self, method: str, path: str, body: dict[str, Any]) -> int:
        """Send a request of the server's own; return its status. Whatever it creates may be there already."""
        content_type = MERGE_PATCH if method == "PATCH" else JSON
        request = ApiRequest(
            method=method,
            path=path,
            body=body,
            content_type=content_type,
            user="system:apiserver",
            user_agent="kube-apiserver",
        )
        answer = await self.handle(request)
        if not answer.ok and answer.status != 409:
            raise RuntimeError(f"cannot {method} {path}: {answer.body.plain()}")
        return answer.status

    async def close(self) -> None:
        """End every watch, write what the journal still holds, and stop."""
        self.closed = True
        if self._retention_task is not None:
            self._retention_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._retention_task
        await self.hooks.close()
        await self.store.close()

    def expire_events(self) -> float | None:
        """Delete the Events that are due, as a started server does by itself; return the seconds until the next one."""
        return self._deps.expiry.delete_expired()

    async def _run_retention(self) -> None:
        compacted_s = self.clock.monotonic()
        while True:
            try:
                due = self.expire_events()
            except JournalError:
                due = None  # the disk fails; they expire when it works again
            if self.clock.monotonic() - compacted_s >= RETENTION_PERIOD_S:
                compacted_s = self.clock.monotonic()
                self._compactor.compact_due()
            await self.clock.sleep(RETENTION_PERIOD_S if due is None else min(max(due, 1.0), RETENTION_PERIOD_S))

    def _store_health(self) -> str:
        try:
            self.store.raise_if_failed()
        except JournalError as error:
            return str(error)
        return ""

    # Requests ----------------------------------------------------------------------------------------------------

    async def handle(self, request: ApiRequest, *, track_managed_fields: bool = True) -> ApiResponse:
        """Handle one request to its end. `track_managed_fields` keeps managedFields for the objects that it creates."""
        warnings: list[str] = []
        try:
            found = request_context.parse_resource_path(request.path)
            if "timeout" in request.query:
                check_timeout(request.query["timeout"])
            if found is None:
                return await self.component_routes.respond(request) or self._non_resource(request)
            if self._is_unknown_path(found):
                return responses.text_response(404, "404 page not found\n")
            response_format = responses.negotiate(
                request.accept,
                streams=request.method == "GET" and not found.name,
                tables=found.group not in REVIEW_GROUPS and found.subresource != "binding",
            )
            if isinstance(request.body, bytes) and len(request.body) >= LARGE_YAML_BYTES:
                request = await parsed_ahead(request)
            context = self._request_context(found, request, track_managed_fields, warnings)
            answer = await self._dispatcher.dispatch(context, response_format)
        except StatusError as error:
            return responses.error_response(error, warnings)
        except JournalError as error:
            return responses.error_response(api_errors.internal(str(error)), warnings)
        except RecursionError:
            return responses.error_response(api_errors.bad_request("the body is nested too deeply"), warnings)
        except Exception as error:
            log.exception("%s %s failed", request.method, request.path)
            return responses.error_response(api_errors.internal(f"{type(error).__name__}: {error}"), warnings)
        return self._finish_response(answer, request, response_format, context, warnings)

    def _finish_response(
        self,
        answer: ApiResponse,
        request: ApiRequest,
        response_format: responses.ResponseFormat,
        context: RequestContext,
        warnings: list[str],
    ) -> ApiResponse:
        if context.resource.warning:
            warnings = [context.resource.warning, *warnings]
        if warnings:
            headers = {**answer.headers, "Warning": responses.warning_header(warnings)}
            answer = msgspec.structs.replace(answer, headers=headers)
        if response_format.yaml:
            return responses.to_yaml_response(answer)
        if "pretty" in request.query and query_bool(request.query, "pretty"):
            return responses.to_pretty_response(answer)
        return answer

    async def watch(self, request: ApiRequest) -> ServerWatchStream | ApiResponse:
        """Open a watch, or return the error. Whoever reads the stream must close it."""
        try:
            found = request_context.parse_resource_path(request.path)
            if found is None:
                raise api_errors.no_such_path()
            if self._is_unknown_path(found):
                return responses.text_response(404, "404 page not found\n")
            response_format = responses.negotiate(request.accept, streams=True)
            context = self._request_context(found, request, False, [])
            if "watch" not in context.resource.verbs:
                raise api_errors.method_not_allowed()
            options = list_options(request.query, watch=True)
            encoding: WatchEncoding = (
                self._transformed_encoding(context, response_format)
                if response_format.transform
                else ObjectEncoding(context.resource)
            )
            return open_watch(context, self._deps, options, encoding)
        except StatusError as error:
            return responses.error_response(error)

    async def follow_log(self, request: ApiRequest) -> AsyncGenerator[bytes, None] | ApiResponse:
        """Return the lines of a container's log as they come, or the answer where there is nothing to follow."""
        options = pod_subresources.read_log_options(request.query)
        if not options.follow or options.previous:
            return await self.handle(request)
        try:
            found = request_context.parse_resource_path(request.path)
            if found is None or (found.group, found.plural, found.subresource) != ("", "pods", "log"):
                return await self.handle(request)
            context = self._request_context(found, request, False, [])
            record = context.collection(self._deps).get(context.namespace, context.name)
            if record is None or not record.plain()["spec"].get("nodeName"):
                return await self.handle(request)
            container = pod_subresources.choose_container(record.plain(), options.container)
        except StatusError as error:
            return responses.error_response(error)
        chosen = msgspec.structs.replace(options, container=container)
        return pod_subresources.follow_log(context, self._deps, chosen, ObjectEncoding(context.resource))

    def is_watch(self, request: ApiRequest) -> bool:
        """Return whether a request asks for a stream: GET on a collection with `watch`, or the old /watch/ paths."""
        if request.method != "GET":
            return False
        found = request_context.parse_resource_path(request.path)
        if found is None:
            return False
        return found.watch or (not found.name and bool(query_bool(request.query, "watch")))

    def _transformed_encoding(
        self, context: RequestContext, response_format: responses.ResponseFormat
    ) -> TransformedEncoding:
        return TransformedEncoding(
            self._printer, context.resource, response_format, context.request.query.get("includeObject", "")
        )

    def _is_unknown_path(self, found: ResourcePath) -> bool:
        """Return whether a path is outside the built-in groups and belongs to no CRD, so that it gets a plain 404."""
        return found.group not in self._builtin_groups and (
            self.catalog.find(found.group, found.version, found.plural) is None
        )

    def _request_context(
        self, found: ResourcePath, request: ApiRequest, track_managed_fields: bool, warnings: list[str]
    ) -> RequestContext:
        resource = self.catalog.find(found.group, found.version, found.plural)
        if resource is None or (found.namespace and not resource.namespaced):
            raise api_errors.no_such_path()
        self._check_scope(found, resource, request.method)
        return RequestContext(
            resource, found.namespace or "", found.name, found.subresource, request, track_managed_fields, warnings
        )

    def _check_scope(self, found: ResourcePath, resource: ServedResource, method: str) -> None:
        """Raise unless objects of namespaced kinds are addressed in a namespace; lists and watches may span all."""
        if found.subresource and found.subresource not in resource.subresources:
            raise api_errors.no_such_path()
        if resource.namespaced and found.namespace is None and (found.name or method not in ("GET", "DELETE")):
            raise api_errors.no_such_path() if found.name else api_errors.method_not_allowed()

    def _non_resource(self, request: ApiRequest) -> ApiResponse:
        for endpoints in (self._discovery, self._health, self._openapi, self._metrics):
            answer = endpoints.respond(request)
            if answer is not None:
                return answer
        if request.path in ("", "/"):
            return responses.json_response(200, {"paths": self._paths()})
        return responses.text_response(404, "404 page not found\n")

    def _paths(self) -> list[str]:
        parts = (
            self._discovery.paths(),
            self._health.paths(),
            self.component_routes.paths(),
            ["/openapi/v2", "/openapi/v3", METRICS_PATH],
        )
        return sorted(path for paths in parts for path in paths)
