"""Score every feasible node for one class of equal pods, row by row.

    raw[s][row]     the score of scorer s
    total[row]      the weighted sum of normalised scores; -1 where the pod does not fit

A scorer that depends on one row is run again for rows that changed. One that looks across nodes is run for all feasible
nodes when its epoch moves, and, if it has a PreScore, when the set of feasible nodes does. Normalised scores depend on
the other nodes through one number (`ScoreNormaliser.span`): only when that moves is the column recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import overload

import numpy as np

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import ALL_ROWS, Bools, NodeTable, RowList
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import EXTENDER
from koord.scheduler.framework.filtering import FEW_ROWS, EpochTracker, FilterResults
from koord.scheduler.framework.plugin import Scores
from koord.scheduler.framework.plugin_timing import AttemptTimer
from koord.scheduler.framework.profile import SchedulerProfile, ScorePlugin
from koord.scheduler.framework.runtime import PluginRejection, pre_score_differs, run_pre_score
from koord.scheduler.framework.verdict import ROW


class FeasibleNodes(Sequence[NodeInfo]):
    """List the nodes that passed every filter for PreScore.

    Most PreScore plugins never look, and columnar ones take `rows`, so the list is made on demand.
    """

    __slots__ = ("_nodes", "_table", "rows")

    def __init__(self, table: NodeTable, rows: RowList) -> None:
        self._table = table
        self.rows = rows
        self._nodes: list[NodeInfo] | None = None

    def _as_list(self) -> list[NodeInfo]:
        if self._nodes is None:
            self._nodes = [node for row in self.rows if (node := self._table.nodes[row]) is not None]
        return self._nodes

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> NodeInfo: ...
    @overload
    def __getitem__(self, index: slice) -> list[NodeInfo]: ...
    def __getitem__(self, index: int | slice) -> NodeInfo | list[NodeInfo]:
        return self._as_list()[index]


INFEASIBLE_SCORE = -1
_NO_ROWS: RowList = np.zeros(0, np.intp)


class ScoreResults:
    """Keep the raw, normalised and total scores of all nodes for one class of equal pods."""

    def __init__(
        self, profile: SchedulerProfile, cycle: CycleState, pod: PodInfo, filter_results: FilterResults
    ) -> None:
        self._profile = profile
        self._cycle = cycle
        self._pod = pod
        self._filter_results = filter_results
        self._table: NodeTable = cycle.state.table
        self._epochs = EpochTracker(scores=True)
        self.scorers: tuple[ScorePlugin, ...] = ()
        self._cross_row_scorers: tuple[int, ...] = ()  # the scorers that look across nodes
        self._raw: list[Scores] = []
        self._normal: list[Scores] = []
        self._spans: list[Hashable] = []
        self._was_feasible: Bools = np.zeros(0, np.bool_)
        # Rows whose raw scores are right: nodes that do not fit are not asked about, even if they change.
        self._fresh: Bools = np.zeros(0, np.bool_)
        self.total: Scores = np.zeros(0, np.int64)
        # What `best_row` compares; updated with the total, and None when it must be made anew.
        self._ranks: Scores | None = None
        self._ties: Scores = np.zeros(0, np.int64)
        self._row_scorers: tuple[Callable[[NodeInfo], int], ...] = ()
        self.fault: PluginRejection | None = None
        self._extender_scores: Mapping[int, int] = {}  # by row
        self.timer: AttemptTimer | None = None  # of the attempt under way, if it is timed

    def score_all(self) -> None:
        rows = self._filter_results.feasible_rows()
        self._was_feasible = self._filter_results.first_rejection == 0
        self._run_pre_score(rows)
        for k in self._cross_row_scorers:
            self._epochs.has_moved(self.scorers[k].plugin, self._cycle)
        self._spans = [None for _ in self.scorers]
        self._raw = [self._timed_scores_of_all(scorer, rows) for scorer in self.scorers]
        whole = all(scorer.columnar for scorer in self.scorers) and self._takes_all(len(rows))
        self._fresh = np.ones(self._table.size, np.bool_) if whole else self._was_feasible.copy()
        self._normal = list(self._raw)
        for k in range(len(self.scorers)):
            self._normalise(k)
        self._sum()

    def _run_pre_score(self, rows: RowList) -> None:
        """Run PreScore; plugins that skip are left out of the sum."""
        feasible = FeasibleNodes(self._table, rows)
        self.fault = run_pre_score(self._profile, self._cycle, self._pod, feasible, self.timer)
        skipped = self._cycle.skip_score
        self.scorers = tuple(s for s in self._profile.scorers if s.name not in skipped)
        self._cross_row_scorers = tuple(k for k, s in enumerate(self.scorers) if s.plugin.scope is not ROW)
        self._row_scorers = tuple(s.plugin.row_scorer(self._cycle, self._pod) for s in self.scorers)

    def score_changed(self, changed: Sequence[int], *, across: bool) -> None:
        """Update the scores after these rows changed; `across` when feasibility changed elsewhere too."""
        before, first_rejection = self._was_feasible, self._filter_results.first_rejection
        if across:
            flipped, feasible = True, first_rejection == 0
        else:  # nearly every decision: only the row of the last placement may differ
            flipped, feasible = False, before
            for row in changed:
                fits = first_rejection.item(row) == 0
                if before.item(row) != fits:
                    feasible[row] = fits
                    flipped = True
        anew = [
            k
            for k in self._cross_row_scorers
            if self._epochs.has_moved(self.scorers[k].plugin, self._cycle)
            or (flipped and self.scorers[k].depends_on_feasible)
        ]
        fit = np.flatnonzero(feasible) if anew else _NO_ROWS
        if self.fault is not None or (
            anew and pre_score_differs(self._profile, self._cycle, self._pod, FeasibleNodes(self._table, fit))
        ):
            self.score_all()
            return
        self._was_feasible = feasible
        if not across and not anew and len(changed) <= FEW_ROWS:
            self._score_few(changed, flipped=flipped)
            return
        self._fresh[list(changed)] = False
        if across:
            rows = np.flatnonzero(feasible & ~self._fresh)
        else:
            rows = np.asarray([row for row in changed if feasible[row]], np.intp)
        self._fresh[rows] = True
        whole = across or bool(anew)
        for k in range(len(self.scorers)):
            if k in anew:
                self._raw[k] = self._timed_scores_of_all(self.scorers[k], fit)
                self._normalise(k)
            else:
                whole |= self._score_rows(k, rows, flipped=flipped)
        if whole:
            self._sum()
            return
        for row in changed:
            self._set_total(row, INFEASIBLE_SCORE)
        for row in rows.tolist():
            self._set_total(row, sum(int(self._normal[k][row]) * s.weight for k, s in enumerate(self.scorers)))

    def _score_few(self, changed: Sequence[int], *, flipped: bool) -> None:
        """Update a few rows without arrays: nearly every decision changes only the row of the last placement."""
        nodes, views = self._table.nodes, self._filter_results.node_views
        fit: list[int] = []
        for row in changed:
            fits = self._fresh[row] = self._was_feasible.item(row)
            if fits:
                fit.append(row)
            else:
                self._set_total(row, INFEASIBLE_SCORE)
        sums = [0] * len(fit)
        whole = False
        if (timer := self.timer) is not None:
            timer.lap()
        for k, scorer in enumerate(self.scorers):
            raw, normalises, weight, score_node = self._raw[k], scorer.normalises, scorer.weight, self._row_scorers[k]
            moved = flipped
            for place, row in enumerate(fit):
                node = nodes[row] if views is None else views.node(row)
                assert node is not None
                score = score_node(node)
                if raw.item(row) != score:
                    raw[row] = score
                    moved = True
                sums[place] += score * weight
            if timer is not None:
                timer.plugin_ended(scorer.name, "Score", None)
            if normalises:
                if moved:
                    whole |= self._normalise_rows(k, np.asarray(fit, np.intp))
                for place, row in enumerate(fit):
                    sums[place] += (self._normal[k].item(row) - raw.item(row)) * weight
        if whole:
            self._sum()
            return
        for row, summed in zip(fit, sums, strict=True):
            self._set_total(row, summed)

    def _set_total(self, row: int, total: int) -> None:
        self.total[row] = total
        if self._ranks is not None:
            self._ranks[row] = total * len(self._ties) + self._ties.item(row)

    def _score_rows(self, k: int, rows: RowList, *, flipped: bool) -> bool:
        """Update the scores of these rows; return whether the normalised scores of all rows were recomputed."""
        scorer = self.scorers[k]
        moved = self._score_some(scorer, self._raw[k], rows)
        return scorer.normalises and (moved or flipped) and self._normalise_rows(k, rows)

    def _normalise_rows(self, k: int, rows: RowList) -> bool:
        """Normalise these rows after raw scores or feasibility changed; return whether all rows were recomputed."""
        scorer, raw = self.scorers[k], self._raw[k]
        if scorer.normaliser is not None:
            span = scorer.normaliser.span(raw, self._was_feasible)
            if span == self._spans[k]:
                self._normal[k][rows] = scorer.normaliser.apply(raw[rows], span)
                return False
        self._normalise(k)
        return True

    def _score_some(self, scorer: ScorePlugin, raw: Scores, rows: RowList) -> bool:
        """Score these rows again; return False when no score changed."""
        if self.timer is not None:
            self.timer.lap()
        if len(rows) > FEW_ROWS:
            raw[rows] = self._raw_scores_of_rows(scorer, rows)
            moved = True
        else:
            moved = self._score_one_by_one(scorer, raw, rows)
        if self.timer is not None:
            self.timer.plugin_ended(scorer.name, "Score", None)
        return moved

    def _score_one_by_one(self, scorer: ScorePlugin, raw: Scores, rows: RowList) -> bool:
        moved = False
        for row in rows.tolist():
            node = self._node(row)
            assert node is not None
            score = scorer.plugin.score(self._cycle, self._pod, node)
            if raw[row] != score:
                raw[row] = score
                moved = True
        return moved

    def _timed_scores_of_all(self, scorer: ScorePlugin, feasible: RowList) -> Scores:
        if self.timer is None:
            return self._raw_scores_of_all(scorer, feasible)
        self.timer.lap()
        scores = self._raw_scores_of_all(scorer, feasible)
        self.timer.plugin_ended(scorer.name, "Score", None)
        return scores

    def _raw_scores_of_all(self, scorer: ScorePlugin, feasible: RowList) -> Scores:
        """Return a column of raw scores that is right where the pod fits.

        Whole columns are read without copying, so they are used unless only a small part of the nodes fits.
        """
        if scorer.columnar and self._takes_all(len(feasible)):
            column = scorer.plugin.score_columns(self._cycle, self._pod, self._table, ALL_ROWS)
            return column if self._filter_results.node_views is None else self._with_viewed_rows(scorer, column, None)
        column = np.zeros(self._table.size, np.int64)
        if len(feasible):
            column[feasible] = self._raw_scores_of_rows(scorer, feasible)
        return column

    def _takes_all(self, feasible: int) -> bool:
        return 4 * feasible > self._table.size

    def _raw_scores_of_rows(self, scorer: ScorePlugin, rows: RowList) -> Scores:
        if scorer.columnar and len(rows) > FEW_ROWS:
            column = scorer.plugin.score_columns(self._cycle, self._pod, self._table, rows)
            return column if self._filter_results.node_views is None else self._with_viewed_rows(scorer, column, rows)
        score, cycle, pod = scorer.plugin.score, self._cycle, self._pod
        found = (score(cycle, pod, node) for row in rows.tolist() if (node := self._node(row)) is not None)
        return np.fromiter(found, np.int64, len(rows))

    def _node(self, row: int) -> NodeInfo | None:
        views = self._filter_results.node_views
        return self._table.nodes[row] if views is None else views.node(row)

    def _with_viewed_rows(self, scorer: ScorePlugin, column: Scores, rows: RowList | None) -> Scores:
        """Correct the columnar scores of rows that this class sees differently (restored nodes)."""
        views = self._filter_results.node_views
        apart = views.rows() if views is not None else ()
        places = enumerate(rows.tolist()) if rows is not None else ((row, row) for row in apart)
        column = column.copy() if apart else column
        for place, row in places:
            if row in apart and self._filter_results.first_rejection[row] == 0:
                node = self._node(row)
                assert node is not None
                column[place] = scorer.plugin.score(self._cycle, self._pod, node)
        return column

    def _normalise(self, k: int) -> None:
        """Normalise a whole column; raw scores that need no normalising share one array with the normalised ones."""
        scorer, raw = self.scorers[k], self._raw[k]
        if self.timer is not None:
            self.timer.lap()
        if scorer.normaliser is not None:
            span = self._spans[k] = scorer.normaliser.span(raw, self._was_feasible)
            self._normal[k] = scorer.normaliser.apply(raw, span)
        elif scorer.normalises:
            rows = np.flatnonzero(self._was_feasible)
            normal = np.zeros(self._table.size, np.int64)
            normal[rows] = scorer.plugin.normalise(self._cycle, self._pod, raw[rows])
            self._normal[k] = normal
        else:
            self._normal[k] = raw
        if self.timer is not None and scorer.normalises:
            self.timer.plugin_ended(scorer.name, "ScoreExtensionNormalize", None)

    def _sum(self) -> None:
        total = np.zeros(self._table.size, np.int64)
        for k, scorer in enumerate(self.scorers):
            total += self._normal[k] if scorer.weight == 1 else self._normal[k] * scorer.weight
        total[~self._was_feasible] = INFEASIBLE_SCORE
        self.total = total
        self._ranks = None

    def best_row(self, ties: Scores) -> int:
        """Return the row with the highest total, and of equal ones the one with the highest number in `ties`."""
        if self._ranks is None or self._ties is not ties:
            self._ties = ties
            self._ranks = self.total * len(ties) + ties
        return int(self._ranks.argmax())

    def feasible_count(self) -> int:
        return int(np.count_nonzero(self._was_feasible))

    def breakdown(self, row: int) -> dict[str, int]:
        """Return the weighted, normalised scores of one node by plugin."""
        scored = zip(self.scorers, self._normal, strict=True)
        found = {scorer.name: normal.item(row) * scorer.weight for scorer, normal in scored}
        return {**found, EXTENDER: self._extender_scores[row]} if self._extender_scores else found

    def add_extender_scores(self, scores: Mapping[int, int]) -> None:
        """Add what extenders think of feasible rows to their totals, for good."""
        self._extender_scores = scores
        for row, score in scores.items():
            self._set_total(row, self.total.item(row) + score)
