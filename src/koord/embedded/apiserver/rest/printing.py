"""Convert objects to Tables and to metadata-only forms. The TableConvertor decides which columns a kind
has.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Protocol

from koord.embedded.apiserver.catalog import ServedResource
from koord.embedded.apiserver.refusal import Refusal, bad_request
from koord.embedded.apiserver.rest.answering import body_of
from koord.embedded.apiserver.rest.negotiation import Form
from koord.embedded.apiserver.rest.watching import WatchFrame
from koord.embedded.apiserver.store import Event, Record
from koord.kube.transport import PlainBody

Obj = dict[str, Any]
Column = dict[str, Any]  # name, type, format, description, priority


class Printer(Protocol):
    def columns(self, resource: ServedResource) -> Sequence[Column]: ...

    def row(self, resource: ServedResource, obj: Obj) -> Sequence[Any]:
        """Return one cell per column. `obj` is shared and in the served version."""
        ...


def age(stamp: str, now: float) -> str:
    """Return the time since a timestamp as kubectl shows it."""
    if not stamp:
        return "<unknown>"
    return human_duration(now - datetime.fromisoformat(stamp).timestamp())


def human_duration(length: float) -> str:
    """Format a duration as kubectl does, with two units while the second one still matters. Clock skew gives
    no negative time.
    """
    seconds = int(length)
    if seconds < -1:
        return "<invalid>"
    seconds = max(seconds, 0)
    if seconds < 120:
        return f"{seconds}s"
    minutes, s = divmod(seconds, 60)
    if minutes < 10:
        return f"{minutes}m{s}s" if s else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    hours, m = divmod(minutes, 60)
    if hours < 8:
        return f"{hours}h{m}m" if m else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days, h = divmod(hours, 24)
    if hours < 192:
        return f"{days}d{h}h" if h else f"{days}d"
    if days < 365 * 2:
        return f"{days}d"
    years, d = divmod(days, 365)
    return f"{years}y{d}d" if years < 8 and d else f"{years}y"


def partial(obj: Obj, version: str) -> Obj:
    return {"kind": "PartialObjectMetadata", "apiVersion": f"meta.k8s.io/{version}", "metadata": obj["metadata"]}


def _included(obj: Obj, include: str, version: str) -> Obj | None:
    match include:
        case "None":
            return None
        case "Object":
            return obj
        case "" | "Metadata":
            return partial(obj, version)
    raise bad_request(
        f'Unable to convert to Table as requested: includeObject: Invalid value: "{include}": '
        "must be 'Metadata', 'Object', 'None', or empty"
    )


class Tables:
    """Encodes responses and watch events as a Table or as PartialObjectMetadata."""

    def __init__(self, printer: Printer, resource: ServedResource, form: Form, include: str) -> None:
        self._printer = printer
        self._resource = resource
        self._form = form
        self._include = include
        self._headed = False

    def of_objects(self, objects: Sequence[Obj], metadata: Obj) -> Obj:
        version = self._form.version
        metadata = {key: value for key, value in metadata.items() if value != ""}
        if self._form.shape == "PartialObjectMetadataList":
            items = [partial(obj, version) for obj in objects]
            return {
                "kind": "PartialObjectMetadataList",
                "apiVersion": f"meta.k8s.io/{version}",
                "metadata": metadata,
                "items": items,
            }
        if self._form.shape == "PartialObjectMetadata":
            raise Refusal(
                406,
                "NotAcceptable",
                f"you requested PartialObjectMetadata, but the requested object is a list ({self._resource.list_kind})",
            )
        return self._table(objects, metadata)

    def of_object(self, obj: Obj) -> Obj:
        if self._form.shape == "Table":
            return self._table([obj], {"resourceVersion": obj["metadata"].get("resourceVersion", "")})
        if self._form.shape == "PartialObjectMetadataList":
            raise Refusal(
                406, "NotAcceptable", "you requested PartialObjectMetadataList, but the requested object is not a list"
            )
        return partial(obj, self._form.version)

    def _table(self, objects: Sequence[Obj], metadata: Obj, *, headed: bool = True) -> Obj:
        resource = self._resource
        rows = []
        for obj in objects:
            row: Obj = {"cells": list(self._printer.row(resource, obj))}
            included = _included(obj, self._include, self._form.version)
            row["object"] = included
            rows.append(row)
        return {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{self._form.version}",
            "metadata": metadata,
            "columnDefinitions": list(self._printer.columns(resource)) if headed else None,
            "rows": rows,
        }

    # Watching: only the first table of a stream carries the column definitions.

    def event(self, type: str, record: Record, shared: Event | None) -> WatchFrame:
        obj = body_of(self._resource, record).plain()
        if self._form.shape != "Table":
            return WatchFrame(type, PlainBody(partial(obj, self._form.version)))
        version = {"resourceVersion": obj["metadata"]["resourceVersion"]}
        table = self._table([obj], version, headed=not self._headed)
        self._headed = True
        return WatchFrame(type, PlainBody(table))

    def bookmark(self, obj: Obj) -> WatchFrame:
        if self._form.shape != "Table":
            return WatchFrame("BOOKMARK", PlainBody(partial(obj, self._form.version)))
        row = {"cells": [], "object": partial(obj, self._form.version)}
        table = {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{self._form.version}",
            "metadata": obj["metadata"],
            "columnDefinitions": None,
            "rows": [row],
        }
        return WatchFrame("BOOKMARK", PlainBody(table))


class Objects:
    """Encodes watch events as the objects themselves."""

    def __init__(self, resource: ServedResource) -> None:
        self._resource = resource

    def event(self, type: str, record: Record, shared: Event | None) -> WatchFrame:
        if shared is not None and self._resource.conversion is None:
            return WatchFrame(type, body_of(self._resource, record), shared.line())
        return WatchFrame(type, body_of(self._resource, record))

    def bookmark(self, obj: Obj) -> WatchFrame:
        return WatchFrame("BOOKMARK", PlainBody(obj))
