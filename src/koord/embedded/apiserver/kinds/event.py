"""This module holds the strategies of Event in core and in events.k8s.io: one collection, two sets of rules."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.kinds import label
from koord.embedded.apiserver.kinds.internal import internal
from koord.embedded.apiserver.kinds.rule import IMMUTABLE
from koord.embedded.apiserver.kinds.strategy import Strategy
from koord.embedded.apiserver.refusal import FieldError, invalid_value, required

Obj = dict[str, Any]
_SHOWN = {"reportingController": "reportingController", "note": "message", "regarding": "involvedObject"}
_MAX_NOTE = 1024


def _namespace_errors(obj: Obj, about: str) -> list[FieldError]:
    """Return an error unless the event is in the namespace of its object (default for cluster-scoped ones)."""
    namespace = obj["metadata"].get("namespace", "")
    given = (obj.get(about) or {}).get("namespace", "")
    if given == namespace or (not given and namespace in ("", "default")):
        return []
    return [invalid_value("involvedObject.namespace", given, "does not match event.namespace")]


def _home_errors(obj: Obj) -> list[FieldError]:
    """Return an error for an events.k8s.io event without a regarding namespace outside of default.

    The rest is accepted.
    """
    if (obj.get("regarding") or {}).get("namespace") or obj["metadata"].get("namespace", "") in ("", "default"):
        return []
    return [invalid_value("involvedObject.namespace", "", "does not match event.namespace")]


def _new_errors(obj: Obj) -> list[FieldError]:
    """Return the errors of the fields that events.k8s.io requires and core does not."""
    errors: list[FieldError] = []
    if obj.get("eventTime") is None:
        errors.append(required("eventTime"))
    controller = obj.get("reportingController", "")
    if not controller:
        errors.append(required("reportingController"))
    errors += label.label_name(controller, "reportingController")
    errors += _bounded(obj, "reportingInstance") + _bounded(obj, "action") + _bounded(obj, "reason")
    if len(obj.get("note", "")) > _MAX_NOTE:
        errors.append(invalid_value("message", "", f"can have at most {_MAX_NOTE} characters"))
    return errors


def _bounded(obj: Obj, key: str) -> list[FieldError]:
    value = obj.get(key, "")
    if not value:
        return [required(key)]
    if len(value) > 128:
        return [invalid_value(key, "", "can have at most 128 characters")]
    return []


def _series_errors(obj: Obj) -> list[FieldError]:
    series = obj.get("series")
    if series is None:
        return []
    errors: list[FieldError] = []
    if series.get("count", 0) < 2:
        errors.append(invalid_value("series.count", "", "should be at least 2"))
    if series.get("lastObservedTime") is None:
        errors.append(required("series.lastObservedTime"))
    return errors


def _new_create(obj: Obj) -> list[FieldError]:
    errors = _home_errors(obj) + _new_errors(obj) + _series_errors(obj)
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
_FIXED = ("regarding", "reason", "note", "deprecatedCount", "reason", "type", "eventTime", "action", "related")
_FIXED_TOO = ("reportingController", "reportingInstance")


def _new_update(new: Obj, old: Obj) -> list[FieldError]:
    errors = [] if new.get("series") == old.get("series") else _series_errors(new)
    errors += _home_errors(new)
    if new.get("eventTime") is not None:
        errors += _new_errors(new)
    for key in (*_FIXED, *_FIXED_TOO):
        errors += _changed(new, old, key)
    return errors


def _changed(new: Obj, old: Obj, key: str) -> list[FieldError]:
    if new.get(key) == old.get(key):
        return []
    shown = new.get(key, None if key in ("eventTime", "related") else "")
    if key in ("regarding", "related"):
        shown = internal("ObjectReference", new.get(key) or {})
    return [invalid_value(_SHOWN.get(key, key), shown, IMMUTABLE)]


def _text(*path: str) -> Any:
    def read(obj: Obj) -> str:
        value: Any = obj
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return "" if value is None else str(value)

    return read


def _source(obj: Obj) -> str:
    return str((obj.get("source") or {}).get("component") or obj.get("reportingComponent", ""))


_ABOUT = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
CORE_EVENT = Strategy(
    validate_create=lambda obj: _namespace_errors(obj, "involvedObject"),
    validate_update=lambda new, old: _namespace_errors(new, "involvedObject"),
    creates_on_update=True,
    fields={
        **{f"involvedObject.{key}": _text("involvedObject", key) for key in _ABOUT},
        "reason": _text("reason"),
        "reportingComponent": _text("reportingComponent"),
        "source": _source,
        "type": _text("type"),
    },
)
NEW_EVENT = Strategy(
    validate_create=_new_create,
    validate_update=_new_update,
    creates_on_update=True,
    fields={
        **{f"regarding.{key}": _text("regarding", key) for key in _ABOUT},
        "reason": _text("reason"),
        "reportingController": _text("reportingController"),
        "type": _text("type"),
    },
)
