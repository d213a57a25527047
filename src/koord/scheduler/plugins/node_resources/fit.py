"""NodeResourcesFit rejects nodes that lack what a pod requests, and scores nodes by how full they would be with it:
Least- or MostAllocated, or RequestedToCapacityRatio.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import msgspec
import numpy as np

from koord.api.config.scheduler import in_tree_args
from koord.api.config.scheduler.in_tree_args import NodeResourcesFitArgs
from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.api.kubernetes import pod as api_pod
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod_resources import is_extended_resource, nonzero_requests
from koord.scheduler.cache.node_info import PODS_RESOURCE, NodeInfo, node_allocatable
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo, PodShape
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import MAX_SCORE, Codes, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, Fault, PreFilterResult, Reject, Skip
from koord.scheduler.plugins.node_resources.allocation_columns import (
    BUILT_IN,
    AllocationColumns,
    ScoredResource,
    is_counted,
    present_resources,
    scored_resources,
)

_TOO_MANY_PODS = "Too many pods"
# A code is bits: too many pods, some request larger than the whole node, then one per resource that is short.
_TOO_MANY_BIT, _UNRESOLVABLE_BIT, _FIRST_RESOURCE = 1, 2, 2
_MAX_CODED_RESOURCES = 18  # as many as leave codes below those that verdicts without a code get

# Points of a curve give scores from 0 to this.
_MAX_SHAPE_SCORE = 10


class ResourceScoringStrategy(Protocol):
    def score(self, counted: Sequence[ScoredResource], node: NodeInfo) -> int: ...

    def score_columns(self, counted: Sequence[ScoredResource], table: NodeTable, rows: Rows) -> Scores: ...


class WeightedMeanStrategy:
    """Score the weighted mean of the free percentages, so that pods spread (LeastAllocated), or of the used ones, so
    that nodes fill up (MostAllocated).

    Defaults for unstated requests can make a node look overfull, which counts as full.
    """

    def __init__(self, *, fills_up: bool) -> None:
        self._fills_up = fills_up

    def score(self, counted: Sequence[ScoredResource], node: NodeInfo) -> int:
        total = weights = 0
        for capacity, used, weight in present_resources(counted, node):
            part = min(used, capacity) if self._fills_up else max(capacity - used, 0)
            total += part * MAX_SCORE // capacity * weight
            weights += weight
        return total // weights if weights else 0

    def score_columns(self, counted: Sequence[ScoredResource], table: NodeTable, rows: Rows) -> Scores:
        return table.derived(AllocationColumns).weighted_mean_percent(counted, rows, fills_up=self._fills_up)


class RequestedToCapacityRatioStrategy:
    """Score by a curve over the used percentage. A resource that scores 0 has no weight."""

    def __init__(self, points: Sequence[in_tree_args.UtilizationShapePoint]) -> None:
        self._curve = np.asarray([interpolate_shape(points, percent) for percent in range(MAX_SCORE + 1)], np.int64)
        self._steps: list[int] = self._curve.tolist()

    def score(self, counted: Sequence[ScoredResource], node: NodeInfo) -> int:
        total = weights = 0
        for capacity, used, weight in present_resources(counted, node):
            resource_score = self._steps[min(used, capacity) * MAX_SCORE // capacity]
            if resource_score > 0:
                total += resource_score * weight
                weights += weight
        return (2 * total + weights) // (2 * weights) if weights else 0

    def score_columns(self, counted: Sequence[ScoredResource], table: NodeTable, rows: Rows) -> Scores:
        total = weights = np.zeros(len(table.alive[rows]), np.int64)
        for resource in counted:
            capacity, used = resource.allocatable_and_used_columns(table, rows)
            resource_score = self._curve[np.minimum(used, capacity) * MAX_SCORE // np.maximum(capacity, 1)]
            weight = resource.weight * ((capacity != 0) & (resource_score > 0))
            total, weights = total + resource_score * weight, weights + weight
        return (2 * total + weights) // np.maximum(2 * weights, 1)


def build_strategy(given: in_tree_args.ScoringStrategy) -> ResourceScoringStrategy:
    """Build the configured strategy. Raise ValueError for an unknown one: configuration is validated before."""
    if given.type in (in_tree_args.LEAST_ALLOCATED, in_tree_args.MOST_ALLOCATED):
        return WeightedMeanStrategy(fills_up=given.type == in_tree_args.MOST_ALLOCATED)
    if given.type == in_tree_args.REQUESTED_TO_CAPACITY_RATIO and given.requested_to_capacity_ratio is not None:
        return RequestedToCapacityRatioStrategy(given.requested_to_capacity_ratio.shape)
    raise ValueError(f"scoring strategy {given.type} is not supported")


def interpolate_shape(points: Sequence[in_tree_args.UtilizationShapePoint], percent: int) -> int:
    """Interpolate the curve at a percentage: linear between points, constant outside, truncated towards zero."""
    scale = MAX_SCORE // _MAX_SHAPE_SCORE
    before = points[0]
    for point in points:
        if percent <= point.utilization:
            if point is before:
                return point.score * scale
            rise = (point.score - before.score) * scale * (percent - before.utilization)
            run = point.utilization - before.utilization
            return before.score * scale + (rise // run if rise >= 0 else -(-rise // run))
        before = point
    return before.score * scale


class _FitState(msgspec.Struct, frozen=True):
    """_FitState holds what this profile checks and scores for one class of pods."""

    checked: tuple[tuple[str, int], ...]  # resource and amount, in the order in which refusals name them
    counted: tuple[ScoredResource, ...]
    codes_by_verdict: dict[
        Reject | None, int
    ] = {}  # verdicts by code, for a pod with more resources than a code has bits


class NodeResourcesFit(Plugin):
    name = "NodeResourcesFit"
    scope = ROW
    reads_pods = "sums"
    wakes_on = (
        ClusterEvent("Pod", DELETE),
        ClusterEvent("Pod", UPDATE, "scale-down"),
        ClusterEvent("Node", ADD),
        ClusterEvent("Node", UPDATE, "allocatable"),
    )

    def __init__(self, args: NodeResourcesFitArgs) -> None:
        """Take arguments that are already defaulted."""
        if args.scoring_strategy is None:
            raise ValueError("scoring strategy not specified")
        self._ignored = frozenset(args.ignored_resources)
        self._ignored_groups = frozenset(args.ignored_resource_groups)
        self._scored = args.scoring_strategy.resources
        self._strategy = build_strategy(args.scoring_strategy)

    # Waking ------------------------------------------------------------------------------------------------------

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        if object_event.event.kind == "Node":
            return self._node_helps(pod, object_event.old, object_event.new)
        if object_event.new is None:
            return bool(object_event.old.node_name or object_event.old.nominated_node)
        return _scale_down_helps(pod, object_event.old, object_event.new)

    def _node_helps(self, pod: PodInfo, before: Node | None, now: Node) -> bool:
        """Return whether the pod would fit an empty node of this size and the node has more of what it requests."""
        room = node_allocatable(now)
        asked = self._checked(pod)
        if room.get(PODS_RESOURCE, 0) < 1 or any(amount > room.get(name, 0) for name, amount in asked):
            return False
        if before is None:
            return True
        had = node_allocatable(before)
        return any(room.get(name, 0) > had.get(name, 0) for name in (PODS_RESOURCE, *(name for name, _ in asked)))

    # Filter ------------------------------------------------------------------------------------------------------

    def _fit_state(self, cycle: CycleState, pod: PodInfo) -> _FitState:
        known = cycle.plugin_data.get(self.name)
        if known is None:
            counted = scored_resources(self._scored, _scored_requests(pod.shape), nonzero=True)
            known = _FitState(self._checked(pod), counted, {None: 0})
            cycle.write(self.name, known)
        assert isinstance(known, _FitState)
        return known

    def _checked(self, pod: PodInfo) -> tuple[tuple[str, int], ...]:
        return tuple((name, amount) for name, amount in _requests(pod) if not self._is_ignored(name))

    def _is_ignored(self, name: str) -> bool:
        if not is_extended_resource(name):
            return False
        return name in self._ignored or name.split("/", 1)[0] in self._ignored_groups

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Skip | PreFilterResult | Fault | None:
        self._fit_state(cycle, pod)
        return None

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        short = [] if len(node.pods) < node.allowed_pods else [_TOO_MANY_PODS]
        resolvable = True
        allocatable, requested = node.allocatable, node.requested
        for name, amount in self._fit_state(cycle, pod).checked:
            capacity = allocatable.get(name, 0)
            if amount > capacity - requested.get(name, 0):
                short.append(f"Insufficient {name}")
                resolvable = resolvable and amount <= capacity
        return Reject(tuple(short), resolvable) if short else None

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        checked = self._fit_state(cycle, pod).checked
        if len(checked) > _MAX_CODED_RESOURCES:
            return self._code_each(cycle, pod, table)[rows]
        codes = (table.pod_count[rows] >= table.allowed_pods[rows]).astype(np.int32)
        for place, (name, amount) in enumerate(checked):
            capacity = table.allocatable(name)[rows]
            codes |= (capacity - table.requested(name)[rows] < amount) * np.int32(1 << (_FIRST_RESOURCE + place))
            codes |= (capacity < amount) * np.int32(_UNRESOLVABLE_BIT)
        return codes

    def _code_each(self, cycle: CycleState, pod: PodInfo, table: NodeTable) -> Codes:
        codes_by_verdict = self._fit_state(cycle, pod).codes_by_verdict
        codes = np.zeros(table.size, np.int32)
        for row in table.live_rows():
            codes[row] = codes_by_verdict.setdefault(
                self._verdict_of_row(cycle, pod, table, row), len(codes_by_verdict)
            )
        return codes

    def _verdict_of_row(self, cycle: CycleState, pod: PodInfo, table: NodeTable, row: int) -> Reject | None:
        """Compute `filter` for one row from the columns."""
        short = [] if table.pod_count[row] < table.allowed_pods[row] else [_TOO_MANY_PODS]
        resolvable = True
        for name, amount in self._fit_state(cycle, pod).checked:
            capacity = table.allocatable(name)[row]
            if amount > capacity - table.requested(name)[row]:
                short.append(f"Insufficient {name}")
                resolvable = resolvable and bool(amount <= capacity)
        return Reject(tuple(short), resolvable) if short else None

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        fit_state = self._fit_state(cycle, pod)
        if len(fit_state.checked) > _MAX_CODED_RESOURCES:
            return next(
                verdict
                for verdict, known in fit_state.codes_by_verdict.items()
                if verdict is not None and known == code
            )
        short = [_TOO_MANY_PODS] if code & _TOO_MANY_BIT else []
        for place, (name, _) in enumerate(fit_state.checked):
            if code & (1 << (_FIRST_RESOURCE + place)):
                short.append(f"Insufficient {name}")
        return Reject(tuple(short), not code & _UNRESOLVABLE_BIT)

    # Score -------------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return None

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return self._strategy.score(self._fit_state(cycle, pod).counted, node)

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        return self._strategy.score_columns(self._fit_state(cycle, pod).counted, table, rows)


def _requests(pod: PodInfo) -> list[tuple[str, int]]:
    """Return the requests, built-in resources first and the others by name."""
    asked = pod.requests
    first = [(name, asked[name]) for name in BUILT_IN if name in asked]
    return first + sorted((name, n) for name, n in asked.items() if name not in BUILT_IN and is_counted(name))


def _scored_requests(shape: PodShape) -> dict[str, int]:
    """Return what a pod adds to a node for scoring.

    Kubernetes leaves pod-level resources out of this one number, though not out of what pods on nodes hold; so
    the containers' requests and defaults are what counts.
    """
    if shape.spec.resources is None:
        return shape.requests | {CPU: shape.nonzero_cpu, MEMORY: shape.nonzero_memory}
    return nonzero_requests(cast(api_pod.PodSpec, msgspec.structs.replace(shape.spec, resources=None)))


def _scale_down_helps(pod: PodInfo, before: PodInfo, now: PodInfo) -> bool:
    """Return whether the pod itself requests less, or a placed pod released some of what this one requests."""
    if now.uid == pod.uid:
        return True
    if not now.node_name:
        return False
    return any(now.requests.get(name, 0) < before.requests.get(name, 0) for name in pod.requests)
