"""Conversions of objects to other forms: Events and HPAs of another group or version, Tables, and metadata alone. The
tables of kinds are in `printing`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import StatusError, bad_request
from koord.embedded.apiserver.catalog import ServedResource, VersionConversion
from koord.embedded.apiserver.printing.cluster import CLUSTER_TABLES, DEFAULT_TABLE, NETWORK_TABLES, NODE_TABLES
from koord.embedded.apiserver.printing.storage import STORAGE_TABLES
from koord.embedded.apiserver.printing.table_columns import Column, KindTable, column_definitions
from koord.embedded.apiserver.printing.workload import AUTOSCALER_TABLES, POD_TABLES, WORKLOAD_TABLES
from koord.embedded.apiserver.rest.responses import ResponseFormat, response_body
from koord.embedded.apiserver.rest.watch import ServerWatchFrame
from koord.embedded.apiserver.store.collection import StoreEvent, StoreRecord
from koord.kube.transport.interface import UnstructuredBody
from koord.telemetry.clock import Clock

# events.k8s.io/v1 field -> core/v1 field
_EVENT_TO_CORE_FIELDS = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_CORE_TO_EVENT_FIELDS = {core: event for event, core in _EVENT_TO_CORE_FIELDS.items()}
# What core/v1 writes even when it is empty.
_CORE_REQUIRED_FIELDS = {"involvedObject": dict, "source": dict, "reportingComponent": str, "reportingInstance": str}


def _event_to_core(obj: Obj) -> Obj:
    core = {_EVENT_TO_CORE_FIELDS.get(key, key): value for key, value in obj.items()}
    core["apiVersion"] = "v1"
    core["metadata"] = {**obj["metadata"]}
    core.setdefault("firstTimestamp", None)
    core.setdefault("lastTimestamp", None)
    core.setdefault("eventTime", None)
    for key, kind in _CORE_REQUIRED_FIELDS.items():
        core.setdefault(key, kind())
    return core


def _event_from_core(obj: Obj) -> Obj:
    event = {_CORE_TO_EVENT_FIELDS.get(key, key): value for key, value in obj.items()}
    event["apiVersion"] = "events.k8s.io/v1"
    event["metadata"] = {**obj["metadata"]}
    for key in ("reportingController", "reportingInstance"):
        if event.get(key) == "":
            del event[key]
    return event


def _hpa_to_v2(obj: Obj) -> Obj:
    spec = {k: v for k, v in obj.get("spec", {}).items() if k != "targetCPUUtilizationPercentage"}
    target = obj.get("spec", {}).get("targetCPUUtilizationPercentage")
    if target is not None:
        spec["metrics"] = [_cpu_metric("target", target)]
    status = {k: v for k, v in obj.get("status", {}).items() if k != "currentCPUUtilizationPercentage"}
    current = obj.get("status", {}).get("currentCPUUtilizationPercentage")
    if current is not None:
        status["currentMetrics"] = [_cpu_metric("current", current)]
    status.setdefault("currentMetrics", None)  # version 2 always writes it, and no replicas of 0
    if not status.get("currentReplicas"):
        status.pop("currentReplicas", None)
    new = {**obj, "apiVersion": "autoscaling/v2", "metadata": {**obj["metadata"]}, "spec": spec}
    if "status" in obj:
        new["status"] = status
    return new


def _cpu_metric(which: str, percent: int) -> Obj:
    form = {"averageUtilization": percent}
    if which == "target":
        form = {"type": "Utilization", **form}  # type: ignore[dict-item]
    return {"type": "Resource", "resource": {"name": "cpu", which: form}}


def _cpu_percent(metrics: list[Obj], which: str) -> int | None:
    for metric in metrics:
        resource = metric.get("resource") or {}
        if metric.get("type") == "Resource" and resource.get("name") == "cpu":
            percent = (resource.get(which) or {}).get("averageUtilization")
            return None if percent is None else int(percent)
    return None


def _hpa_to_v1(obj: Obj) -> Obj:
    """Convert to v1, which knows one metric; the others stay in storage and are invisible here."""
    spec = {k: v for k, v in obj.get("spec", {}).items() if k not in ("metrics", "behavior")}
    target = _cpu_percent(obj.get("spec", {}).get("metrics") or [], "target")
    if target is not None:
        spec["targetCPUUtilizationPercentage"] = target
    old = obj.get("status", {})
    status = {"currentReplicas": 0, **{k: v for k, v in old.items() if k not in ("currentMetrics", "conditions")}}
    current = _cpu_percent(old.get("currentMetrics") or [], "current")
    if current is not None:
        status["currentCPUUtilizationPercentage"] = current
    new = {**obj, "apiVersion": "autoscaling/v1", "metadata": {**obj["metadata"]}, "spec": spec}
    if "status" in obj:
        new["status"] = status
    return new


BUILTIN_CONVERSIONS: dict[tuple[str, str, str], tuple[str, VersionConversion]] = {
    ("events.k8s.io", "v1", "events"): ("events", VersionConversion(_event_to_core, _event_from_core)),
    ("autoscaling", "v1", "horizontalpodautoscalers"): (
        "horizontalpodautoscalers.autoscaling",
        VersionConversion(_hpa_to_v2, _hpa_to_v1),
    ),
}


def partial_metadata(obj: Obj, version: str) -> Obj:
    return {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": obj["metadata"]}


def _included_object(obj: Obj, include: str, version: str) -> Obj | None:
    match include:
        case "None":
            return None
        case "Object":
            return obj
        case "" | "Metadata":
            return partial_metadata(obj, version)
    raise bad_request(
        f'Unable to convert to Table as requested: includeObject: Invalid value: "{include}": '
        "must be 'Metadata', 'Object', 'None', or empty"
    )


class TransformedEncoding:
    """Encodes responses and watch events as a Table or as PartialObjectMetadata."""

    def __init__(
        self, printer: TablePrinter, resource: ServedResource, response_format: ResponseFormat, include: str
    ) -> None:
        self._printer = printer
        self._resource = resource
        self._response_format = response_format
        self._include = include
        self._columns_sent = False

    def transform_list(self, objects: Sequence[Obj], metadata: Obj) -> Obj:
        version = self._response_format.version
        metadata = {key: value for key, value in metadata.items() if value != ""}
        if self._response_format.transform == "PartialObjectMetadataList":
            items = [partial_metadata(obj, version) for obj in objects]
            return {
                "kind": "PartialObjectMetadataList",
                "apiVersion": f"meta.k8s.io/{version}",
                "metadata": metadata,
                "items": items,
            }
        if self._response_format.transform == "PartialObjectMetadata":
            raise StatusError(
                406,
                "NotAcceptable",
                f"you requested PartialObjectMetadata, but the requested object is a list ({self._resource.list_kind})",
            )
        return self._table(objects, metadata)

    def transform_object(self, obj: Obj) -> Obj:
        if self._response_format.transform == "Table":
            return self._table([obj], {"resourceVersion": obj["metadata"].get("resourceVersion", "")})
        if self._response_format.transform == "PartialObjectMetadataList":
            raise StatusError(
                406, "NotAcceptable", "you requested PartialObjectMetadataList, but the requested object is not a list"
            )
        return partial_metadata(obj, self._response_format.version)

    def _table(self, objects: Sequence[Obj], metadata: Obj, *, with_columns: bool = True) -> Obj:
        resource = self._resource
        version = self._response_format.version
        rows = [
            {"cells": list(self._printer.row(resource, obj)), "object": _included_object(obj, self._include, version)}
            for obj in objects
        ]
        return {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{version}",
            "metadata": metadata,
            "columnDefinitions": list(self._printer.columns(resource)) if with_columns else None,
            "rows": rows,
        }

    # Watching: only the first table of a stream carries the column definitions.

    def event(self, type: str, record: StoreRecord, shared: StoreEvent | None) -> ServerWatchFrame:
        obj = response_body(self._resource, record).plain()
        if self._response_format.transform != "Table":
            return ServerWatchFrame(type, UnstructuredBody(partial_metadata(obj, self._response_format.version)))
        version = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        table = self._table([obj], version, with_columns=not self._columns_sent)
        self._columns_sent = True
        return ServerWatchFrame(type, UnstructuredBody(table))

    def bookmark(self, obj: Obj) -> ServerWatchFrame:
        if self._response_format.transform != "Table":
            return ServerWatchFrame("BOOKMARK", UnstructuredBody(partial_metadata(obj, self._response_format.version)))
        row = {"cells": [], "object": partial_metadata(obj, self._response_format.version)}
        table = {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{self._response_format.version}",
            "metadata": obj["metadata"],
            "columnDefinitions": None,
            "rows": [row],
        }
        return ServerWatchFrame("BOOKMARK", UnstructuredBody(table))


class ObjectEncoding:
    """Encodes watch events as the objects themselves."""

    def __init__(self, resource: ServedResource) -> None:
        self._resource = resource

    def event(self, type: str, record: StoreRecord, shared: StoreEvent | None) -> ServerWatchFrame:
        if shared is not None and self._resource.conversion is None:
            return ServerWatchFrame(type, response_body(self._resource, record), shared.line())
        return ServerWatchFrame(type, response_body(self._resource, record))

    def bookmark(self, obj: Obj) -> ServerWatchFrame:
        return ServerWatchFrame("BOOKMARK", UnstructuredBody(obj))


_NAME_COLUMN = column_definitions("Name")


@functools.cache
def builtin_tables() -> Mapping[str, KindTable]:
    """Return the tables of built-in kinds by qualified resource name, for the storage version."""
    return {
        **POD_TABLES,
        **NODE_TABLES,
        **WORKLOAD_TABLES,
        **NETWORK_TABLES,
        **STORAGE_TABLES,
        **CLUSTER_TABLES,
        **AUTOSCALER_TABLES,
    }


class TablePrinter:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def columns(self, resource: ServedResource) -> Sequence[Column]:
        if resource.custom:
            return (*_NAME_COLUMN, *(dict(column.heading) for column in resource.columns))
        return builtin_tables().get(resource.qualified, DEFAULT_TABLE).columns

    def row(self, resource: ServedResource, obj: Obj) -> Sequence[Any]:
        now = self._clock.time()
        if resource.custom:
            return (obj["metadata"]["name"], *(column.cell(obj, now) for column in resource.columns))
        if resource.conversion is not None:  # a kind in another form has one table, that of the stored form
            obj = resource.conversion.to_storage(obj)
        return builtin_tables().get(resource.qualified, DEFAULT_TABLE).row(obj, now)
