"""This module keeps the utilization of all nodes as columns that the scoring plugins share.

What one plugin has computed for a pod the next one finds. What depends on nodes alone is kept as floats and
updated row by row.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from koord.api.resource_name import CPU, MEMORY
from koord.scheduler.framework.plugin import MAX_SCORE, Scores
from koord.scheduler.plugins.allocation import Share
from koord.scheduler.state.table import Bools, Ints, NodeTable, Rows

Floats = npt.NDArray[np.float64]
K = TypeVar("K", bound=Hashable)

# As long as a hundredfold is exact as a float, cutting a quotient of floats gives what dividing whole numbers gives:
# the next whole number is at least 1/capacity away, and a quotient below 101 is off by less than 101 / 2^53.
EXACT = (1 << 53) // (MAX_SCORE + 1)
_COLUMNS_KEPT = 32
_FEW = 64  # changed rows, up to which bringing a column up to date is cheaper than making it anew
_MEANS_KEPT = 4
_NONZERO = (CPU, MEMORY)  # counted with a default where containers state nothing

Key = tuple[bool, tuple[tuple[str, bool, int, int], ...]]


class Fullness:
    """The utilization columns of one node table; get them with `table.derived(UtilizationColumns)`."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._known: dict[tuple[str, bool], _Resource] = {}
        self._position = self._nodes_at = -1
        self._means: OrderedDict[Key, Scores] = OrderedDict()  # of all rows, at this position

    def _refresh(self) -> None:
        table = self._table
        position, nodes_at = table.position, table.node_changes.position
        if position == self._position:
            return
        self._means.clear()
        changed = table.changed_since(self._position)
        if nodes_at != self._nodes_at or changed is None:
            self._known.clear()
        else:
            for known in self._known.values():
                known.follow(changed)
        self._position, self._nodes_at = position, nodes_at

    def resource(self, share: Share) -> _Resource:
        self._refresh()
        key = (share.name, share.nonzero)
        known = self._known.get(key)
        if known is None or known.size != self._table.size:
            known = self._known[key] = _Resource(self._table, share.name, nonzero=share.nonzero)
        return known

    def mean(self, counted: Sequence[Share], rows: Rows, *, fills_up: bool) -> Scores:
        """Return the weighted mean percentage that is free (or used, with `fills_up`) of the resources that each row
        has.
        """
        if not isinstance(rows, slice):
            return self._mean(counted, rows, fills_up=fills_up)
        self._refresh()
        means = self._means
        key = (fills_up, tuple((s.name, s.nonzero, s.request, s.weight) for s in counted))
        found = means.get(key)
        if found is None:
            found = self._beside(key, counted)
            if found is None:
                found = self._mean(counted, rows, fills_up=fills_up)
            means[key] = found
            if len(means) > _MEANS_KEPT:
                means.popitem(last=False)
        return found.copy()

    def _beside(self, key: Key, counted: Sequence[Share]) -> Scores | None:
        """Derive the mean from the one that counts unstated requests the other way, if that is known.

        The two differ only on nodes with pods that state no request, which are few: only those rows are computed
        again.
        """
        fills_up, parts = key
        other = self._means.get((fills_up, tuple((n, not z and n in _NONZERO, r, w) for n, z, r, w in parts)))
        unstated = self._table.unstated
        if other is None or 4 * len(unstated) > self._table.size:
            return None
        if not unstated:
            return other
        rows = np.fromiter(unstated, np.intp, len(unstated))
        found = other.copy()
        found[rows] = self._mean(counted, rows, fills_up=fills_up)
        return found

    def _mean(self, counted: Sequence[Share], rows: Rows, *, fills_up: bool) -> Scores:
        total: Floats | None = None
        weights, missing = 0, []
        for share in counted:
            known = self.resource(share)
            percent = known.percent(rows, share.request, fills_up=fills_up)
            if known.absent is not None:
                missing.append((known.absent[rows], share.weight))
            percent = percent if share.weight == 1 else percent * share.weight  # what is kept must stay as it is
            total = percent if total is None else total + percent
            weights += share.weight
        if total is None or not weights:
            return np.zeros(len(self._table.alive[rows]), np.int64)
        if missing:
            present = np.full(len(total), weights, np.int64)
            for absent, weight in missing:
                present -= absent * weight
            return (total / np.maximum(present, 1)).astype(np.int64)
        return (total / weights).astype(np.int64)


