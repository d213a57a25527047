"""Build pods and nodes for tests of decisions: healthy unless told otherwise."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.api.model import convert

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def pod(name: str = "p", **fields: Any) -> Pod:
    """A running, ready pod on a node, unless told otherwise."""
    ready = fields.pop("ready", True)
    age = fields.pop("age", timedelta(hours=1))
    since = (NOW - fields.pop("ready_for", age)).isoformat()
    meta: dict[str, Any] = {"name": name, "namespace": "d", "uid": fields.pop("uid", f"uid-{name}")}
    meta["creationTimestamp"] = (NOW - age).isoformat()
    meta |= fields.pop("metadata", {})
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": since}
    body = {
        "metadata": meta,
        "spec": {"nodeName": fields.pop("node", "n1")},
        "status": {"phase": fields.pop("phase", "Running"), "conditions": [condition], **fields},
    }
    return convert(body, Pod)


def node(name: str = "n1", **fields: Any) -> Node:
    body = {"metadata": {"name": name, "labels": fields.pop("labels", {})}, "spec": {}, "status": {}}
    body["spec"] = {"taints": fields.pop("taints", []), "unschedulable": fields.pop("unschedulable", False)}
    conditions = [{"type": key, "status": value} for key, value in fields.items()]
    return convert({**body, "status": {"conditions": conditions}}, Node)


def taint(key: str, effect: str, value: str = "") -> dict[str, str]:
    return {"key": key, "effect": effect, "value": value}
