"""NumaBatchEvaluator filters and scores one class of pods on many nodes, by columns where they suffice.

plain pod       only nodes with a policy for all pods are evaluated
bound CPUs      the number of free CPUs of the right kind decides (`node_columns`)
one NUMA node   the same for each NUMA node (`zone_columns`)
all else        node by node: other NUMA policies, amplified nodes, reservations, devices
"""

from __future__ import annotations

import numpy as np

from koord.api.annotations.cpu_codecs import NUMA_POLICY_NONE, NUMA_POLICY_SINGLE_NUMA_NODE
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import Bools, NodeTable, RowList, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Codes, Scores
from koord.scheduler.framework.reservation import reservations_of
from koord.scheduler.framework.verdict import Reject, reject, unresolvable
from koord.scheduler.plugins.node_numa_resource.cycle_state import NumaCycleState
from koord.scheduler.plugins.node_numa_resource.node_columns import (
    INVALID_TOPOLOGY,
    NOT_WHOLE_CORE_COUNT,
    TOO_FEW_CPUS,
    FreeCpuColumns,
    PolicyRows,
)
from koord.scheduler.plugins.node_numa_resource.node_evaluator import NumaNodeEvaluator
from koord.scheduler.plugins.node_numa_resource.refusal import INVALID_CPU_TOPOLOGY, NOT_ENOUGH_CPUS, NOT_WHOLE_CORES
from koord.scheduler.plugins.node_numa_resource.zone_columns import ZoneColumns
from koord.scheduler.plugins.node_resources.allocation_columns import AllocationColumns

_REJECTIONS = {
    INVALID_TOPOLOGY: unresolvable(INVALID_CPU_TOPOLOGY),
    NOT_WHOLE_CORE_COUNT: unresolvable(NOT_WHOLE_CORES),
    TOO_FEW_CPUS: reject(NOT_ENOUGH_CPUS),
}
_FIRST_CYCLE_CODE = 16  # from here on codes of the cycle state
_FIRST_ROW_CODE = 1 << 16  # from here on row numbers: the reason of that row is computed when it is needed


