"""What the ledger says of every node as columns, worked out again only for rows that changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from koord.policy.load.score import MAX_SCORE, Weights
from koord.scheduler.framework.plugin import Codes, Scores
from koord.scheduler.state.column import grown
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.table import Ints, NodeTable, Rows

_NO_LIMIT = np.iinfo(np.int64).max
_NOTHING = -(1 << 62)
# Up to this total a hundredfold of it is exact as a float, and the quotient is nearer to the true one than any integer
# that the true one is not. Dividing floats takes a fraction of the time.
_EXACT = (1 << 53) // MAX_SCORE

# (by place the room below the ceiling, None without one; code for which no amount matters; what codes begin at)
Standing = tuple[Sequence[int | None], int, int]
# By place what there is and what is unused of it; None for a node whose load is not known.
Free = tuple[Sequence[int], Sequence[int]] | None


class _Kept:
    """Rows follow the table's log of changes."""

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
    """For one sort of pods: how much more of each resource may come to a node before it passes a ceiling."""

    def __init__(self, table: NodeTable, width: int, standing: Callable[[NodeInfo], Standing]) -> None:
        super().__init__(table)
        self._standing = standing
        self._nothing: Standing = ((None,) * width, 0, 0)
        self._rooms: list[Ints] = [np.zeros(0, np.int64) for _ in range(width)]
        self._fixed: Codes = np.zeros(0, np.int32)
        self._first: Codes = np.zeros(0, np.int32)

    def _size(self, size: int) -> None:
        if len(self._fixed) != size:
            self._rooms = [grown(room, size) for room in self._rooms]
            self._fixed = grown(self._fixed, size)
            self._first = grown(self._first, size)

    def _set(self, row: int, node: NodeInfo | None) -> None:
        rooms, fixed, first = self._nothing if node is None else self._standing(node)
        self._fixed[row], self._first[row] = fixed, first
        for column, room in zip(self._rooms, rooms, strict=True):
            column[row] = _NO_LIMIT if room is None else room

    def codes(self, rows: Rows, adds: tuple[int, ...]) -> Codes:
        """The first resource of which a pod adds as much as there is room, or more."""
        self.refresh()
        codes = self._fixed[rows].copy()
        for place in range(len(self._rooms) - 1, -1, -1):
            full = self._rooms[place][rows] <= adds[place]
            if full.any():
                codes[full] = self._first[rows][full] + place
        return codes


class Spares(_Kept):
    """For one sort of pods: what is unused of each resource."""

    def __init__(self, table: NodeTable, width: int, free: Callable[[NodeInfo], Free]) -> None:
        super().__init__(table)
        self._free_of = free
        self._total: list[Ints] = [np.zeros(0, np.int64) for _ in range(width)]
        self._free: list[Ints] = [np.zeros(0, np.int64) for _ in range(width)]
        self._huge = False  # some total is so large that quotients of floats would not be exact

    def _size(self, size: int) -> None:
        if len(self._total[0]) != size:
            self._total = [grown(total, size) for total in self._total]
            self._free = [grown(free, size) for free in self._free]

    def _set(self, row: int, node: NodeInfo | None) -> None:
        found = None if node is None else self._free_of(node)
        for place in range(len(self._total)):
            total = 0 if found is None else found[0][place]
            self._total[place][row] = total or 1
            # Less than nothing, however little a pod adds: of a resource that the node lacks, or whose use is unknown.
            self._free[place][row] = found[1][place] if found is not None and total else _NOTHING
            self._huge = self._huge or total > _EXACT

    def scores(self, rows: Rows, adds: tuple[int, ...], weights: Weights) -> Scores:
        self.refresh()
        over = weights.total
        if not over:
            return np.zeros(len(self._total[0][rows]), np.int64)
        summed: npt.NDArray[Any] | None = None
        least: npt.NDArray[Any] | None = None
        for place, weight in enumerate(weights.by_resource):
            if not weight and not weights.dominant:
                continue
            free = self._free[place][rows] - adds[place]
            np.maximum(free, 0, out=free)
            free *= MAX_SCORE
            total = self._total[place][rows]
            share = free // total if self._huge else np.floor(free / total)
            if weights.dominant:
                least = np.minimum(MAX_SCORE if least is None else least, share)
            if weight:
                part = share if weight == 1 else share * weight
                summed = part if summed is None else summed + part
        if least is not None:
            summed = least * weights.dominant if summed is None else summed + least * weights.dominant
        assert summed is not None
        return summed.astype(np.int64) // over
