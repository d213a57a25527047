"""The conversions of built-in kinds served in more than one form: Events in two groups, HPAs in two versions."""

from __future__ import annotations

from koord.api.model import Obj
from koord.embedded.apiserver.catalog import VersionConversion

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
