"""This module decides the steps of a CRD's deletion: mark it, delete its objects, remove its finalizer.

It is pure; `controller` carries the steps out.
"""

from __future__ import annotations

from typing import Any

from koord.embedded.apiserver.crd.naming import condition, with_condition
from koord.embedded.apiserver.rest.delete_plan import DeletePlan
from koord.embedded.apiserver.rest.object_metadata import ordered_metadata

Obj = dict[str, Any]

CLEANUP_FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
TERMINATING = "Terminating"
_DELETION_PENDING = condition(
    TERMINATING,
    "True",
    "InstanceDeletionPending",
    "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
)
DELETION_IN_PROGRESS = condition(
    TERMINATING, "True", "InstanceDeletionInProgress", "CustomResource deletion is in progress"
)


def mark_for_deletion(obj: Obj, now: str) -> DeletePlan:
    """Return the plan of a DELETE: the first one marks the CRD, later ones find it marked."""
    if "deletionTimestamp" in obj["metadata"]:
        return DeletePlan(None, remove=False)
    meta = {**obj["metadata"], "deletionTimestamp": now}
    meta["finalizers"] = [
        *(name for name in meta.get("finalizers", ()) if name != CLEANUP_FINALIZER),
        CLEANUP_FINALIZER,
    ]
    status = obj.get("status") or {}
    conditions = with_condition(status.get("conditions") or (), _DELETION_PENDING, now)
    return DeletePlan(
        {**obj, "metadata": ordered_metadata(meta), "status": {**status, "conditions": conditions}}, remove=False
    )


def deletion_in_progress_status(obj: Obj, now: str) -> Obj:
    """Return the status of a CRD whose objects are being deleted."""
    status = obj.get("status") or {}
    return {**status, "conditions": with_condition(status.get("conditions") or (), DELETION_IN_PROGRESS, now)}


def without_cleanup_finalizer(obj: Obj) -> Obj:
    """Return the CRD without its cleanup finalizer; other finalizers stay."""
    meta = dict(obj["metadata"])
    left = [name for name in meta.get("finalizers", ()) if name != CLEANUP_FINALIZER]
    if left:
        meta["finalizers"] = left
    else:
        meta.pop("finalizers", None)
    return {**obj, "metadata": meta}
