"""Decide whether a node is alive and what its state means for pods: conditions, taints, zones. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

import msgspec

from koord.api.kubernetes.affinity import Taint
from koord.api.kubernetes.node import Node, NodeCondition
from koord.policy.node_match import NO_EXECUTE, NO_SCHEDULE, UNSCHEDULABLE_TAINT

MONITOR_GRACE_S = 40.0
STARTUP_GRACE_S = 60.0
NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = UNSCHEDULABLE_TAINT.key
# A condition's type and status -> the taint that keeps new pods away.
_TAINT_BY_CONDITION = {
    ("Ready", "False"): NOT_READY,
    ("Ready", "Unknown"): UNREACHABLE,
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
}
_OWNED_TAINTS = frozenset((*_TAINT_BY_CONDITION.values(), UNSCHEDULABLE))
_KUBELET_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_ZONE_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")

# Evictions: one node each ten seconds, a tenth of that while most of a large zone is down, none in a small one.
EVICTION_RATE = 0.1
SECONDARY_EVICTION_RATE = 0.01
LARGE_ZONE_NODES = 50
UNHEALTHY_ZONE_SHARE = 0.55

ZoneState = Literal["Normal", "PartialDisruption", "FullDisruption"]


def ready_status(node: Node) -> str:
    for condition in node.status.conditions:
        if condition.type == "Ready":
            return condition.status
    return ""


def unknown_conditions(node: Node, now: datetime) -> tuple[NodeCondition, ...]:
    """Return the conditions of a node whose kubelet stopped reporting; unchanged ones keep their times."""
    known = {condition.type: condition for condition in node.status.conditions}
    made = dict(known)
    for type in _KUBELET_CONDITIONS:
        old = known.get(type)
        if old is None:
            made[type] = NodeCondition(
                type=type,
                status="Unknown",
                reason="NodeStatusNeverUpdated",
                message="Kubelet never posted node status.",
                last_heartbeat_time=node.metadata.creation_timestamp,
                last_transition_time=now,
            )
        elif old.status != "Unknown":
            made[type] = msgspec.structs.replace(
                old,
                status="Unknown",
                reason="NodeStatusUnknown",
                message="Kubelet stopped posting node status.",
                last_transition_time=now,
            )
    return tuple(made.values())


def wanted_schedule_taints(node: Node) -> set[str]:
    keys = {
        key
        for condition in node.status.conditions
        if (key := _TAINT_BY_CONDITION.get((condition.type, condition.status))) is not None
    }
    return keys | ({UNSCHEDULABLE} if node.spec.unschedulable else set())


def wanted_execute_taint(node: Node) -> str:
    """Return the NoExecute taint that the node should have, or an empty string."""
    return {"False": NOT_READY, "Unknown": UNREACHABLE}.get(ready_status(node), "")


def decide_taints(
    node: Node, now: datetime, *, may_evict: bool, all_zones_down: bool = False
) -> tuple[Taint, ...] | None:
    """Return the node's taints with ours corrected; None when they are right.

    `may_evict`: NoExecute may be added now. `all_zones_down`: every node is down, so no pod is evicted.
    """
    schedule, execute = wanted_schedule_taints(node), "" if all_zones_down else wanted_execute_taint(node)
    have_execute = {t.key for t in node.spec.taints if t.effect == NO_EXECUTE}
    # One NoExecute taint may replace the other at once: its pods are being evicted already.
    may_evict = may_evict or bool(have_execute & {NOT_READY, UNREACHABLE})
    kept = []
    for taint in node.spec.taints:
        if taint.effect == NO_SCHEDULE and taint.key in _OWNED_TAINTS and taint.key not in schedule:
            continue
        if taint.effect == NO_EXECUTE and taint.key in (NOT_READY, UNREACHABLE) and taint.key != execute:
            continue
        kept.append(taint)
    have = {(taint.key, taint.effect) for taint in kept}
    added = [
        Taint(key=key, effect=NO_SCHEDULE, time_added=now) for key in sorted(schedule) if (key, NO_SCHEDULE) not in have
    ]
    if execute and may_evict and (execute, NO_EXECUTE) not in have:
        added.append(Taint(key=execute, effect=NO_EXECUTE, time_added=now))
    if not added and len(kept) == len(node.spec.taints):
        return None
    return (*kept, *added)


def awaits_eviction(node: Node) -> bool:
    execute = wanted_execute_taint(node)
    ours = {taint.key for taint in node.spec.taints if taint.effect == NO_EXECUTE}
    return bool(execute) and not ours & {NOT_READY, UNREACHABLE}


def zone_of(node: Node) -> str:
    return ":".join(node.metadata.labels.get(key, "") for key in _ZONE_LABELS)


def zone_state(healthy: int, unhealthy: int) -> ZoneState:
    if unhealthy and not healthy:
        return "FullDisruption"
    if unhealthy > 2 and unhealthy / (healthy + unhealthy) >= UNHEALTHY_ZONE_SHARE:
        return "PartialDisruption"
    return "Normal"


class ZoneEvictionRates(msgspec.Struct, frozen=True):
    rates: dict[str, float]  # nodes per second that may be evicted in each zone
    all_zones_down: bool  # all of the cluster is down: then the fault is likely ours, and nobody is evicted


def zone_eviction_rates(nodes: Iterable[tuple[Node, bool]]) -> ZoneEvictionRates:
    """Compute the eviction rate of each zone. `nodes` come with whether each is silent."""
    counts: dict[str, list[int]] = {}
    for node, silent in nodes:
        status = ready_status(node)
        if status:  # one that never reported is neither
            counts.setdefault(zone_of(node), [0, 0])[silent or status != "True"] += 1
    states = {zone: zone_state(*row) for zone, row in counts.items()}
    if states and all(state == "FullDisruption" for state in states.values()):
        return ZoneEvictionRates(dict.fromkeys(states, 0.0), True)
    rates = {}
    for zone, state in states.items():
        if state == "PartialDisruption":
            rates[zone] = SECONDARY_EVICTION_RATE if sum(counts[zone]) > LARGE_ZONE_NODES else 0.0
        else:
            rates[zone] = EVICTION_RATE
    return ZoneEvictionRates(rates, False)