class NumaBatchEvaluator:
    def __init__(self, evaluator: NumaNodeEvaluator, table: NodeTable) -> None:
        self._evaluator = evaluator
        self._table = table
        self.policy_rows = PolicyRows(table, evaluator.profiles)
        self._free_cpus = FreeCpuColumns(table, evaluator.profiles, evaluator.cache)
        self._zones = ZoneColumns(table, evaluator.profiles, evaluator.cache)
        self._utilization = table.derived(AllocationColumns)
        self._scored = {name for name, _ in (*evaluator.scorer.weights, *evaluator.zone_scorer.weights)}

    def codes(self, cycle: CycleState, cycle_state: NumaCycleState, pod: PodInfo, rows: Rows) -> Codes:
        demand, table = cycle_state.demand, self._table
        codes = np.zeros(len(table.alive[rows]), np.int32)
        closely = self._rows_beyond_cpu_counts(cycle, cycle_state, rows)
        if demand.wish.binds and demand.designated is None:
            self._free_cpus.refresh()
            codes = self._free_cpus.codes(rows, demand.wish.count, demand.wish.required)
            if demand.wish.required:
                closely = closely | self._free_cpus.uneven[rows]
        if not closely.any():
            return codes
        simple = closely & self._rows_for_zone_columns(cycle, cycle_state, rows)
        if simple.any():
            settled = (codes == INVALID_TOPOLOGY) | (codes == NOT_WHOLE_CORE_COUNT)
            short = simple & ~settled & ~self._zones.fits(rows, demand)
            codes[simple & ~settled] = 0
            codes[short] = _FIRST_ROW_CODE + _row_numbers(rows, table)[short]
            closely = closely & ~simple
        for place, node in self._nodes_of_rows(closely, rows):
            code = cycle_state.code(self._evaluator.verdict(cycle, cycle_state, pod, node))
            codes[place] = code and _FIRST_CYCLE_CODE + code
        return codes

    def rejection_of_code(self, cycle: CycleState, cycle_state: NumaCycleState, pod: PodInfo, code: int) -> Reject:
        if code in _REJECTIONS:
            return _REJECTIONS[code]
        if code < _FIRST_ROW_CODE:
            found = cycle_state.rejections[code - _FIRST_CYCLE_CODE]
        else:
            node = self._table.nodes[code - _FIRST_ROW_CODE]
            found = None if node is None else self._evaluator.verdict(cycle, cycle_state, pod, node)
        assert found is not None, f"code {code} is of no refusal"
        return found

    def scores(self, cycle: CycleState, cycle_state: NumaCycleState, pod: PodInfo, rows: Rows) -> Scores:
        demand, evaluator = cycle_state.demand, self._evaluator
        scores = self._utilization.weighted_mean_percent(
            cycle_state.scored_resources, rows, fills_up=evaluator.scorer.packs
        )
        if cycle_state.is_skipped:
            return scores
        if demand.wish.binds:
            self._free_cpus.refresh()
            scores[self._free_cpus.per_core[rows] == 0] = 0
        closely = self.policy_rows.column()[rows]
        if demand.policy:
            closely = self._table.alive[rows]
        if not closely.any():
            return scores
        simple = closely & self._rows_for_zone_columns(cycle, cycle_state, rows)
        if demand.wish.binds:  # rows that refuse the number of CPUs itself are not worth a column
            simple &= self._free_cpus.codes(rows, demand.wish.count, demand.wish.required) != NOT_WHOLE_CORE_COUNT
            simple &= self._free_cpus.per_core[rows] > 0
        if simple.any():
            found = self._zones.scores(rows, demand, evaluator.zone_scorer, evaluator.scorer)
            np.copyto(scores, found, where=simple)
            closely = closely & ~simple
        for place, node in self._nodes_of_rows(closely, rows):
            scores[place] = evaluator.score(cycle, cycle_state, pod, node)
        return scores

    # Which rows --------------------------------------------------------------------------------------------------

    def _rows_beyond_cpu_counts(self, cycle: CycleState, cycle_state: NumaCycleState, rows: Rows) -> Bools:
        """Return the rows on which the number of free CPUs does not decide."""
        demand, table = cycle_state.demand, self._table
        if demand.policy != NUMA_POLICY_NONE or demand.designated is not None:
            return table.alive[rows]
        strict = self.policy_rows.column()
        if demand.wish.binds and reservations_of(cycle).matched:
            strict = strict | self._rows_with_reservations(cycle)
        return strict[rows]

    def _rows_for_zone_columns(self, cycle: CycleState, cycle_state: NumaCycleState, rows: Rows) -> Bools:
        """Return the rows among these on which the zone columns decide."""
        demand, evaluator = cycle_state.demand, self._evaluator
        nobody = np.zeros(len(self._table.alive[rows]), np.bool_)
        if (
            demand.policy not in (NUMA_POLICY_NONE, NUMA_POLICY_SINGLE_NUMA_NODE)
            or demand.designated is not None
            or evaluator.hint_plugins(cycle)
        ):
            return nobody
        self._zones.refresh({*self._scored, *demand.amounts, "cpu"})
        simple = self._zones.decidable_rows(rows, demand)
        return simple & ~self._rows_with_reservations(cycle)[rows] if reservations_of(cycle).matched else simple

    def _rows_with_reservations(self, cycle: CycleState) -> Bools:
        table = self._table
        found = np.zeros(table.size, np.bool_)
        found[[node.row for name in reservations_of(cycle).matched if (node := table.index.get(name)) is not None]] = (
            True
        )
        return found

    def _nodes_of_rows(self, chosen: Bools, rows: Rows) -> list[tuple[int, NodeInfo]]:
        numbers = _row_numbers(rows, self._table)
        found = ((place, self._table.nodes[numbers[place]]) for place in np.flatnonzero(chosen).tolist())
        return [(place, node) for place, node in found if node is not None and node.node is not None]


def _row_numbers(rows: Rows, table: NodeTable) -> RowList:
    return np.arange(table.size, dtype=np.intp)[rows] if isinstance(rows, slice) else rows
