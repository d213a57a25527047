"""This module scores the ScheduleAnyway constraints of one class of pods: fewer pods in a node's domains are
better.

    raw(node) = round( sum over constraints of  pods in the node's domain * ln(domains + 2) + maxSkew - 1 )

The logarithm gives few large domains and many small ones a comparable weight; maxSkew - 1 dampens small
differences.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Final

import numpy as np
import numpy.typing as npt

from koord.scheduler.cache.cluster_state import TopologyDomainIndex
from koord.scheduler.cache.node_table import Bools, NodeTable, RowList, Rows
from koord.scheduler.cache.pod_info import PodShape
from koord.scheduler.cache.selector_counts import SelectorCounts
from koord.scheduler.framework.plugin import MAX_SCORE, ScoreNormaliser, Scores
from koord.scheduler.plugins.pod_topology_spread.constraint import PodSpread
from koord.scheduler.plugins.pod_topology_spread.filter import CountedNodes, DomainCounts

Floats = npt.NDArray[np.floating]

_MAX_INT64 = np.iinfo(np.int64).max
IGNORED: Final = -1  # the raw score of a node that lacks a topology key


class SpreadScoreState:
    """All ScheduleAnyway constraints of one class. `version` changes when a score may have changed."""

    def __init__(
        self, spread: PodSpread, shape: PodShape, table: NodeTable, atlas: TopologyDomainIndex, tallies: SelectorCounts
    ) -> None:
        self.spread = spread
        self.version = 0
        self._table = table
        self._tallies = tallies
        self._counts_seen = -1
        self._counted_nodes = CountedNodes(table, atlas, shape, spread.soft, needs_all_keys=spread.needs_all_keys)
        self._counts = [DomainCounts(c, spread.namespace, tallies) for c in spread.soft]
        self._weighted_for: RowList | None = None  # the nodes that the weights are for
        self._weights: list[float] = [0.0 for _ in spread.soft]
        # Rows without some topology key, and without that of each constraint; None when there are none.
        self._ignored: Bools | None = None
        self._missing_key: list[Bools | None] = []
        self._recount()

    def _recount(self) -> None:
        counted_nodes = self._counted_nodes
        for i, count in enumerate(self._counts):
            count.recount(counted_nodes.domains[i], counted_nodes.counted[i])
        self._ignored = (
            _none_if_empty(counted_nodes.alive & ~counted_nodes.has_all_keys) if self.spread.needs_all_keys else None
        )
        self._missing_key = [_none_if_empty(counted_nodes.alive & (count.domains == 0)) for count in self._counts]
        self.version += 1
        self._counts_seen = self._tallies.version
        self._weighted_for = None

    def refresh(self) -> None:
        if self._counted_nodes.refresh():
            self._recount()
        elif self._counts_seen != self._tallies.version:
            self._counts_seen = self._tallies.version
            for count in self._counts:
                before = count.position
                news = count.read_changes()
                if news is None:
                    self._recount()
                    return
                for domain, by in news:
                    count.counts[domain] += by
                self.version += count.position != before

    def update_weights(self, feasible: RowList) -> None:
        """Compute the weights of the constraints among these feasible nodes."""
        if self._weighted_for is not None and np.array_equal(feasible, self._weighted_for):
            return
        self._weighted_for = feasible
        if self._ignored is not None:
            feasible = feasible[~self._ignored[feasible]]
        for i, count in enumerate(self._counts):
            if count.by_host:
                size = len(feasible)
            else:
                seen = np.zeros(len(count.counts), np.bool_)
                seen[count.domains[feasible]] = True
                size = int(np.count_nonzero(seen))
            self._weights[i] = math.log(size + 2)

    def score(self, row: int) -> int:
        if self._ignored is not None and self._ignored[row]:
            return IGNORED
        total = 0.0
        for i, count in enumerate(self._counts):
            domain = int(count.domains[row])
            if domain:
                pods = count.pods_per_row(row + 1)[row] if count.by_host else count.counts[domain]
                total += float(pods) * self._weights[i] + float(count.constraint.max_skew - 1)
        return round(total)

    def scores(self, rows: Rows) -> Scores:
        total: Floats | None = None
        for i, count in enumerate(self._counts):
            more = float(count.constraint.max_skew - 1)
            if count.by_host:
                mine: Floats = count.pods_per_row(self._table.size)[rows] * self._weights[i]
                mine += more
                if (lacking := self._missing_key[i]) is not None:
                    mine[lacking[rows]] = 0.0
            else:
                by_domain = count.counts * self._weights[i] + more
                by_domain[0] = 0.0
                mine = by_domain.take(count.domains[rows])
            if total is None:
                total = mine
            else:
                total += mine
        assert total is not None
        raw = np.rint(total, out=total).astype(np.int64)
        if self._ignored is not None:
            raw[self._ignored[rows]] = IGNORED
        return raw


def _none_if_empty(mask: Bools) -> Bools | None:
    return mask if mask.any() else None


class SpreadScoreNormaliser(ScoreNormaliser):
    """Gives the fewest pods the highest score, and a node that cannot be compared 0."""

    def span(self, raw: Scores, mask: npt.NDArray[np.bool_]) -> Hashable:
        low = int(np.min(raw, where=mask, initial=_MAX_INT64))
        high = int(np.max(raw, where=mask, initial=0))
        if low != IGNORED:
            return min(low, high), high, False
        return int(np.min(raw, where=mask & (raw != IGNORED), initial=high)), high, True

    def apply(self, raw: Scores, span: Hashable) -> Scores:
        assert isinstance(span, tuple)
        low, high, some_ignored = span
        if high == 0:
            normal = np.full(len(raw), MAX_SCORE, np.int64)
        else:
            normal = (high + low) - raw
            normal *= MAX_SCORE
            normal //= high
        if some_ignored:
            normal[raw == IGNORED] = 0
        return normal
