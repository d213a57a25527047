"""This module prints nodes, leases, runtime classes, resource slices and resource claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from koord.embedded.apiserver.printing.table_columns import (
    NONE,
    UNKNOWN,
    KindTable,
    Obj,
    age_cell,
    joined,
    kind_table,
    name,
    spec,
    status,
)

_ROLE_PREFIX = "node-role.kubernetes.io/"
_ROLE_LABEL = "kubernetes.io/role"


def _node(node: Obj, now: float) -> Sequence[Any]:
    info = status(node).get("nodeInfo") or {}
    return (
        name(node),
        _state(node),
        _roles(node),
        age_cell(node, now),
        info.get("kubeletVersion", ""),
        _address(node, "InternalIP"),
        _address(node, "ExternalIP"),
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    )


def _state(node: Obj) -> str:
    ready = next((c for c in status(node).get("conditions") or () if c["type"] == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready["status"] == "True" else "NotReady"]
    if spec(node).get("unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _roles(node: Obj) -> str:
    found = set()
    for key, value in (node["metadata"].get("labels") or {}).items():
        if key.startswith(_ROLE_PREFIX):
            found.add(key.removeprefix(_ROLE_PREFIX))
        elif key == _ROLE_LABEL and value:
            found.add(value)
    return joined(sorted(found - {""}), NONE)


def _address(node: Obj, kind: str) -> str:
    found = (a["address"] for a in status(node).get("addresses") or () if a["type"] == kind)
    return next(found, NONE)


def _lease(lease: Obj, now: float) -> Sequence[Any]:
    return name(lease), spec(lease).get("holderIdentity") or "", age_cell(lease, now)


def _runtime_class(runtime: Obj, now: float) -> Sequence[Any]:
    return name(runtime), runtime.get("handler", ""), age_cell(runtime, now)


def _resource_slice(slice_: Obj, now: float) -> Sequence[Any]:
    stated = spec(slice_)
    return name(slice_), stated.get("nodeName", ""), stated["driver"], stated["pool"]["name"], age_cell(slice_, now)


def _resource_claim(claim: Obj, now: float) -> Sequence[Any]:
    stated = status(claim)
    words = [] if stated.get("allocation") is None else ["allocated"]
    words += ["reserved"] if stated.get("reservedFor") else []
    words = words or ["pending"]
    words += ["deleted"] if "deletionTimestamp" in claim["metadata"] else []
    return name(claim), ",".join(words), age_cell(claim, now)


NODE_TABLES: dict[str, KindTable] = {
    "nodes": kind_table(
        _node,
        "Name",
        "Status",
        "Roles",
        "Age",
        "Version",
        "Internal-IP!",
        "External-IP!",
        "OS-Image!",
        "Kernel-Version!",
        "Container-Runtime!",
    ),
    "leases.coordination.k8s.io": kind_table(_lease, "Name", "Holder", "Age"),
    "runtimeclasses.node.k8s.io": kind_table(_runtime_class, "Name", "Handler", "Age"),
    "resourceslices.resource.k8s.io": kind_table(_resource_slice, "Name", "Node", "Driver", "Pool", "Age"),
    "resourceclaims.resource.k8s.io": kind_table(_resource_claim, "Name", "State", "Age"),
}
