"""Nodes as rows of NumPy columns, and the log of which rows changed.

The table mirrors what NodeInfo holds exactly; columnar forms of plugins read it, and whoever keeps a result per row
asks `changed_since` which rows to look at again. Plugins add columns of their own with `column`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from koord.scheduler.state.node import NodeInfo

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
RowList = npt.NDArray[np.intp]
# Rows of the table to work on: some of them, or `EVERY` one, which reads columns without copying them. Rows without a
# node are zeros everywhere; what is worked out for them is thrown away, but must not raise.
Rows = RowList | slice
EVERY: Final = slice(None)
Compute = Callable[[NodeInfo], Any]

_FIRST_ROWS = 64
_LOG_LIMIT = 1 << 16


class Column:
    """A value per row that is worked out again only for rows that changed."""

    __slots__ = ("_compute", "_position", "values")

    def __init__(self, values: npt.NDArray[Any], compute: Compute) -> None:
        self.values = values
        self._compute = compute
        self._position = -1

    def refresh(self, table: NodeTable) -> None:
        rows = table.changed_since(self._position)
        self._position = table.position
        for row in table.live_rows() if rows is None else rows:
            node = table.nodes[row]
            if node is not None:
                self.values[row] = self._compute(node)

    def grow(self, size: int) -> None:
        self.values = _grown(self.values, size)


class NodeTable:
    def __init__(self) -> None:
        self.nodes: list[NodeInfo | None] = [None] * _FIRST_ROWS
        self.index: dict[str, NodeInfo] = {}
        self._free = list(range(_FIRST_ROWS - 1, -1, -1))
        self.alive: Bools = np.zeros(_FIRST_ROWS, np.bool_)  # a known node, not only a name that pods are bound to
        self.pod_count: Ints = np.zeros(_FIRST_ROWS, np.int64)
        self.allowed_pods: Ints = np.zeros(_FIRST_ROWS, np.int64)
        self.nonzero_cpu: Ints = np.zeros(_FIRST_ROWS, np.int64)
        self.nonzero_memory: Ints = np.zeros(_FIRST_ROWS, np.int64)
        self._allocatable: dict[str, Ints] = {}
        self._requested: dict[str, Ints] = {}
        self._columns: dict[Hashable, Column] = {}
        self._log: list[int] = []
        self._log_start = 0
        self.layout = 0  # moves when rows come, go or grow: results per row must then be made anew

    # Rows --------------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return len(self.nodes)

    def live_rows(self) -> RowList:
        return np.flatnonzero(self.alive)

    def row_of(self, name: str) -> NodeInfo:
        """The node of that name, in a new row if need be."""
        known = self.index.get(name)
        if known is not None:
            return known
        if not self._free:
            self._grow()
        node = NodeInfo(name, self._free.pop())
        self.nodes[node.row] = node
        self.index[name] = node
        self.layout += 1
        return node

    def drop(self, node: NodeInfo) -> None:
        """Free the row; nothing may be bound to the node any more."""
        del self.index[node.name]
        self.nodes[node.row] = None
        self._free.append(node.row)
        for values in (self.alive, self.pod_count, self.allowed_pods, self.nonzero_cpu, self.nonzero_memory):
            values[node.row] = 0
        for by_name in (self._allocatable, self._requested):
            for column in by_name.values():
                column[node.row] = 0
        self.layout += 1

    def _grow(self) -> None:
        old, new = self.size, self.size * 2
        self.nodes += [None] * (new - old)
        self._free = list(range(new - 1, old - 1, -1))
        self.alive = _grown(self.alive, new)
        self.pod_count = _grown(self.pod_count, new)
        self.allowed_pods = _grown(self.allowed_pods, new)
        self.nonzero_cpu = _grown(self.nonzero_cpu, new)
        self.nonzero_memory = _grown(self.nonzero_memory, new)
        for by_name in (self._allocatable, self._requested):
            for name, column in by_name.items():
                by_name[name] = _grown(column, new)
        for column_ in self._columns.values():
            column_.grow(new)

    # Columns -----------------------------------------------------------------------------------------------------

    def allocatable(self, name: str) -> Ints:
        column = self._allocatable.get(name)
        return column if column is not None else self._filled(self._allocatable, name, lambda n: n.allocatable)

    def requested(self, name: str) -> Ints:
        column = self._requested.get(name)
        return column if column is not None else self._filled(self._requested, name, lambda n: n.requested)

    def _filled(self, columns: dict[str, Ints], name: str, of: Callable[[NodeInfo], dict[str, int]]) -> Ints:
        column = columns[name] = np.zeros(self.size, np.int64)
        for node in self.index.values():
            column[node.row] = of(node).get(name, 0)
        return column

    def column(self, key: Hashable, dtype: npt.DTypeLike, compute: Compute) -> npt.NDArray[Any]:
        """A plugin's own column, up to date. `compute` must give the same answer for the same node."""
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = Column(np.zeros(self.size, dtype), compute)
        column.refresh(self)
        return column.values

    # Changes -----------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        return self._log_start + len(self._log)

    def changed_since(self, position: int) -> list[int] | None:
        """Rows that changed after a position, each once; None when that is too long ago to say."""
        if position < self._log_start:
            return None
        tail = self._log[position - self._log_start :]
        return tail if len(tail) < 2 else list(dict.fromkeys(tail))

    def touch(self, node: NodeInfo) -> None:
        """Bring the row's numbers in line with the node and note that it changed."""
        row = node.row
        self.pod_count[row] = len(node.pods)
        self.nonzero_cpu[row] = node.nonzero_cpu
        self.nonzero_memory[row] = node.nonzero_memory
        for name, column in self._requested.items():
            column[row] = node.requested.get(name, 0)
        self._note(row)

    def touch_node(self, node: NodeInfo) -> None:
        """The same after the node object itself changed."""
        row = node.row
        self.alive[row] = node.node is not None
        self.allowed_pods[row] = node.allowed_pods
        for name, column in self._allocatable.items():
            column[row] = node.allocatable.get(name, 0)
        self.touch(node)

    def _note(self, row: int) -> None:
        self._log.append(row)
        if len(self._log) > _LOG_LIMIT:
            drop = _LOG_LIMIT // 2
            del self._log[:drop]
            self._log_start += drop


def _grown(values: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    grown = np.zeros(size, values.dtype)
    grown[: len(values)] = values
    return grown
