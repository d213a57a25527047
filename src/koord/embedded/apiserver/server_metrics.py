"""Metrics of the embedded API server at /metrics, read from the store when they are asked for: requests pay nothing."""

from __future__ import annotations

from collections.abc import Iterator

from koord.embedded.apiserver.rest.responses import TextBody
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.kube.transport.interface import ApiRequest, ApiResponse
from koord.telemetry import metrics
from koord.telemetry.metrics import MetricDeclaration, MetricReading, MetricRegistry
from koord.telemetry.process import register_process_metrics

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