class _Resource:
    """The columns of one resource, with the percent and fraction columns of the last requested amounts.

    `exact`: all its amounts are exact as floats. `absent`: the rows without any of it, None when there are
    none. Many pods request the same round amounts, so the columns of the amounts requested last are kept.
    """

    __slots__ = (
        "_allocatable",
        "_columns",
        "_fractions",
        "_left",
        "_table",
        "_taken",
        "_there",
        "_used",
        "absent",
        "exact",
        "size",
    )

    def __init__(self, table: NodeTable, name: str, *, nonzero: bool) -> None:
        self._table = table
        self._columns: OrderedDict[tuple[int, bool], tuple[int, Floats]] = OrderedDict()  # with what it holds up to
        self._fractions: OrderedDict[int, tuple[int, Floats]] = OrderedDict()
        there = self._allocatable = table.allocatable(name)
        if nonzero:
            self._used: Ints = table.nonzero_cpu if name == CPU else table.nonzero_memory
        else:
            self._used = table.requested(name)
        self.size = table.size
        self.exact = not there.size or int(there.max()) <= EXACT
        self._there: Floats = np.maximum(there, 1).astype(np.float64)
        self._taken: Floats = self._used.astype(np.float64)
        self._left: Floats = (there - self._used).astype(np.float64) * MAX_SCORE
        self.absent: Bools | None = None if np.count_nonzero(there) == table.live else there == 0

    def follow(self, rows: Iterable[int]) -> None:
        for row in rows:
            used = self._used[row]
            self._taken[row] = used
            self._left[row] = int(self._allocatable[row] - used) * MAX_SCORE

    def percent(self, rows: Rows, asked: int, *, fills_up: bool) -> Floats:
        """Return the percentage truncated to integers, 0 where a row has none of it. The caller must not change the
        result.
        """
        if not self.exact:
            return self._whole(rows, asked, fills_up=fills_up)
        if not isinstance(rows, slice):
            return self._percent(rows, asked, fills_up=fills_up)
        key = (asked, fills_up)
        column, stale = self._kept(self._columns.pop(key, None))
        if column is None:
            column = self._percent(rows, asked, fills_up=fills_up)
        elif len(stale):
            column[stale] = self._percent(stale, asked, fills_up=fills_up)
        self._keep(self._columns, key, column)
        return column

    def fraction(self, rows: Rows, asked: int) -> Floats:
        """Return what would be used as a fraction of capacity, at most 1. The caller must not change the result."""
        if not isinstance(rows, slice):
            return self._fraction(rows, asked)
        column, stale = self._kept(self._fractions.pop(asked, None))
        if column is None:
            column = self._fraction(rows, asked)
        elif len(stale):
            column[stale] = self._fraction(stale, asked)
        self._keep(self._fractions, asked, column)
        return column

    def _kept(self, known: tuple[int, Floats] | None) -> tuple[Floats | None, npt.NDArray[np.intp]]:
        changed = self._table.changed_since(known[0]) if known is not None else None
        if known is None or changed is None or len(changed) > _FEW:
            return None, np.zeros(0, np.intp)
        return known[1], np.asarray(changed, np.intp)

    def _keep(self, among: OrderedDict[K, tuple[int, Floats]], key: K, column: Floats) -> None:
        among[key] = (self._table.position, column)
        if len(among) > _COLUMNS_KEPT:
            among.popitem(last=False)

    def _percent(self, rows: Rows, asked: int, *, fills_up: bool) -> Floats:
        share: Floats = self._left[rows] - asked * MAX_SCORE
        np.maximum(share, 0, out=share)
        share /= self._there[rows]
        if fills_up:  # what is not left is taken; of nothing nothing is
            np.subtract(MAX_SCORE, np.ceil(share, out=share), out=share)
            if self.absent is not None:
                share[self.absent[rows]] = 0
            return share
        return np.floor(share, out=share)

    def _whole(self, rows: Rows, asked: int, *, fills_up: bool) -> Floats:
        """Compute the percentage with integers, where floats would not be exact."""
        there, used = self._allocatable[rows], self._used[rows] + asked
        part = np.minimum(used, there) if fills_up else np.maximum(there - used, 0)
        return (part * MAX_SCORE // np.maximum(there, 1)).astype(np.float64)

    def _fraction(self, rows: Rows, asked: int) -> Floats:
        if self.exact:
            taken: Floats = self._taken[rows] + asked
            taken /= self._there[rows]
        else:
            taken = (self._used[rows] + asked) / np.maximum(self._allocatable[rows], 1)
        return np.minimum(taken, 1.0, out=taken)
