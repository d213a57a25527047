"""This module decides the steps of a CRD's deletion: mark it, delete its objects, remove its finalizer.

It is pure; `controller` carries the steps out.
"""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.crd.naming import condition, with_condition
from koord.embedded.apiserver.rest.deletion import Plan
from koord.embedded.apiserver.rest.stamping import in_order

Obj = dict[str, Any]

FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
TERMINATING = "Terminating"
_PENDING = condition(
    TERMINATING,
    "True",
    "InstanceDeletionPending",
    "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
)
IN_PROGRESS = condition(TERMINATING, "True", "InstanceDeletionInProgress", "CustomResource deletion is in progress")


def mark_definition(obj: Obj, now: str) -> Plan:
    """Return the plan of a DELETE: the first one marks the CRD, later ones find it marked."""
    if "deletionTimestamp" in obj["metadata"]:
        return Plan(None, remove=False)
    meta = {**obj["metadata"], "deletionTimestamp": now}
    meta["finalizers"] = [*(name for name in meta.get("finalizers", ()) if name != FINALIZER), FINALIZER]
    status = obj.get("status") or {}
    conditions = with_condition(status.get("conditions") or (), _PENDING, now)
    return Plan({**obj, "metadata": in_order(meta), "status": {**status, "conditions": conditions}}, remove=False)


def in_progress(obj: Obj, now: str) -> Obj:
    """Return the status of a CRD whose objects are being deleted."""
    status = obj.get("status") or {}
    return {**status, "conditions": with_condition(status.get("conditions") or (), IN_PROGRESS, now)}


def released(obj: Obj) -> Obj:
    """Return the CRD without its cleanup finalizer; other finalizers stay."""
    meta = dict(obj["metadata"])
    left = [name for name in meta.get("finalizers", ()) if name != FINALIZER]
    if left:
        meta["finalizers"] = left
    else:
        meta.pop("finalizers", None)
    return {**obj, "metadata": meta}
