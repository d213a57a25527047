"""NumaBatchEvaluator filters and scores one class of pods on many nodes, by columns where they suffice.

plain pod       only nodes with a policy for all pods are evaluated
bound CPUs      the number of free CPUs of the right kind decides (`node_columns`)
one NUMA node   the same for each NUMA node (`zone_columns`)
all else        node by node: other NUMA policies, amplified nodes, reservations, devices
"""

from __future__ import annotations

import numpy as np

from koord.api.annotations.numa_topology_spec import NONE, SINGLE_NUMA_NODE
from koord.policy.topology.refusal import INVALID_CPU_TOPOLOGY, NOT_ENOUGH_CPUS, NOT_WHOLE_CORES
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.plugin import Codes, Scores
from koord.scheduler.framework.verdict import Reject, reject, unresolvable
from koord.scheduler.plugins.fullness import Fullness
from koord.scheduler.plugins.node_numa_resource.case import Case
from koord.scheduler.plugins.node_numa_resource.judge import Judge
from koord.scheduler.plugins.node_numa_resource.rooms import INVALID, NOT_ENOUGH, NOT_WHOLE, Rooms
from koord.scheduler.plugins.node_numa_resource.strict import StrictRows
from koord.scheduler.plugins.node_numa_resource.zones import ZoneRooms
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import Bools, NodeTable, RowList, Rows

_WORDS = {
    INVALID: unresolvable(INVALID_CPU_TOPOLOGY),
    NOT_WHOLE: unresolvable(NOT_WHOLE_CORES),
    NOT_ENOUGH: reject(NOT_ENOUGH_CPUS),
}
_FIRST_MET = 16  # from here on codes of the cycle state
_FIRST_ROW = 1 << 16  # from here on row numbers: the reason of that row is computed when it is needed


class Survey:
    def __init__(self, judge: Judge, table: NodeTable) -> None:
        self._judge = judge
        self._table = table
        self.strict = StrictRows(table, judge.sites)
        self._rooms = Rooms(table, judge.sites, judge.books)
        self._zones = ZoneRooms(table, judge.sites, judge.books)
        self._fullness = table.derived(Fullness)
        self._scored = {name for name, _ in (*judge.scorer.weights, *judge.zone_scorer.weights)}

    def codes(self, cycle: Cycle, case: Case, pod: PodInfo, rows: Rows) -> Codes:
        demand, table = case.demand, self._table
        codes = np.zeros(len(table.alive[rows]), np.int32)
        closely = self._closely(cycle, case, rows)
        if demand.wish.binds and demand.promised is None:
            self._rooms.refresh()
            codes = self._rooms.codes(rows, demand.wish.count, demand.wish.required)
            if demand.wish.required:
                closely = closely | self._rooms.uneven[rows]
        if not closely.any():
            return codes
        simple = closely & self._simple(cycle, case, rows)
        if simple.any():
            settled = (codes == INVALID) | (codes == NOT_WHOLE)
            short = simple & ~settled & ~self._zones.fits(rows, demand)
            codes[simple & ~settled] = 0
            codes[short] = _FIRST_ROW + _numbers(rows, table)[short]
            closely = closely & ~simple
        for place, node in self._each(closely, rows):
            code = case.code(self._judge.verdict(cycle, case, pod, node))
            codes[place] = code and _FIRST_MET + code
        return codes

    def word(self, cycle: Cycle, case: Case, pod: PodInfo, code: int) -> Reject:
        if code in _WORDS:
            return _WORDS[code]
        if code < _FIRST_ROW:
            found = case.words[code - _FIRST_MET]
        else:
            node = self._table.nodes[code - _FIRST_ROW]
            found = None if node is None else self._judge.verdict(cycle, case, pod, node)
        assert found is not None, f"code {code} is of no refusal"
        return found

    def scores(self, cycle: Cycle, case: Case, pod: PodInfo, rows: Rows) -> Scores:
        demand, judge = case.demand, self._judge
        scores = self._fullness.mean(case.counted, rows, fills_up=judge.scorer.fills_up)
        if case.quiet:
            return scores
        if demand.wish.binds:
            self._rooms.refresh()
            scores[self._rooms.per_core[rows] == 0] = 0
        closely = self.strict.column()[rows]
        if demand.policy:
            closely = self._table.alive[rows]
        if not closely.any():
            return scores
        simple = closely & self._simple(cycle, case, rows)
        if demand.wish.binds:  # rows that refuse the number of CPUs itself are not worth a column
            simple &= self._rooms.codes(rows, demand.wish.count, demand.wish.required) != NOT_WHOLE
            simple &= self._rooms.per_core[rows] > 0
        if simple.any():
            found = self._zones.scores(rows, demand, judge.zone_scorer, judge.scorer)
            np.copyto(scores, found, where=simple)
            closely = closely & ~simple
        for place, node in self._each(closely, rows):
            scores[place] = judge.score(cycle, case, pod, node)
        return scores

    # Which rows --------------------------------------------------------------------------------------------------

    def _closely(self, cycle: Cycle, case: Case, rows: Rows) -> Bools:
        """Return the rows on which the number of free CPUs does not decide."""
        demand, table = case.demand, self._table
        if demand.policy != NONE or demand.promised is not None:
            return table.alive[rows]
        strict = self.strict.column()
        if demand.wish.binds and cycle.reserved:
            strict = strict | self._reserved(cycle)
        return strict[rows]

    def _simple(self, cycle: Cycle, case: Case, rows: Rows) -> Bools:
        """Return the rows among these on which the zone columns decide."""
        demand, judge = case.demand, self._judge
        nobody = np.zeros(len(self._table.alive[rows]), np.bool_)
        if demand.policy not in (NONE, SINGLE_NUMA_NODE) or demand.promised is not None or judge.others(cycle):
            return nobody
        self._zones.refresh({*self._scored, *demand.amounts, "cpu"})
        simple = self._zones.simple(rows, demand)
        return simple & ~self._reserved(cycle)[rows] if cycle.reserved else simple

    def _reserved(self, cycle: Cycle) -> Bools:
        table = self._table
        found = np.zeros(table.size, np.bool_)
        found[[node.row for name in cycle.reserved if (node := table.index.get(name)) is not None]] = True
        return found

    def _each(self, chosen: Bools, rows: Rows) -> list[tuple[int, NodeInfo]]:
        numbers = _numbers(rows, self._table)
        found = ((place, self._table.nodes[numbers[place]]) for place in np.flatnonzero(chosen).tolist())
        return [(place, node) for place, node in found if node is not None and node.node is not None]


def _numbers(rows: Rows, table: NodeTable) -> RowList:
    return np.arange(table.size, dtype=np.intp)[rows] if isinstance(rows, slice) else rows
