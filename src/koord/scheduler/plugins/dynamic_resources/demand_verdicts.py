"""Keep what nodes answer to the claims of equal pods: one search for all nodes whose devices have one pattern."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.framework.plugin import Codes, Scores
from koord.scheduler.plugins.dynamic_resources.allocator import AllocationRefusal, ClaimAllocation, preference_score
from koord.scheduler.plugins.dynamic_resources.claim_demand import MAX_ALTERNATIVES, ClaimDemand
from koord.scheduler.plugins.dynamic_resources.device_patterns import NO_DEVICES, DevicePatterns

Allocate = Callable[[Sequence[ClaimDemand], NodeInfo], tuple[ClaimAllocation, ...] | AllocationRefusal]
_UNKNOWN = -1
_FITS = 0


class DemandVerdicts:
    """The answers to these demands by pattern: 0 for devices, else the number of the refusal, from 1 on."""

    def __init__(
        self,
        demands: tuple[ClaimDemand, ...],
        patterns: DevicePatterns,
        table: NodeTable,
        allocate: Allocate,
        wide_version: Callable[[], int],
    ) -> None:
        """`wide_version` moves when devices that several nodes reach are taken or freed."""
        self.demands = demands
        self.refusals: list[AllocationRefusal] = []
        self._patterns = patterns
        self._table = table
        self._allocate = allocate
        self._wide_version = wide_version
        self._at: tuple[int, int] = (-1, -1)  # generation of the patterns, wide version
        self._answers: Codes = np.zeros(0, np.int32)
        self._scores: Scores = np.zeros(0, np.int64)

    def answers(self, rows: Rows) -> Codes:
        """Return the answer of each row."""
        patterns = self._sync()[rows]
        found = self._answers[patterns]
        missing = np.flatnonzero(found == _UNKNOWN)
        if not len(missing):
            return found
        unknown, places = np.unique(patterns[missing], return_index=True)
        at = missing[places] if isinstance(rows, slice) else rows[missing[places]]
        for pattern, row in zip(unknown.tolist(), at.tolist(), strict=True):
            self._ask(pattern, row)
        return self._answers[patterns]

    def scores(self, rows: Rows) -> Scores:
        """Return how good the alternatives are that each row gives; 0 where it gives no devices."""
        self.answers(rows)
        return self._scores[self._patterns.codes[rows]]

    def refusal(self, node: NodeInfo) -> AllocationRefusal | None:
        answer = self._answer(node.row)
        return self.refusals[answer - 1] if answer else None

    def score(self, node: NodeInfo) -> int:
        self._answer(node.row)
        return self._scores.item(self._patterns.codes.item(node.row))

    def error_answers(self) -> list[int]:
        """Return the answers that end the attempt at a pod."""
        return [i for i, refusal in enumerate(self.refusals, 1) if refusal.is_error]

    def _answer(self, row: int) -> int:
        pattern = self._sync().item(row)
        found = self._answers.item(pattern)
        return self._ask(pattern, row) if found == _UNKNOWN else found

    def _sync(self) -> npt.NDArray[np.intp]:
        """Forget answers that no longer hold; return the patterns of all rows."""
        patterns = self._patterns
        patterns.refresh()
        now = (patterns.generation, self._wide_version())
        if now[0] != self._at[0]:
            self._answers, self._scores = self._answers[:0], self._scores[:0]
        elif now[1] != self._at[1]:
            self._answers[np.flatnonzero(patterns.shared[: len(self._answers)])] = _UNKNOWN
        self._at = now
        known, wanted = len(self._answers), len(patterns.shared)
        if known < wanted:
            room = max(2 * known, wanted, 64)
            answers, scores = np.full(room, _UNKNOWN, np.int32), np.zeros(room, np.int64)
            answers[:known], scores[:known] = self._answers, self._scores
            answers[NO_DEVICES] = _FITS  # nobody reads what is said of a row without a node
            self._answers, self._scores = answers, scores
        return patterns.codes

    def _ask(self, pattern: int, row: int) -> int:
        node = self._table.nodes[row]
        assert node is not None
        found = self._allocate(self.demands, node)
        answer, score = _FITS, 0
        if isinstance(found, AllocationRefusal):
            if found not in self.refusals:
                self.refusals.append(found)
            answer = self.refusals.index(found) + 1
        else:
            score = preference_score(found, MAX_ALTERNATIVES)
        self._answers[pattern], self._scores[pattern] = answer, score
        return answer
