"""NodeResourcesBalancedAllocation prefers nodes whose resources would be used evenly, so that none runs out
early.

score = 100 · (1 - σ), where σ is the standard deviation of the used fractions; truncated, not rounded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from koord.api.config.scheduler.in_tree_args import NodeResourcesBalancedAllocationArgs
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import MAX_SCORE, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, Skip
from koord.scheduler.plugins.node_resources import allocation_columns
from koord.scheduler.plugins.node_resources.allocation_columns import AllocationColumns

Floats = npt.NDArray[np.float64]


class BalancedAllocation(Plugin):
    name = "NodeResourcesBalancedAllocation"
    scope = ROW

    def __init__(self, args: NodeResourcesBalancedAllocationArgs) -> None:
        """Take arguments that are already defaulted."""
        self._resources = args.resources

    def _scored_resources(self, cycle: CycleState, pod: PodInfo) -> tuple[allocation_columns.ScoredResource, ...]:
        known = cycle.plugin_data.get(self.name)
        if known is None:
            known = allocation_columns.scored_resources(self._resources, pod.requests, nonzero=False)
            cycle.write(self.name, known)
        assert isinstance(known, tuple)
        return known

    def pre_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        """Skip a pod that requests none of the resources: it changes no balance, and one node would always win."""
        return None if any(resource.request for resource in self._scored_resources(cycle, pod)) else SKIP

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        fractions = [
            min(used / capacity, 1.0)
            for capacity, used, _ in allocation_columns.present_resources(self._scored_resources(cycle, pod), node)
        ]
        return int((1 - _deviation(fractions)) * MAX_SCORE)

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        utilization = table.derived(AllocationColumns)
        counted = self._scored_resources(cycle, pod)
        known = [utilization.resource(resource) for resource in counted]
        fractions = [one.fraction(rows, resource.request) for one, resource in zip(known, counted, strict=True)]
        if len(fractions) == 2:
            deviation: Floats = fractions[0] - fractions[1]
            np.abs(deviation, out=deviation)
            deviation /= 2
            for one in known:
                if one.absent is not None:
                    deviation[one.absent[rows]] = 0
        else:
            everywhere = np.ones(len(table.alive[rows]), np.bool_)
            present = [everywhere if one.absent is None else ~one.absent[rows] for one in known]
            deviation = _deviations(list(zip(fractions, present, strict=True)), len(everywhere))
        np.subtract(1, deviation, out=deviation)
        deviation *= MAX_SCORE
        return deviation.astype(np.int64)


def _deviation(fractions: Sequence[float]) -> float:
    if len(fractions) < 2:
        return 0.0
    if len(fractions) == 2:  # the same number, but computed in fewer steps, and so rounded less
        return abs((fractions[0] - fractions[1]) / 2)
    total = 0.0
    for fraction in fractions:  # term by term: sum() of newer Pythons rounds differently
        total += fraction
    mean = total / len(fractions)
    squares = 0.0
    for fraction in fractions:
        squares += (fraction - mean) * (fraction - mean)
    return math.sqrt(squares / len(fractions))


def _deviations(columns: Sequence[tuple[Floats, npt.NDArray[np.bool_]]], size: int) -> Floats:
    """Compute `_deviation` for every row, where each row has only some of the resources."""
    count = np.zeros(size, np.int64)
    total, first, second = np.zeros(size), np.zeros(size), np.zeros(size)
    for fraction, present in columns:
        first = np.where(present & (count == 0), fraction, first)
        second = np.where(present & (count == 1), fraction, second)
        total = total + np.where(present, fraction, 0.0)
        count = count + present
    among = np.maximum(count, 1)
    mean = total / among
    squares = np.zeros(size)
    for fraction, present in columns:
        squares = squares + np.where(present, (fraction - mean) * (fraction - mean), 0.0)
    many = np.where(count > 2, np.sqrt(squares / among), 0.0)
    return np.where(count == 2, np.abs((first - second) / 2), many)
