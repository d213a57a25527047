"""The score of nodes by their totals: keep them even, or fill them up. Where nothing is amplified and no NUMA nodes
are chosen this is all there is to it, so it is worked out for all rows at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from koord.policy.topology.score import MAX_SCORE, Scorer
from koord.scheduler.framework.plugin import Scores
from koord.scheduler.state.table import Bools, Ints, NodeTable, Rows

Floats = npt.NDArray[np.float64]

# As long as a hundredfold is exact as a float, cutting a quotient of floats gives what dividing whole numbers gives.
_EXACT = (1 << 53) // MAX_SCORE
_COLUMNS_KEPT = 32
_FEW = 64  # changed rows, up to which bringing a column up to date is cheaper than making it anew


class Totals:
    """As `Scorer.score` says of each node. What depends on nodes alone is kept, row by row, as floats."""

    def __init__(self, scorer: Scorer, table: NodeTable) -> None:
        self._scorer = scorer
        self._table = table
        self._known: dict[str, _Kept] = {}
        self._position = self._nodes_at = -1

    def _refresh(self) -> None:
        table = self._table
        position, nodes_at = table.position, table.node_changes.position
        if position == self._position:
            return
        changed = table.changed_since(self._position)
        if nodes_at != self._nodes_at or changed is None:
            self._known.clear()
        else:
            for kept in self._known.values():
                kept.follow(changed)
        self._position, self._nodes_at = position, nodes_at

    def scores(self, amounts: Mapping[str, int], rows: Rows) -> Scores:
        table, fills_up = self._table, self._scorer.fills_up
        total: Floats | None = None
        weights, missing = 0, []
        self._refresh()
        for name, weight in self._scorer.counted(amounts):
            kept = self._known.get(name)
            if kept is None or kept.size != table.size:
                kept = self._known[name] = _Kept(table, name)
            if kept.exact:
                share = kept.shares(rows, amounts.get(name, 0), fills_up=fills_up)
            else:
                there, taken = table.allocatable(name)[rows], table.requested(name)[rows]
                share = percent(self._scorer, there, taken, amounts.get(name, 0))
            if kept.absent is not None:
                missing.append((kept.absent[rows], weight))
            share = share if weight == 1 else share * weight  # what is kept must stay as it is
            total = share if total is None else total + share
            weights += weight
        if total is None:
            return np.zeros(len(table.alive[rows]), np.int64)
        if missing:
            present = np.full(len(total), weights, np.int64)
            for absent, weight in missing:
                present -= absent * weight
            return (total / np.maximum(present, 1)).astype(np.int64)
        return (total / weights).astype(np.int64)


class _Kept:
    """Of one resource. `exact`: all its amounts are, as floats. `absent`: rows without any of it, if there are such.

    Many pods ask for the same round amounts: the columns of the amounts asked for last are kept.
    """

    __slots__ = ("_allocatable", "_columns", "_left", "_requested", "_table", "_there", "absent", "exact", "size")

    def __init__(self, table: NodeTable, name: str) -> None:
        self._table = table
        self._columns: OrderedDict[int, tuple[int, Floats]] = OrderedDict()  # with the change up to which it holds
        there = self._allocatable = table.allocatable(name)
        self._requested = table.requested(name)
        self.size = table.size
        self.exact = int(there.max()) <= _EXACT
        self._there: Floats = np.maximum(there, 1).astype(np.float64)
        self._left: Floats = (there - self._requested).astype(np.float64) * MAX_SCORE
        self.absent: Bools | None = None if np.count_nonzero(there) == table.live else there == 0

    def follow(self, rows: Iterable[int]) -> None:
        for row in rows:
            self._left[row] = int(self._allocatable[row] - self._requested[row]) * MAX_SCORE

    def shares(self, rows: Rows, asked: int, *, fills_up: bool) -> Floats:
        """Not to be changed by who asks."""
        if not isinstance(rows, slice):
            return self._made(rows, asked, fills_up=fills_up)
        position, column = self._columns.pop(asked, (-1, None))
        changed = self._table.changed_since(position)
        if column is None or changed is None or len(changed) > _FEW:
            column = self._made(rows, asked, fills_up=fills_up)
        elif changed:
            some = np.asarray(changed, np.intp)
            column[some] = self._made(some, asked, fills_up=fills_up)
        self._columns[asked] = (self._table.position, column)
        if len(self._columns) > _COLUMNS_KEPT:
            self._columns.popitem(last=False)
        return column

    def _made(self, rows: Rows, asked: int, *, fills_up: bool) -> Floats:
        share: Floats = self._left[rows] - asked * MAX_SCORE
        np.maximum(share, 0, out=share)
        share /= self._there[rows]
        if fills_up:  # what is not left is taken; of nothing nothing is
            np.subtract(MAX_SCORE, np.ceil(share, out=share), out=share)
            if self.absent is not None:
                share[self.absent[rows]] = 0
            return share
        return np.floor(share, out=share)


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
