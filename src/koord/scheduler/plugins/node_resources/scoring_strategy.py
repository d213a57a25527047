"""This module turns the utilization of a node into a score: Least- or MostAllocated, RequestedToCapacityRatio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from koord.api.config.scheduler import plugin_args
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.framework.plugin import MAX_SCORE, Scores
from koord.scheduler.plugins.node_resources.allocation_columns import AllocationColumns
from koord.scheduler.plugins.node_resources.resource_allocation import ScoredResource, present_resources

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

    def __init__(self, points: Sequence[plugin_args.UtilizationShapePoint]) -> None:
        self._curve = np.asarray([_interpolate(points, percent) for percent in range(MAX_SCORE + 1)], np.int64)
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


def build_strategy(given: plugin_args.ScoringStrategy) -> ResourceScoringStrategy:
    """Build the configured strategy. Raise ValueError for an unknown one: configuration is validated before."""
    if given.type in (plugin_args.LEAST_ALLOCATED, plugin_args.MOST_ALLOCATED):
        return WeightedMeanStrategy(fills_up=given.type == plugin_args.MOST_ALLOCATED)
    if given.type == plugin_args.REQUESTED_TO_CAPACITY_RATIO and given.requested_to_capacity_ratio is not None:
        return RequestedToCapacityRatioStrategy(given.requested_to_capacity_ratio.shape)
    raise ValueError(f"scoring strategy {given.type} is not supported")


def _interpolate(points: Sequence[plugin_args.UtilizationShapePoint], percent: int) -> int:
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
