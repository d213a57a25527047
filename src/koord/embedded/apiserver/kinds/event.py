"""This module holds the strategies of Event in core and in events.k8s.io: one collection, two sets of rules."""

from __future__ import annotations

from typing import Any

from koord.api.model import Obj
from koord.embedded.apiserver.api_errors import ApiFieldError, invalid_value, required
from koord.embedded.apiserver.kinds import validators
from koord.embedded.apiserver.kinds.internal_types import to_internal
from koord.embedded.apiserver.kinds.strategy import KindStrategy
from koord.embedded.apiserver.kinds.validators import IMMUTABLE

_CORE_FIELD_NAMES = {"reportingController": "reportingController", "note": "message", "regarding": "involvedObject"}
_MAX_NOTE_CHARS = 1024


def _namespace_errors(obj: Obj, about: str) -> list[ApiFieldError]:
    """Return an error unless the event is in the namespace of its object (default for cluster-scoped ones)."""
    namespace = obj["metadata"].get("namespace", "")
    given = (obj.get(about) or {}).get("namespace", "")
    if given == namespace or (not given and namespace in ("", "default")):
        return []
    return [invalid_value("involvedObject.namespace", given, "does not match event.namespace")]


def _regarding_namespace_errors(obj: Obj) -> list[ApiFieldError]:
    """Return an error for an events.k8s.io event without a regarding namespace outside of default."""
    if (obj.get("regarding") or {}).get("namespace") or obj["metadata"].get("namespace", "") in ("", "default"):
        return []
    return [invalid_value("involvedObject.namespace", "", "does not match event.namespace")]


def _events_v1_errors(obj: Obj) -> list[ApiFieldError]:
    """Return the errors of the fields that events.k8s.io requires and core does not."""
    errors: list[ApiFieldError] = []
    if obj.get("eventTime") is None:
        errors.append(required("eventTime"))
    controller = obj.get("reportingController", "")
    if not controller:
        errors.append(required("reportingController"))
    errors += validators.qualified_name_errors(controller, "reportingController")
    errors += (
        _short_text_errors(obj, "reportingInstance")
        + _short_text_errors(obj, "action")
        + _short_text_errors(obj, "reason")
    )
    if len(obj.get("note", "")) > _MAX_NOTE_CHARS:
        errors.append(invalid_value("message", "", f"can have at most {_MAX_NOTE_CHARS} characters"))
    return errors


def _short_text_errors(obj: Obj, key: str) -> list[ApiFieldError]:
    value = obj.get(key, "")
    if not value:
        return [required(key)]
    if len(value) > 128:
        return [invalid_value(key, "", "can have at most 128 characters")]
    return []


def _series_errors(obj: Obj) -> list[ApiFieldError]:
    series = obj.get("series")
    if series is None:
        return []
    errors: list[ApiFieldError] = []
    if series.get("count", 0) < 2:
        errors.append(invalid_value("series.count", "", "should be at least 2"))
    if series.get("lastObservedTime") is None:
        errors.append(required("series.lastObservedTime"))
    return errors


def _events_v1_create_errors(obj: Obj) -> list[ApiFieldError]:
    errors = _regarding_namespace_errors(obj) + _events_v1_errors(obj) + _series_errors(obj)
    kind = obj.get("type", "")
    if kind not in ("Normal", "Warning"):
        errors.append(invalid_value("type", "", f"has invalid value: {kind}"))
    for key in ("deprecatedFirstTimestamp", "deprecatedLastTimestamp", "deprecatedCount", "deprecatedSource"):
        if obj.get(key):
            shown = "" if key != "deprecatedSource" else obj[key]
            name = key.removeprefix("deprecated")
            errors.append(invalid_value(name[0].lower() + name[1:], shown, "needs to be unset"))
    return errors


# The real server looks at the reason twice.
_IMMUTABLE_FIELDS = (
    *("regarding", "reason", "note", "deprecatedCount", "reason", "type", "eventTime", "action", "related"),
)
_IMMUTABLE_REPORTER_FIELDS = ("reportingController", "reportingInstance")


def _events_v1_update_errors(new: Obj, old: Obj) -> list[ApiFieldError]:
    errors = [] if new.get("series") == old.get("series") else _series_errors(new)
    errors += _regarding_namespace_errors(new)
    if new.get("eventTime") is not None:
        errors += _events_v1_errors(new)
    for key in (*_IMMUTABLE_FIELDS, *_IMMUTABLE_REPORTER_FIELDS):
        errors += _immutable_errors(new, old, key)
    return errors


def _immutable_errors(new: Obj, old: Obj, key: str) -> list[ApiFieldError]:
    if new.get(key) == old.get(key):
        return []
    shown = new.get(key, None if key in ("eventTime", "related") else "")
    if key in ("regarding", "related"):
        shown = to_internal("ObjectReference", new.get(key) or {})
    return [invalid_value(_CORE_FIELD_NAMES.get(key, key), shown, IMMUTABLE)]


def _field_reader(*path: str) -> Any:
    def read(obj: Obj) -> str:
        value: Any = obj
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return "" if value is None else str(value)

    return read


def _source_component(obj: Obj) -> str:
    return str((obj.get("source") or {}).get("component") or obj.get("reportingComponent", ""))


_REFERENCE_FIELDS = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
CORE_EVENT = KindStrategy(
    validate_create=lambda obj: _namespace_errors(obj, "involvedObject"),
    validate_update=lambda new, old: _namespace_errors(new, "involvedObject"),
    creates_on_update=True,
    selectable_fields={
        **{f"involvedObject.{key}": _field_reader("involvedObject", key) for key in _REFERENCE_FIELDS},
        "reason": _field_reader("reason"),
        "reportingComponent": _field_reader("reportingComponent"),
        "source": _source_component,
        "type": _field_reader("type"),
    },
)
EVENTS_V1_EVENT = KindStrategy(
    validate_create=_events_v1_create_errors,
    validate_update=_events_v1_update_errors,
    creates_on_update=True,
    selectable_fields={
        **{f"regarding.{key}": _field_reader("regarding", key) for key in _REFERENCE_FIELDS},
        "reason": _field_reader("reason"),
        "reportingController": _field_reader("reportingController"),
        "type": _field_reader("type"),
    },
)
