"""List the objects that every cluster has from the start: system namespaces and priority classes."""

from __future__ import annotations

from typing import Any

Obj = dict[str, Any]

SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_PRIORITY_CLASSES = (
    ("system-node-critical", 2_000_001_000, "For pods without which their node does not work; they stay on it."),
    ("system-cluster-critical", 2_000_000_000, "For pods that the cluster needs; another node is as good for them."),
)


def first_objects() -> list[tuple[str, Obj]]:
    """Return pairs of collection path and object, in the order in which they are created."""
    made: list[tuple[str, Obj]] = [
        ("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for name in SYSTEM_NAMESPACES
    ]
    for name, value, description in _PRIORITY_CLASSES:
        obj = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": description,
        }
        made.append(("/apis/scheduling.k8s.io/v1/priorityclasses", obj))
    return made
