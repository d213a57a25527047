"""This module keeps the headroom and the free capacity of every node as columns, recomputed only for changed rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from koord.scheduler.cache.columns import grow_array
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import Ints, NodeTable, Rows
from koord.scheduler.framework.plugin import Codes, Scores
from koord.scheduler.plugins.load_aware.estimator import MAX_LOAD_SCORE, LoadScoreWeights, load_score

Floats = npt.NDArray[np.float64]

_NO_LIMIT = np.iinfo(np.int64).max
_NEVER_FREE = -1e300  # less than nothing, however little a pod adds
_EXACT_FLOAT_LIMIT = (1 << 53) // MAX_LOAD_SCORE

# (headroom by resource, None without a threshold; a code that does not depend on amounts; the first code)
RowHeadroom = tuple[Sequence[int | None], int, int]
# By place what there is and what is unused of it; None for a node whose load is not known.
RowFree = tuple[Sequence[int], Sequence[int]] | None


class _RowCache:
    """A column set whose rows follow the table's log of changes."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._position = -1

    def refresh(self) -> None:
        table = self._table
        rows = table.changed_since(self._position)
        self._position = table.position
        self._resize(table.size)
        nodes = table.nodes
        for row in range(table.size) if rows is None else rows:
            node = nodes[row]
            self._set_row(row, None if node is None or node.node is None else node)

    def _resize(self, size: int) -> None:
        raise NotImplementedError

    def _set_row(self, row: int, node: NodeInfo | None) -> None:
        raise NotImplementedError


class HeadroomColumns(_RowCache):
    """For prod or other pods: how much more of each resource may come to a node before it exceeds a threshold."""

    def __init__(self, table: NodeTable, width: int, headroom: Callable[[NodeInfo], RowHeadroom]) -> None:
        super().__init__(table)
        self._headroom_of = headroom
        self._nothing: RowHeadroom = ((None,) * width, 0, 0)
        self._headrooms: list[Ints] = [np.zeros(0, np.int64) for _ in range(width)]
        self._codes: list[Codes] = [np.zeros(0, np.int32) for _ in range(width)]  # the code of each
        self._fixed_codes: Codes = np.zeros(0, np.int32)

    def _resize(self, size: int) -> None:
        if len(self._fixed_codes) != size:
            self._headrooms = [grow_array(room, size) for room in self._headrooms]
            self._codes = [grow_array(words, size) for words in self._codes]
            self._fixed_codes = grow_array(self._fixed_codes, size)

    def _set_row(self, row: int, node: NodeInfo | None) -> None:
        rooms, self._fixed_codes[row], first = self._nothing if node is None else self._headroom_of(node)
        for place, room in enumerate(rooms):
            self._headrooms[place][row] = _NO_LIMIT if room is None else room
            self._codes[place][row] = first + place

    def codes(self, rows: Rows, adds: Sequence[int]) -> Codes:
        """Return the code of the first resource of which a pod adds as much as the headroom, or more."""
        self.refresh()
        codes = self._fixed_codes[rows].copy()
        for place in range(len(self._headrooms) - 1, -1, -1):
            full = self._headrooms[place][rows] <= adds[place]
            if full.any():
                np.copyto(codes, self._codes[place][rows], where=full)
        return codes


class FreeColumns(_RowCache):
    """For prod or other pods: the unused amount of each resource.

    Shares are quotients of floats, which takes a fraction of the time of integers. As long as a hundredfold of
    the total is exact as a float, the quotient is nearer to the true one than to any integer that the true one
    does not reach, so truncating it gives the same. Rows with larger totals are computed one by one.
    """

    def __init__(self, table: NodeTable, width: int, free: Callable[[NodeInfo], RowFree]) -> None:
        super().__init__(table)
        self._free_of = free
        self._total: list[Floats] = [np.zeros(0) for _ in range(width)]
        self._free_hundredfold: list[Floats] = [np.zeros(0) for _ in range(width)]  # a hundredfold
        self._inexact_rows: dict[int, tuple[Sequence[int], Sequence[int]]] = {}

    def _resize(self, size: int) -> None:
        if len(self._total[0]) != size:
            self._total = [grow_array(total, size) for total in self._total]
            self._free_hundredfold = [grow_array(free, size) for free in self._free_hundredfold]

    def _set_row(self, row: int, node: NodeInfo | None) -> None:
        found = None if node is None else self._free_of(node)
        if self._inexact_rows:
            self._inexact_rows.pop(row, None)
        if found is None:
            for place, free in enumerate(self._free_hundredfold):
                self._total[place][row] = 1
                free[row] = _NEVER_FREE
            return
        for place, (total, spare) in enumerate(zip(*found, strict=True)):
            self._total[place][row] = total or 1
            self._free_hundredfold[place][row] = (
                spare * MAX_LOAD_SCORE if total else _NEVER_FREE
            )  # nothing of what the node lacks
            if total > _EXACT_FLOAT_LIMIT:
                self._inexact_rows[row] = found

    def scores(self, rows: Rows, adds: Sequence[int], weights: LoadScoreWeights) -> Scores:
        self.refresh()
        summed: Floats | None = None
        least: Floats | None = None
        for place, weight in enumerate(weights.by_resource):
            if not weight and not weights.dominant:
                continue
            share = self._free_hundredfold[place][rows] - adds[place] * MAX_LOAD_SCORE
            share /= self._total[place][rows]
            np.floor(share, out=share)
            np.maximum(share, 0, out=share)
            if weights.dominant:
                least = np.minimum(MAX_LOAD_SCORE if least is None else least, share)
            if weight:
                part = share if weight == 1 else share * weight
                summed = part if summed is None else summed + part
        if least is not None:
            least *= weights.dominant
            summed = least if summed is None else summed + least
        if summed is None:
            return np.zeros(len(self._total[0][rows]), np.int64)
        summed /= weights.total  # both are small whole numbers: cutting the quotient is exact
        scores = summed.astype(np.int64)
        if self._inexact_rows:
            self._score_inexact_rows(scores, rows, adds, weights)
        return scores

    def _score_inexact_rows(self, scores: Scores, rows: Rows, adds: Sequence[int], weights: LoadScoreWeights) -> None:
        for row, (total, spare) in self._inexact_rows.items():
            scores[row if isinstance(rows, slice) else rows == row] = _exact(total, spare, adds, weights)


def _exact(total: Sequence[int], spare: Sequence[int], adds: Sequence[int], weights: LoadScoreWeights) -> int:
    used = [there - left for there, left in zip(total, spare, strict=True)]
    return load_score(weights, total, used, (0,) * len(used), adds)
