"""Every feasible node's score for one class of equal pods, kept up to date row by row.

    raw[s][row]     what scorer s said
    total[row]      the weighted sum of normalised scores; -1 where the pod does not fit

A scorer that depends on one row is asked again about rows that changed. One that looks across nodes is asked about all
feasible nodes when its epoch moves, and, if it has a PreScore, when the set of feasible nodes does. Normalised scores
are compared across nodes through one number (`Normaliser.span`): only when that moves is the whole column made anew.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.feasible import FeasibleNodes
from koord.scheduler.framework.judgement import FEW_ROWS, Epochs, Judgement
from koord.scheduler.framework.plugin import Scores
from koord.scheduler.framework.profile import Profile, Scorer
from koord.scheduler.framework.verdict import ROW, Fault
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import EVERY, NodeTable, RowList

UNFIT = -1


class Scoring:
    def __init__(self, profile: Profile, cycle: Cycle, pod: PodInfo, judgement: Judgement) -> None:
        self._profile = profile
        self._cycle = cycle
        self._pod = pod
        self._judgement = judgement
        self._table: NodeTable = cycle.state.table
        self._epochs = Epochs()
        self.scorers: tuple[Scorer, ...] = ()
        self._raw: list[Scores] = []
        self._normal: list[Scores] = []
        self._spans: list[int | None] = []
        self._was_feasible: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.total: Scores = np.zeros(0, np.int64)
        self.fault: tuple[str, Fault] | None = None

    def score_all(self) -> None:
        rows = self._judgement.feasible_rows()
        self._was_feasible = self._judgement.first == 0
        self._prepare(rows)
        for scorer in self.scorers:
            self._epochs.moved(scorer.plugin, self._cycle)
        self._spans = [None for _ in self.scorers]
        self._raw = [self._ask_all(scorer, rows) for scorer in self.scorers]
        self._normal = list(self._raw)
        for k in range(len(self.scorers)):
            self._normalise(k)
        self._sum()

    def _prepare(self, rows: RowList) -> None:
        """PreScore: who has nothing to say about this pod stays out of the sum."""
        skipped: set[str] = set()
        self.fault = None
        feasible = FeasibleNodes(self._table, rows)
        for plugin in self._profile.at("pre_score"):
            answer = plugin.pre_score(self._cycle, self._pod, feasible)
            if isinstance(answer, Fault):
                self.fault = (plugin.name, answer)
            elif answer is not None:
                skipped.add(plugin.name)
        self._cycle.skip_score = frozenset(skipped)
        self.scorers = tuple(s for s in self._profile.scorers if s.plugin.name not in skipped)

    def score_again(self, changed: Sequence[int], *, across: bool) -> None:
        """After these rows changed; `across` when feasibility may have changed elsewhere too."""
        feasible = self._judgement.first == 0
        if across:
            flipped = not np.array_equal(feasible, self._was_feasible)
        else:
            flipped = any(feasible[row] != self._was_feasible[row] for row in changed)
        wide = [s for s in self.scorers if s.plugin.scope is not ROW]
        moved = [s for s in wide if self._epochs.moved(s.plugin, self._cycle)]
        if moved or (flipped and any(s.surveys for s in wide)):
            self.score_all()
            return
        self._was_feasible = feasible
        if across and flipped:
            rows = np.flatnonzero(feasible)
            for k, scorer in enumerate(self.scorers):
                self._raw[k] = self._ask_all(scorer, rows)
                self._normalise(k)
            self._sum()
            return
        self._score_rows([row for row in changed if feasible[row]], changed, feasible)

    def _score_rows(self, fit: list[int], changed: Sequence[int], feasible: npt.NDArray[np.bool_]) -> None:
        whole = False
        for k, scorer in enumerate(self.scorers):
            raw = self._raw[k]
            if len(fit) > FEW_ROWS:
                some = np.asarray(fit, np.intp)
                raw[some] = self._ask(scorer, some)
            else:
                for row in fit:
                    node = self._table.nodes[row]
                    assert node is not None
                    raw[row] = scorer.plugin.score(self._cycle, self._pod, node)
            if scorer.normaliser is not None:
                span = scorer.normaliser.span(raw, feasible)
                if span != self._spans[k]:
                    self._normalise(k)
                    whole = True
                else:
                    some = np.asarray(fit, np.intp)
                    self._normal[k][some] = scorer.normaliser.apply(raw[some], span)
            elif scorer.normalises:
                self._normalise(k)
                whole = True
        if whole:
            self._sum()
            return
        for row in changed:
            self.total[row] = UNFIT
        for row in fit:
            self.total[row] = sum(int(self._normal[k][row]) * s.weight for k, s in enumerate(self.scorers))

    def _ask_all(self, scorer: Scorer, feasible: RowList) -> Scores:
        """A column of raw scores, right where the pod fits. Whole columns are read without copying, so they are taken
        unless only a small part of the nodes fits."""
        if scorer.columnar and 4 * len(feasible) > self._table.size:
            return scorer.plugin.score_columns(self._cycle, self._pod, self._table, EVERY)
        column = np.zeros(self._table.size, np.int64)
        if len(feasible):
            column[feasible] = self._ask(scorer, feasible)
        return column

    def _ask(self, scorer: Scorer, rows: RowList) -> Scores:
        if scorer.columnar:
            return scorer.plugin.score_columns(self._cycle, self._pod, self._table, rows)
        nodes = self._table.nodes
        found = (scorer.plugin.score(self._cycle, self._pod, node) for row in rows if (node := nodes[row]) is not None)
        return np.fromiter(found, np.int64, len(rows))

    def _normalise(self, k: int) -> None:
        """Scores that need no normalising are their own normal form: the two columns are then one."""
        scorer, raw = self.scorers[k], self._raw[k]
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

    def _sum(self) -> None:
        total = np.zeros(self._table.size, np.int64)
        for k, scorer in enumerate(self.scorers):
            total += self._normal[k] if scorer.weight == 1 else self._normal[k] * scorer.weight
        total[~self._was_feasible] = UNFIT
        self.total = total

    def breakdown(self, row: int) -> dict[str, int]:
        """Weighted, normalised scores of one node by plugin."""
        return {s.plugin.name: int(self._normal[k][row]) * s.weight for k, s in enumerate(self.scorers)}
