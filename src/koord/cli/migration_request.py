"""This module is `koord migrate`: it requests the migration of a pod, approves a paused one, or cancels one."""

from __future__ import annotations

from typing import Any

from koord.api.koord_scheduling import EVICT_DIRECTLY, RESERVATION_FIRST
from koord.api.protocol import A_EVICT_REASON, SCHEDULER
from koord.descheduler.migration.protection import EVICT

Plain = dict[str, Any]

MODES = (RESERVATION_FIRST, EVICT_DIRECTLY)
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_OF_THE_POD_ITSELF = ("nodeName", "hostname", "subdomain")


def request(
    pod: Plain,
    *,
    mode: str,
    to: str = "",
    paused: bool = False,
    at_once: bool = False,
    ttl: str = "5m",
    reason: str = "",
) -> Plain:
    """Return the PodMigrationJob to create. `pod` is as the server has it; `at_once` does not wait between moves
    of a workload.
    """
    meta = pod["metadata"]
    spec: Plain = {
        "podRef": {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]},
        "mode": mode,
        "ttl": ttl,
        "paused": paused,
    }
    if to:
        spec["reservationOptions"] = {"template": {"spec": {"template": _template_on(pod, to)}}}
    annotations = {A_EVICT_REASON: reason} if reason else {}
    if at_once:
        annotations[EVICT] = "true"
    return {"metadata": {"generateName": f"{meta['name'][:50]}-", "annotations": annotations}, "spec": spec}


def trouble(pod: Plain, *, mode: str, to: str) -> str | None:
    """Return why the request cannot succeed from the start, or None."""
    meta, spec = pod["metadata"], pod["spec"]
    name, here = f"{meta['namespace']}/{meta['name']}", spec.get("nodeName", "")
    phase = (pod.get("status") or {}).get("phase", "")
    if phase in ("Succeeded", "Failed"):
        return f"{name} has ended ({phase}): there is nothing to move"
    if meta.get("deletionTimestamp"):
        return f"{name} is on its way out already"
    if mode == EVICT_DIRECTLY:
        return "--to needs a reservation, and --mode EvictDirectly makes none" if to else None
    scheduler = spec.get("schedulerName", "")
    if scheduler != SCHEDULER:
        return (
            f"{name} is scheduled by {scheduler}, which knows no reservations: --mode EvictDirectly evicts it, "
            "and its successor goes where there is room"
        )
    if to and to == here:
        return f"{name} is on {to} already"
    return None


def _template_on(pod: Plain, node: str) -> Plain:
    """Return the pod's own template, restricted to one node. Its other node constraints still hold."""
    meta = pod["metadata"]
    kept = {key: meta[key] for key in ("namespace", "labels", "annotations") if meta.get(key)}
    spec = {key: value for key, value in pod["spec"].items() if key not in _OF_THE_POD_ITSELF}
    affinity: Plain = {**(spec.get("affinity") or {})}
    of_nodes: Plain = {**(affinity.get("nodeAffinity") or {})}
    there = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = (of_nodes.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{}]
    of_nodes[_REQUIRED] = {
        "nodeSelectorTerms": [{**term, "matchFields": [*(term.get("matchFields") or ()), there]} for term in terms]
    }
    spec["affinity"] = {**affinity, "nodeAffinity": of_nodes}
    return {"metadata": kept, "spec": spec}
