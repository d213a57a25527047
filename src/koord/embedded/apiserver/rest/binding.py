"""Decide pods/binding, the write by which the scheduler assigns a node to a pod. Pure."""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.refusal import Refusal, bad_request
from koord.embedded.apiserver.rest.stamping import in_order

Obj = dict[str, Any]


def check_binding(binding: Obj, name: str) -> str:
    """Return the node that a binding names; raise if the binding is invalid."""
    given = binding.get("metadata", {}).get("name", "")
    if name and given and given != name:
        raise bad_request("name in URL does not match name in Binding object")
    target = binding.get("target") or {}
    kind, node = target.get("kind", ""), target.get("name", "")
    if kind not in ("", "Node"):
        raise Refusal(500, "", f'target.kind: Unsupported value: "{kind}": supported values: "Node", "<empty>"')
    if not node:
        raise Refusal(500, "", "target.name: Required value")
    return str(node)


def bound(pod: Obj, binding: Obj, node: str, now: str) -> Obj:
    """Return the pod with its node assigned; only the top level is private. Raises 409 when the pod cannot be
    bound.
    """
    meta, spec = pod["metadata"], pod.get("spec", {})
    name = meta["name"]
    if "deletionTimestamp" in meta:
        raise _conflict(name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise _conflict(name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise _conflict(name, f"pod {name} has non-empty .spec.schedulingGates")
    meta = {**meta}
    given = binding.get("metadata", {})
    for key in ("labels", "annotations"):
        if given.get(key):
            meta[key] = {**meta.get(key, {}), **given[key]}
    status = {**pod.get("status", {})}
    status["conditions"] = _scheduled(status.get("conditions", []), now)
    return {**pod, "metadata": in_order(meta), "spec": {**spec, "nodeName": node}, "status": status}


def _scheduled(conditions: list[Obj], now: str) -> list[Obj]:
    found: Obj = {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    kept = []
    for condition in conditions:
        if condition.get("type") != "PodScheduled":
            kept.append(condition)
            continue
        if condition.get("status") == "True":
            found["lastTransitionTime"] = condition.get("lastTransitionTime", now)
        if "observedGeneration" in condition:
            found["observedGeneration"] = condition["observedGeneration"]
        kept.append(found)
    return kept if any(c is found for c in kept) else [*kept, found]


def _conflict(name: str, why: str) -> Refusal:
    return refusal.conflict("pods/binding", "", name, why)
