"""This module keeps the headroom and the free capacity of every node as columns, recomputed only for changed
rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from koord.policy.load.score import MAX_SCORE, Weights, score
from koord.scheduler.framework.plugin import Codes, Scores
from koord.scheduler.state.column import grown
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.table import Ints, NodeTable, Rows

Floats = npt.NDArray[np.float64]

_NO_LIMIT = np.iinfo(np.int64).max
_NOTHING = -1e300  # less than nothing, however little a pod adds
_EXACT = (1 << 53) // MAX_SCORE

# (headroom by resource, None without a threshold; a code that does not depend on amounts; the first code)
Standing = tuple[Sequence[int | None], int, int]
# By place what there is and what is unused of it; None for a node whose load is not known.
Free = tuple[Sequence[int], Sequence[int]] | None


class _Kept:
    """A column set whose rows follow the table's log of changes."""

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._position = -1

    def refresh(self) -> None:
        table = self._table
        rows = table.changed_since(self._position)
        self._position = table.position
        self._size(table.size)
        nodes = table.nodes
        for row in range(table.size) if rows is None else rows:
            node = nodes[row]
            self._set(row, None if node is None or node.node is None else node)

    def _size(self, size: int) -> None:
        raise NotImplementedError

    def _set(self, row: int, node: NodeInfo | None) -> None:
        raise NotImplementedError


class Rooms(_Kept):
    """For prod or other pods: how much more of each resource may come to a node before it exceeds a threshold."""

    def __init__(self, table: NodeTable, width: int, standing: Callable[[NodeInfo], Standing]) -> None:
        super().__init__(table)
        self._standing = standing
        self._nothing: Standing = ((None,) * width, 0, 0)
        self._rooms: list[Ints] = [np.zeros(0, np.int64) for _ in range(width)]
        self._words: list[Codes] = [np.zeros(0, np.int32) for _ in range(width)]  # the code of each
        self._fixed: Codes = np.zeros(0, np.int32)

    def _size(self, size: int) -> None:
        if len(self._fixed) != size:
            self._rooms = [grown(room, size) for room in self._rooms]
            self._words = [grown(words, size) for words in self._words]
            self._fixed = grown(self._fixed, size)

    def _set(self, row: int, node: NodeInfo | None) -> None:
        rooms, self._fixed[row], first = self._nothing if node is None else self._standing(node)
        for place, room in enumerate(rooms):
            self._rooms[place][row] = _NO_LIMIT if room is None else room
            self._words[place][row] = first + place

    def codes(self, rows: Rows, adds: Sequence[int]) -> Codes:
        """Return the code of the first resource of which a pod adds as much as the headroom, or more."""
        self.refresh()
        codes = self._fixed[rows].copy()
        for place in range(len(self._rooms) - 1, -1, -1):
            full = self._rooms[place][rows] <= adds[place]
            if full.any():
                np.copyto(codes, self._words[place][rows], where=full)
        return codes


class Spares(_Kept):
    """For prod or other pods: the unused amount of each resource.

    Shares are quotients of floats, which takes a fraction of the time of integers. As long as a hundredfold of
    the total is exact as a float, the quotient is nearer to the true one than to any integer that the true one
    does not reach, so truncating it gives the same. Rows with larger totals are computed one by one.
    """

    def __init__(self, table: NodeTable, width: int, free: Callable[[NodeInfo], Free]) -> None:
        super().__init__(table)
        self._free_of = free
        self._total: list[Floats] = [np.zeros(0) for _ in range(width)]
        self._free: list[Floats] = [np.zeros(0) for _ in range(width)]  # a hundredfold
        self._huge: dict[int, tuple[Sequence[int], Sequence[int]]] = {}

    def _size(self, size: int) -> None:
        if len(self._total[0]) != size:
            self._total = [grown(total, size) for total in self._total]
            self._free = [grown(free, size) for free in self._free]

    def _set(self, row: int, node: NodeInfo | None) -> None:
        found = None if node is None else self._free_of(node)
        if self._huge:
            self._huge.pop(row, None)
        if found is None:
            for place, free in enumerate(self._free):
                self._total[place][row] = 1
                free[row] = _NOTHING
            return
        for place, (total, spare) in enumerate(zip(*found, strict=True)):
            self._total[place][row] = total or 1
            self._free[place][row] = spare * MAX_SCORE if total else _NOTHING  # nothing of what the node lacks
            if total > _EXACT:
                self._huge[row] = found

    def scores(self, rows: Rows, adds: Sequence[int], weights: Weights) -> Scores:
        self.refresh()
        summed: Floats | None = None
        least: Floats | None = None
        for place, weight in enumerate(weights.by_resource):
            if not weight and not weights.dominant:
                continue
            share = self._free[place][rows] - adds[place] * MAX_SCORE
            share /= self._total[place][rows]
            np.floor(share, out=share)
            np.maximum(share, 0, out=share)
            if weights.dominant:
                least = np.minimum(MAX_SCORE if least is None else least, share)
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
        if self._huge:
            self._correct(scores, rows, adds, weights)
        return scores

    def _correct(self, scores: Scores, rows: Rows, adds: Sequence[int], weights: Weights) -> None:
        for row, (total, spare) in self._huge.items():
            scores[row if isinstance(rows, slice) else rows == row] = _exact(total, spare, adds, weights)


def _exact(total: Sequence[int], spare: Sequence[int], adds: Sequence[int], weights: Weights) -> int:
    used = [there - left for there, left in zip(total, spare, strict=True)]
    return score(weights, total, used, (0,) * len(used), adds)
