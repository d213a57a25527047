"""Convert between a workload and its Scale."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.catalog import ScalePaths
from koord.embedded.apiserver.rest.copying import clone
from koord.values.requirement import SelectorError
from koord.values.selector import Selector

Obj = dict[str, Any]


def read_path(obj: Obj, path: str) -> Any:
    value: Any = obj
    for part in path.strip(".").split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def write_path(obj: Obj, path: str, value: Any) -> None:
    *parents, last = path.strip(".").split(".")
    for part in parents:
        obj = obj.setdefault(part, {})
    obj[last] = value


def selector_text(selector: Any) -> str:
    if isinstance(selector, str):
        return selector
    if not isinstance(selector, dict):
        return ""
    if "matchLabels" not in selector and "matchExpressions" not in selector:  # a replication controller's plain map
        return str(Selector.of_labels(selector))
    expressions = [(e["key"], e["operator"], e.get("values", ())) for e in selector.get("matchExpressions", ())]
    try:
        return str(Selector.of(selector.get("matchLabels", {}), expressions))
    except SelectorError:
        return ""


def scale_of(obj: Obj, paths: ScalePaths) -> Obj:
    meta = obj["metadata"]
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status: Obj = {"replicas": read_path(obj, paths.status_replicas) or 0}
    selector = selector_text(read_path(obj, paths.selector)) if paths.selector else ""
    if selector:
        status["selector"] = selector
    replicas = read_path(obj, paths.replicas)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in kept if key in meta},
        "spec": {"replicas": replicas} if replicas else {},
        "status": status,
    }


def rescaled(obj: Obj, scale: Obj, paths: ScalePaths) -> Obj:
    """Return a private copy of `obj` with the replicas that `scale` asks for. Raises when they are invalid."""
    replicas = scale.get("spec", {}).get("replicas", 0)
    name = scale.get("metadata", {}).get("name", "")
    if replicas < 0:
        error = refusal.invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
        raise refusal.invalid("Scale", "autoscaling", name, [error])
    new = clone(obj)
    write_path(new, paths.replicas, replicas)
    given = scale.get("metadata", {})
    new["metadata"]["resourceVersion"] = given.get("resourceVersion") or ""
    if given.get("uid"):
        new["metadata"]["uid"] = given["uid"]
    return new
