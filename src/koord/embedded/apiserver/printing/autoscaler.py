"""This section prints horizontal pod autoscalers: each metric as current and target value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from koord.embedded.apiserver.printing.sheet import NONE, UNKNOWN, UNSET, Obj, Sheet, born, name, sheet, spec, status

_SHOWN = 2
# The metric's type on the wire -> the field that holds it.
_FIELDS = {
    "Resource": "resource",
    "ContainerResource": "containerResource",
    "Pods": "pods",
    "Object": "object",
    "External": "external",
}


def _row(obj: Obj, now: float) -> Sequence[Any]:
    stated = spec(obj)
    ref = stated.get("scaleTargetRef") or {}
    least = stated.get("minReplicas")
    return (
        name(obj),
        f"{ref.get('kind', '')}/{ref.get('name', '')}",
        _targets(obj),
        UNSET if least is None else str(least),
        stated.get("maxReplicas", 0),
        status(obj).get("currentReplicas", 0),
        born(obj, now),
    )


def _targets(obj: Obj) -> str:
    wanted = spec(obj).get("metrics") or ()
    if not wanted:
        return NONE
    measured = status(obj).get("currentMetrics") or ()
    shown = []
    for at, metric in enumerate(wanted[:_SHOWN]):
        field = _FIELDS.get(metric.get("type", ""), "")
        now = (measured[at].get(field) or {}).get("current") if at < len(measured) else None
        shown.append(_metric(field, metric.get(field) or {}, now or {}))
    more = f" + {len(wanted) - _SHOWN} more..." if len(wanted) > _SHOWN else ""
    return ", ".join(shown) + more


def _metric(field: str, metric: Obj, now: Obj) -> str:
    target = metric.get("target") or {}
    if field in ("resource", "containerResource"):
        return f"{metric.get('name', '')}: {_resource(target, now)}"
    if target.get("averageValue") is not None:
        mark = "" if field == "pods" else " (avg)"
        return f"{now.get('averageValue', UNKNOWN)}/{target['averageValue']}{mark}"
    return f"{now.get('value', UNKNOWN)}/{target.get('value', UNKNOWN)}"


def _resource(target: Obj, now: Obj) -> str:
    if target.get("averageValue") is not None:
        return f"{now.get('averageValue', UNKNOWN)}/{target['averageValue']}"
    used, wanted = now.get("averageUtilization"), target.get("averageUtilization")
    left = UNKNOWN if used is None else f"{used}%"
    return f"{left}/{'<auto>' if wanted is None else f'{wanted}%'}"


AUTOSCALERS: dict[str, Sheet] = {
    "horizontalpodautoscalers.autoscaling": sheet(
        _row, "Name", "Reference", "Targets", "MinPods", "MaxPods", "Replicas", "Age"
    )
}
