"""This module holds events.k8s.io/v1 Event: the same stored objects as core/v1 events, under newer field names."""

from __future__ import annotations

from datetime import datetime

from koord.api.kubernetes.core_v1 import EventSeries, EventSource
from koord.api.kubernetes.meta import Object
from koord.api.model import ObjectReference


class Event(Object, frozen=True, kw_only=True):
    event_time: datetime | None = None
    series: EventSeries | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    action: str = ""
    reason: str = ""
    regarding: ObjectReference = ObjectReference()
    related: ObjectReference | None = None
    note: str = ""
    type: str = ""
    deprecated_source: EventSource = EventSource()
    deprecated_first_timestamp: datetime | None = None
    deprecated_last_timestamp: datetime | None = None
    deprecated_count: int = 0
