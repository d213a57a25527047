"""The domain of each node for the topology keys of one class of pods: a copy of what node labels said."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from koord.scheduler.state.table import NodeTable

Ids = npt.NDArray[np.intp]  # per row: the number of its domain; 0 where the node lacks the label

# After more node changes than this the copies are made anew rather than compared row by row.
_FEW = 16


class Places:
    """`domains` and `sizes` by topology key."""

    __slots__ = ("_keys", "_position", "_size", "_table", "domains", "sizes")

    def __init__(self, table: NodeTable, keys: Iterable[str]) -> None:
        self._table = table
        self._keys = tuple(dict.fromkeys(keys))
        self.domains: dict[str, Ids] = {}
        self.sizes: dict[str, int] = {}
        self._position = -1
        self._size = 0
        self._copy()

    def moved(self) -> bool:
        """Whether anything differs from before; it is up to date afterwards."""
        changes = self._table.node_changes
        same_size = self._size == self._table.size
        if changes.position == self._position and same_size:
            return False
        rows = changes.since(self._position)
        if rows is not None and len(rows) <= _FEW and same_size and self._same(rows):
            self._position = changes.position
            return False
        self._copy()
        return True

    def _same(self, rows: list[int]) -> bool:
        for key in self._keys:
            label, ids = self._table.label(key), self.domains[key]
            if len(label.words) != self.sizes[key] or any(label.codes[row] != ids[row] for row in rows):
                return False
        return True

    def _copy(self) -> None:
        for key in self._keys:
            self.learn(key)
        self._position = self._table.node_changes.position
        self._size = self._table.size

    def learn(self, key: str) -> None:
        """Know one more key; a what-if may bring terms that nobody held before."""
        label = self._table.label(key)
        self.domains[key] = label.codes.astype(np.intp)
        self.sizes[key] = len(label.words)

    def copy(self) -> Places:
        other = object.__new__(Places)
        other._table, other._keys, other._position, other._size = self._table, self._keys, self._position, self._size
        other.domains = dict(self.domains)
        other.sizes = dict(self.sizes)
        return other
