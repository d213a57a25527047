"""A brute-force model of the documented rules of topology spread and pod affinity: every node, every pod, every time.

It shares no code with the plugins, so that both can only be wrong in different ways.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from koord.api.kubernetes.affinity import PodAffinityTerm, TopologySpreadConstraint
from koord.api.kubernetes.meta import LabelSelector
from koord.api.kubernetes.node import Node
from koord.scheduler.cache.pod_model import Pod

SPREAD = "node(s) didn't match pod topology spread constraints"
UNLABELLED = f"{SPREAD} (missing required label)"
AFFINITY = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY = "node(s) didn't match pod anti-affinity rules"
EXISTING = "node(s) didn't satisfy existing pods anti-affinity rules"
HOSTNAME = "kubernetes.io/hostname"


class OracleCluster(msgspec.Struct):
    nodes: Sequence[Node]
    pods: Sequence[Pod]  # with the node that each is on
    namespaces: Mapping[str, Mapping[str, str]] = {}

    def node_of(self, pod: Pod) -> Node | None:
        return next((node for node in self.nodes if node.metadata.name == pod.spec.node_name), None)

    def on(self, node: Node) -> list[Pod]:
        return [pod for pod in self.pods if pod.spec.node_name == node.metadata.name]


# Selectors -------------------------------------------------------------------------------------------------------


def _one(labels: Mapping[str, str], key: str, operator: str, values: Iterable[str]) -> bool:
    if operator == "In":
        return key in labels and labels[key] in values
    if operator == "NotIn":
        return key not in labels or labels[key] not in values
    return (key in labels) == (operator == "Exists")


def selects(selector: LabelSelector | None, labels: Mapping[str, str]) -> bool:
    if selector is None:
        return False
    exact = all(labels.get(key) == value for key, value in selector.match_labels.items())
    return exact and all(_one(labels, e.key, e.operator, e.values) for e in selector.match_expressions)


# Topology spread -------------------------------------------------------------------------------------------------


def _matches_affinity(pod: Pod, node: Node) -> bool:
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    required = affinity.required_during_scheduling_ignored_during_execution if affinity else None
    if required is None:
        return True
    return any(
        term.match_expressions and all(_one(labels, e.key, e.operator, e.values) for e in term.match_expressions)
        for term in required.node_selector_terms
    )


def _tolerates(pod: Pod, node: Node) -> bool:
    def tolerated(taint: Any) -> bool:
        return any(
            (not t.effect or t.effect == taint.effect)
            and (not t.key or t.key == taint.key)
            and (t.operator == "Exists" or (t.operator in ("", "Equal") and t.value == taint.value))
            for t in pod.spec.tolerations
        )

    return all(tolerated(taint) for taint in node.spec.taints if taint.effect in ("NoSchedule", "NoExecute"))


def _counted(pod: Pod, constraint: TopologySpreadConstraint, node: Node) -> bool:
    if (constraint.node_affinity_policy or "Honor") == "Honor" and not _matches_affinity(pod, node):
        return False
    return constraint.node_taints_policy != "Honor" or _tolerates(pod, node)


def _picks(pod: Pod, constraint: TopologySpreadConstraint, labels: Mapping[str, str]) -> bool:
    mine = pod.metadata.labels
    same = all(labels.get(key) == mine[key] for key in constraint.match_label_keys if key in mine)
    return same and selects(constraint.label_selector, labels)


def _has_no_conditions(pod: Pod, constraint: TopologySpreadConstraint) -> bool:
    selector = constraint.label_selector
    if selector is None or selector.match_labels or selector.match_expressions:
        return False
    return not any(key in pod.metadata.labels for key in constraint.match_label_keys)


def _matching(world: OracleCluster, pod: Pod, constraint: TopologySpreadConstraint, node: Node) -> int:
    if _has_no_conditions(pod, constraint):
        return 0
    return sum(
        other.metadata.namespace == pod.metadata.namespace
        and other.metadata.deletion_timestamp is None
        and _picks(pod, constraint, other.metadata.labels)
        for other in world.on(node)
    )


def _has_keys(node: Node, constraints: Sequence[TopologySpreadConstraint]) -> bool:
    return all(constraint.topology_key in node.metadata.labels for constraint in constraints)


def spread_refusal(
    world: OracleCluster, pod: Pod, node: Node, constraints: Sequence[TopologySpreadConstraint]
) -> str | None:
    """Return the rejection by the DoNotSchedule constraints."""
    for constraint in constraints:
        key = constraint.topology_key
        if key not in node.metadata.labels:
            return UNLABELLED
        counts: dict[str, int] = {}
        for other in world.nodes:
            if _has_keys(other, constraints) and _counted(pod, constraint, other):
                value = other.metadata.labels[key]
                counts[value] = counts.get(value, 0) + _matching(world, pod, constraint, other)
        least = min(counts.values()) if counts and len(counts) >= (constraint.min_domains or 1) else 0
        mine = counts.get(node.metadata.labels[key], 0) + _picks(pod, constraint, pod.metadata.labels)
        if mine - least > constraint.max_skew:
            return SPREAD
    return None


def spread_scores(
    world: OracleCluster,
    pod: Pod,
    feasible: Sequence[Node],
    constraints: Sequence[TopologySpreadConstraint],
    *,
    system: bool = False,
) -> dict[str, int]:
    """Return the scores by the ScheduleAnyway constraints; `system` says that they are Kubernetes' own defaults."""
    ignored = [n for n in feasible if not system and not _has_keys(n, constraints)]
    scored = [n for n in feasible if n not in ignored]
    raw: dict[str, int] = {}
    for node in scored:
        total = 0.0
        for constraint in constraints:
            key = constraint.topology_key
            if key not in node.metadata.labels:
                continue
            if key == HOSTNAME:
                size, count = len(scored), _matching(world, pod, constraint, node)
            else:
                size = len({n.metadata.labels.get(key) for n in scored})
                count = sum(
                    _matching(world, pod, constraint, other)
                    for other in world.nodes
                    if (system or _has_keys(other, constraints))
                    and _counted(pod, constraint, other)
                    and other.metadata.labels.get(key) == node.metadata.labels[key]
                )
            total += count * math.log(size + 2) + (constraint.max_skew - 1)
        raw[node.metadata.name] = math.floor(total + 0.5)
    low, high = (min(raw.values()), max(raw.values())) if raw else (0, 0)
    final = {name: 100 * (high + low - score) // high if high else 100 for name, score in raw.items()}
    return final | {node.metadata.name: 0 for node in ignored}


# Pod affinity ----------------------------------------------------------------------------------------------------


def _terms(pod: Pod, *, anti: bool) -> Sequence[PodAffinityTerm]:
    affinity = pod.spec.affinity
    part = (affinity.pod_anti_affinity if anti else affinity.pod_affinity) if affinity else None
    return part.required_during_scheduling_ignored_during_execution if part else ()


def _preferences(pod: Pod) -> list[tuple[int, PodAffinityTerm]]:
    affinity = pod.spec.affinity
    return [
        (sign * each.weight, each.pod_affinity_term)
        for part, sign in (((affinity.pod_affinity, 1), (affinity.pod_anti_affinity, -1)) if affinity else ())
        for each in (part.preferred_during_scheduling_ignored_during_execution if part else ())
    ]


def _matches(world: OracleCluster, owner: Pod, term: PodAffinityTerm, other: Pod, *, incoming: bool) -> bool:
    """Return whether `owner`'s term matches `other`. An incoming pod's namespace selector is also matched with no
    labels.
    """
    space = other.metadata.namespace
    if not term.namespaces and term.namespace_selector is None:
        inside = space == owner.metadata.namespace
    elif incoming:
        chosen = [n for n, labels in world.namespaces.items() if selects(term.namespace_selector, labels)]
        inside = space in term.namespaces or space in chosen or selects(term.namespace_selector, {})
    else:
        inside = space in term.namespaces or selects(term.namespace_selector, world.namespaces.get(space, {}))
    return inside and selects(term.label_selector, other.metadata.labels)


def _together(a: Node | None, b: Node, key: str) -> bool:
    if a is None or key not in a.metadata.labels or key not in b.metadata.labels:
        return False
    return a.metadata.labels[key] == b.metadata.labels[key]


def affinity_refusal(world: OracleCluster, pod: Pod, node: Node) -> str | None:
    near = _terms(pod, anti=False)
    if any(term.topology_key not in node.metadata.labels for term in near):
        return AFFINITY
    friends = [o for o in world.pods if near and all(_matches(world, pod, t, o, incoming=True) for t in near)]
    if not all(any(_together(world.node_of(o), node, t.topology_key) for o in friends) for t in near):
        anywhere = any(
            (home := world.node_of(o)) is not None and t.topology_key in home.metadata.labels
            for o in friends
            for t in near
        )
        if anywhere or not all(_matches(world, pod, t, pod, incoming=True) for t in near):
            return AFFINITY
    for term in _terms(pod, anti=True):
        for other in world.pods:
            if _matches(world, pod, term, other, incoming=True) and _together(
                world.node_of(other), node, term.topology_key
            ):
                return ANTI_AFFINITY
    for other in world.pods:
        for term in _terms(other, anti=True):
            if _matches(world, other, term, pod, incoming=False) and _together(
                world.node_of(other), node, term.topology_key
            ):
                return EXISTING
    return None


def affinity_scores(
    world: OracleCluster, pod: Pod, feasible: Sequence[Node], *, hard_weight: int = 1, ignore_existing: bool = False
) -> dict[str, int]:
    own = _preferences(pod)
    raw = {}
    for node in feasible:
        total = 0
        for other in world.pods:
            home = world.node_of(other)
            for weight, term in own:
                if _matches(world, pod, term, other, incoming=True) and _together(home, node, term.topology_key):
                    total += weight
            if ignore_existing and not own:
                continue
            theirs = [*_preferences(other), *((hard_weight, term) for term in _terms(other, anti=False))]
            for weight, term in theirs:
                if _matches(world, other, term, pod, incoming=False) and _together(home, node, term.topology_key):
                    total += weight
        raw[node.metadata.name] = total
    low, high = (min(raw.values()), max(raw.values())) if raw else (0, 0)
    if low == high:
        return dict.fromkeys(raw, 0)
    return {name: int(100 * ((score - low) / (high - low))) for name, score in raw.items()}
