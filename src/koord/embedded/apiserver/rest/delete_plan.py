"""Decide what a DELETE does to an object: remove it, mark it, or nothing. Pure; `delete` carries the plan out."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import msgspec

from koord.api.kubernetes.meta import DeleteOptions
from koord.embedded.apiserver.rest.object_metadata import ordered_metadata
from koord.values import timestamp

Obj = dict[str, Any]
ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"


class DeletePlan(msgspec.Struct, frozen=True):
    """The effect of a DELETE. `marked` is the object to store first, if any; `remove`: it then goes away."""

    marked: Obj | None
    remove: bool


class DeleteFacts(msgspec.Struct, frozen=True):
    """Carries the facts of the kind and the time on which the decision depends."""

    now: str
    graceful: bool  # pods: deletion waits for the kubelet
    orphans_by_default: bool = False


def pod_grace_s(pod: Obj, asked: int | None) -> int:
    """Return how many seconds a pod may take to stop: 0 when nothing runs."""
    spec = pod.get("spec", {})
    if not spec.get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    period = spec.get("terminationGracePeriodSeconds", 0) if asked is None else asked
    return 1 if period < 0 else int(period)


def decide_delete(obj: Obj, options: DeleteOptions, facts: DeleteFacts) -> DeletePlan:
    """Decide a DELETE whose preconditions hold. `obj` is shared and stays as it is."""
    meta = dict(obj["metadata"])
    waits = False
    if facts.graceful:
        grace = _set_grace_period(obj, meta, options, facts)
        if grace == "pending":
            return DeletePlan(None, remove=False)
        waits = grace == "waits"
    finalizers = finalizers_after_delete(meta.get("finalizers", []), options, facts.orphans_by_default)
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)
    if not facts.graceful or "deletionTimestamp" not in meta:
        if not finalizers:
            changed = finalizers != obj["metadata"].get("finalizers", [])
            return DeletePlan({**obj, "metadata": ordered_metadata(meta)} if changed else None, remove=True)
        _set_deletion_timestamp(meta, facts.now)
    return DeletePlan({**obj, "metadata": ordered_metadata(meta)}, remove=not finalizers and not waits)


def _set_grace_period(
    obj: Obj, meta: Obj, options: DeleteOptions, facts: DeleteFacts
) -> Literal["pending", "waits", "now"]:
    """Set the deletion timestamp and grace period of a pod. A second DELETE may only shorten the grace of the first."""
    if "deletionTimestamp" in meta:
        left = meta.get("deletionGracePeriodSeconds")
        if left is None:
            return "now"
        asked = options.grace_period_seconds
        if asked is None or asked >= left:
            return "pending"
        asked = 1 if asked < 0 else asked
        meta["deletionTimestamp"] = shift_timestamp(meta["deletionTimestamp"], asked - left)
        meta["deletionGracePeriodSeconds"] = asked
        return "waits" if asked > 0 else "now"
    period = pod_grace_s(obj, options.grace_period_seconds)
    if meta.get("generation"):
        meta["generation"] += 1
    meta["deletionTimestamp"] = shift_timestamp(facts.now, period)
    meta["deletionGracePeriodSeconds"] = period
    return "waits" if period > 0 else "now"


def _set_deletion_timestamp(meta: Obj, now: str) -> None:
    stamp = meta.get("deletionTimestamp")
    if stamp is None and meta.get("generation"):
        meta["generation"] += 1
    if stamp is None or stamp > now:
        meta["deletionTimestamp"] = now
    meta["deletionGracePeriodSeconds"] = 0


def shift_timestamp(stamp: str, seconds: int) -> str:
    return timestamp.text(timestamp.parse(stamp) + timedelta(seconds=seconds))


def finalizers_after_delete(held: list[str], options: DeleteOptions, orphans_by_default: bool) -> list[str]:
    """Return the finalizers after the propagation policy; the garbage collector removes the two that it owns."""
    policy = options.propagation_policy
    if options.orphan_dependents is not None:
        orphan, foreground = options.orphan_dependents, False
    elif policy is not None:
        orphan, foreground = policy == "Orphan", policy == "Foreground"
    elif ORPHAN in held or FOREGROUND in held:
        orphan, foreground = ORPHAN in held, FOREGROUND in held
    else:
        orphan, foreground = orphans_by_default, False
    if (ORPHAN in held) == orphan and (FOREGROUND in held) == foreground:
        return list(held)
    kept = [name for name in held if name not in (ORPHAN, FOREGROUND)]
    return kept + [ORPHAN] * orphan + [FOREGROUND] * foreground


def mark_namespace_terminating(obj: Obj, now: str) -> Obj:
    """Mark a namespace Terminating. It ends through its spec.finalizers, so it has no grace period but a phase."""
    if "deletionTimestamp" in obj["metadata"]:
        return obj
    meta = ordered_metadata({**obj["metadata"], "deletionTimestamp": now})
    return {**obj, "metadata": meta, "status": {**obj.get("status", {}), "phase": "Terminating"}}


def update_completes_deletion(new: Obj, old: Obj) -> bool:
    """Return whether an update removes the last finalizer of an object that is being deleted."""
    before = old["metadata"]
    if "deletionTimestamp" not in before or new["metadata"].get("finalizers"):
        return False
    if old.get("kind") == "Namespace" and new.get("spec", {}).get("finalizers"):
        return False
    return not before.get("deletionGracePeriodSeconds")
