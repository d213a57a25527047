"""The score of nodes by their totals: keep them even, or fill them up. Where nothing is amplified and no NUMA nodes
are chosen this is all there is to it, so it is worked out for all rows at once."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from koord.policy.topology.score import MAX_SCORE, Scorer
from koord.scheduler.framework.plugin import Scores
from koord.scheduler.state.table import Bools, Ints, NodeTable, Rows

Floats = npt.NDArray[np.float64]

# As long as a hundredfold is exact as a float, cutting a quotient of floats gives what dividing whole numbers gives.
_EXACT = (1 << 53) // MAX_SCORE


class Totals:
    """As `Scorer.score` says of each node."""

    def __init__(self, scorer: Scorer, table: NodeTable) -> None:
        self._scorer = scorer
        self._table = table
        self._position = -1
        self._there: dict[str, _There] = {}

    def scores(self, amounts: Mapping[str, int], rows: Rows) -> Scores:
        table, fills_up = self._table, self._scorer.fills_up
        total: Floats | None = None
        weights, missing = 0, []
        for name, weight in self._scorer.counted(amounts):
            there = self._known(name)
            taken, asked = table.requested(name)[rows], amounts.get(name, 0)
            if fills_up:
                part = np.minimum(taken + asked, there.amounts[rows])
            else:
                part = there.amounts[rows] - taken
                part -= asked
                np.maximum(part, 0, out=part)
            share = _percent(part, there.divisor[rows])
            if there.absent is not None:
                missing.append((there.absent[rows], weight))
            if weight != 1:
                share *= weight
            total = share if total is None else np.add(total, share, out=total)
            weights += weight
        if total is None:
            return np.zeros(len(table.alive[rows]), np.int64)
        if missing:
            present = np.full(len(total), weights, np.int64)
            for absent, weight in missing:
                present -= absent * weight
            total /= np.maximum(present, 1)
        else:
            total /= weights
        return total.astype(np.int64)

    def _known(self, name: str) -> _There:
        """What nodes have changes seldom."""
        table = self._table
        if self._position != table.node_changes.position:
            self._position = table.node_changes.position
            self._there.clear()
        known = self._there.get(name)
        if known is None or len(known.amounts) != table.size:
            known = self._there[name] = _There(table, name)
        return known


class _There:
    __slots__ = ("absent", "amounts", "divisor")

    def __init__(self, table: NodeTable, name: str) -> None:
        self.amounts: Ints = table.allocatable(name)
        self.divisor = _divisor(self.amounts)
        everywhere = np.count_nonzero(self.amounts) == table.live
        self.absent: Bools | None = None if everywhere else self.amounts == 0


def percent(scorer: Scorer, there: Ints, taken: Ints, asked: int) -> Floats:
    """In percent, cut to whole ones; nothing where there is none of it."""
    part = np.minimum(taken + asked, there) if scorer.fills_up else np.maximum(there - taken - asked, 0)
    return _percent(part, _divisor(there))


def _divisor(there: Ints) -> Ints | Floats:
    """As floats, which take a fraction of the time, where these are exact."""
    divisor: Ints = np.maximum(there, 1)
    return divisor.astype(np.float64) if not there.size or int(there.max()) <= _EXACT else divisor


def _percent(part: Ints, divisor: Ints | Floats) -> Floats:
    """Changes `part`."""
    part *= MAX_SCORE
    if divisor.dtype != np.float64:
        return (part // divisor).astype(np.float64)
    share: Floats = part / divisor
    return np.floor(share, out=share)
