"""Decide what a DELETE does to an object: remove it, mark it, or nothing. Pure; `delete` carries the plan
out.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from koord.embedded.apiserver.rest.options import DeleteOptions
from koord.embedded.apiserver.rest.stamping import in_order

Obj = dict[str, Any]
ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"


class Plan(msgspec.Struct, frozen=True):
    """The effect of a DELETE. `marked` is the object to store first (None: store nothing); `remove` says
    whether it then goes away.
    """

    mark: Obj | None
    remove: bool


class Facts(msgspec.Struct, frozen=True):
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


def decide_deletion(obj: Obj, options: DeleteOptions, facts: Facts) -> Plan:
    """Decide a DELETE whose preconditions hold. `obj` is shared and stays as it is."""
    meta = dict(obj["metadata"])
    waits = False
    if facts.graceful:
        grace = _grace(obj, meta, options, facts)
        if grace == "pending":
            return Plan(None, remove=False)
        waits = grace == "waits"
    finalizers = wanted_finalizers(meta.get("finalizers", []), options, facts.orphans_by_default)
    if finalizers:
        meta["finalizers"] = finalizers
    else:
        meta.pop("finalizers", None)
    if not facts.graceful or "deletionTimestamp" not in meta:
        if not finalizers:
            changed = finalizers != obj["metadata"].get("finalizers", [])
            return Plan({**obj, "metadata": in_order(meta)} if changed else None, remove=True)
        _mark(meta, facts.now)
    return Plan({**obj, "metadata": in_order(meta)}, remove=not finalizers and not waits)


def _grace(obj: Obj, meta: Obj, options: DeleteOptions, facts: Facts) -> Literal["pending", "waits", "now"]:
    """Set the deletion timestamp and grace period of a pod. A second DELETE may only shorten the grace of the
    first.
    """
    if "deletionTimestamp" in meta:
        left = meta.get("deletionGracePeriodSeconds")
        if left is None:
            return "now"
        asked = options.grace_period_seconds
        if asked is None or asked >= left:
            return "pending"
        asked = 1 if asked < 0 else asked
        meta["deletionTimestamp"] = shifted(meta["deletionTimestamp"], asked - left)
        meta["deletionGracePeriodSeconds"] = asked
        return "waits" if asked > 0 else "now"
    period = pod_grace_s(obj, options.grace_period_seconds)
    if meta.get("generation"):
        meta["generation"] += 1
    meta["deletionTimestamp"] = shifted(facts.now, period)
    meta["deletionGracePeriodSeconds"] = period
    return "waits" if period > 0 else "now"


def _mark(meta: Obj, now: str) -> None:
    stamp = meta.get("deletionTimestamp")
    if stamp is None and meta.get("generation"):
        meta["generation"] += 1
    if stamp is None or stamp > now:
        meta["deletionTimestamp"] = now
    meta["deletionGracePeriodSeconds"] = 0


def shifted(stamp: str, seconds: int) -> str:
    moved = datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%SZ") + timedelta(seconds=seconds)
    return moved.strftime("%Y-%m-%dT%H:%M:%SZ")


def wanted_finalizers(held: list[str], options: DeleteOptions, orphans_by_default: bool) -> list[str]:
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


def mark_namespace(obj: Obj, now: str) -> Obj:
    """Mark a namespace Terminating. It ends through its spec.finalizers, so it has no grace period but a
    phase.
    """
    if "deletionTimestamp" in obj["metadata"]:
        return obj
    meta = in_order({**obj["metadata"], "deletionTimestamp": now})
    return {**obj, "metadata": meta, "status": {**obj.get("status", {}), "phase": "Terminating"}}


def dies_with_update(new: Obj, old: Obj) -> bool:
    """Return whether an update removes the last finalizer of an object that is being deleted."""
    before = old["metadata"]
    if "deletionTimestamp" not in before or new["metadata"].get("finalizers"):
        return False
    if old.get("kind") == "Namespace" and new.get("spec", {}).get("finalizers"):
        return False
    return not before.get("deletionGracePeriodSeconds")
