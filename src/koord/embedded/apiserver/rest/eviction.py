"""Decide pods/eviction: whether a disruption budget allows it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from koord.embedded.apiserver import refusal
from koord.embedded.apiserver.refusal import Refusal, too_many_requests
from koord.values.requirement import SelectorError
from koord.values.selector import Selector

Obj = dict[str, Any]
MAX_DISRUPTED_PODS = 2000
_VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."
STILL_PROCESSED_S = 10


class Allowed(msgspec.Struct, frozen=True):
    """The eviction is allowed. `status` is the new status of the budget to store before the deletion (None: no
    budget is charged).
    """

    budget: str = ""
    status: Obj | None = None
    unchanged_pod: bool = False  # the pod must not have changed since: its health was the reason


def budgets_of(pod: Obj, budgets: Sequence[Obj]) -> list[Obj]:
    """Return the budgets of the pod's namespace that select it."""
    labels = pod["metadata"].get("labels", {})
    found = []
    for budget in budgets:
        selector = budget.get("spec", {}).get("selector")
        if selector is None:
            continue
        expressions = [(e["key"], e["operator"], e.get("values", ())) for e in selector.get("matchExpressions", ())]
        try:
            if Selector.of(selector.get("matchLabels", {}), expressions).matches(labels):
                found.append(budget)
        except SelectorError:
            continue  # a broken selector protects nobody, as in the disruption controller
    return found


def unguarded(pod: Obj) -> bool:
    """Return whether a pod is finished, not started or terminating, so that evicting it disrupts nothing."""
    phase = pod.get("status", {}).get("phase")
    return phase in ("Succeeded", "Failed", "Pending") or "deletionTimestamp" in pod["metadata"]


def _ready(pod: Obj) -> bool:
    conditions = pod.get("status", {}).get("conditions", [])
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def decide_eviction(pod: Obj, budgets: Sequence[Obj], now: str, *, dry_run: bool) -> Allowed | Refusal:
    """Decide an eviction. `budgets` are those that select the pod."""
    if unguarded(pod) or not budgets:
        return Allowed()
    if len(budgets) > 1:
        return Refusal(
            500,
            "",
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        )
    budget = budgets[0]
    status = budget.get("status", {})
    if not _ready(pod):
        policy = budget.get("spec", {}).get("unhealthyPodEvictionPolicy")
        healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
        if policy == "AlwaysAllow" or (healthy >= desired and desired > 0):
            return Allowed(unchanged_pod=True)
    return _spend(budget, pod["metadata"]["name"], now, dry_run)


def _spend(budget: Obj, pod_name: str, now: str, dry_run: bool) -> Allowed | Refusal:
    name = budget["metadata"]["name"]
    status = budget.get("status", {})
    generation = budget["metadata"].get("generation", 0)
    if status.get("observedGeneration", 0) < generation:
        cause = f"The disruption budget {name} is still being processed by the server."
        return _too_many(cause, STILL_PROCESSED_S)
    allowed = status.get("disruptionsAllowed", 0)
    if allowed < 0:
        return refusal.forbidden("poddisruptionbudget", "policy", name, "pdb disruptions allowed is negative")
    disrupted = status.get("disruptedPods") or {}
    if len(disrupted) > MAX_DISRUPTED_PODS:
        why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        return refusal.forbidden("poddisruptionbudget", "policy", name, why)
    if allowed == 0:
        return _too_many(_reason(name, status), 0)
    new = {**status, "disruptionsAllowed": allowed - 1}
    if allowed == 1:
        new["conditions"] = _disallowed(status.get("conditions", []), generation, now)
    if dry_run:
        return Allowed(name)
    new["disruptedPods"] = {**disrupted, pod_name: now}
    return Allowed(name, new)


def _reason(name: str, status: Obj) -> str:
    failed = next(
        (
            c
            for c in status.get("conditions", [])
            if c.get("type") == "DisruptionAllowed" and c.get("reason") == "SyncFailed" and c.get("status") == "False"
        ),
        None,
    )
    if failed is not None:
        return (
            f"The disruption budget {name} does not allow evicting pods currently because it failed sync: "
            f"{failed.get('message', '')}"
        )
    healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    if healthy <= desired:
        return f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
    return f"The disruption budget {name} does not allow evicting pods currently"


def _too_many(cause: str, retry_s: int) -> Refusal:
    return too_many_requests(_VIOLATES, retry_s, {"causes": [{"reason": "DisruptionBudget", "message": cause}]})


def _disallowed(conditions: list[Obj], generation: int, now: str) -> list[Obj]:
    """Set the condition of a budget that is used up at once; the disruption controller confirms it later."""
    old = next((c for c in conditions if c.get("type") == "DisruptionAllowed"), None)
    moved = old is None or old.get("status") != "False"
    condition: Obj = {
        "type": "DisruptionAllowed",
        "status": "False",
        "observedGeneration": generation,
        "lastTransitionTime": now if moved or old is None else old.get("lastTransitionTime", now),
        "reason": "InsufficientPods",
        "message": "",
    }
    if old is None:
        return [*conditions, condition]
    return [condition if c is old else c for c in conditions]


def disruption_target(pod: Obj, now: str) -> Obj:
    """Return the pod with a DisruptionTarget condition; only the top level is private."""
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": now,
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
    }
    status = {**pod.get("status", {})}
    kept = [c for c in status.get("conditions", []) if c.get("type") != "DisruptionTarget"]
    if len(kept) != len(status.get("conditions", [])):
        return pod  # it is a target already, and since then
    status["conditions"] = [*kept, condition]
    return {**pod, "metadata": {**pod["metadata"]}, "status": status}
