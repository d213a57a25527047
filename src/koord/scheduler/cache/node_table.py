"""Keep nodes as rows of NumPy columns, and log which rows changed.

The table mirrors what NodeInfo holds exactly; columnar forms of plugins read it, and whoever caches a result per row
asks `changed_since` which rows to compute again. Plugins add columns of their own: `column` for what depends on the
pods of a node too, `node_column` and `coded_column` for what depends on the node object alone and so changes seldom.

Keep values per row that plugins derive from nodes, computed again only for rows that changed.

The node table owns the columns and brings them up to date when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from koord.api.koordinator.resource_name import CPU, MEMORY
from koord.scheduler.cache.node_info import NodeInfo

_LOG_LIMIT = 1 << 16


class RowChangeLog:
    """Log which rows changed. Readers hold a position and ask what came after; the older half is dropped."""

    __slots__ = ("_rows", "_start", "position")

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._start = 0
        self.position = 0  # an attribute, as every decision reads it many times

    def since(self, position: int) -> list[int] | None:
        """Return the rows that changed after a position, each once; None when that is too long ago to say."""
        if position < self._start:
            return None
        tail = self._rows[position - self._start :]
        return tail if len(tail) < 2 else list(dict.fromkeys(tail))

    def append(self, row: int) -> None:
        self._rows.append(row)
        self.position += 1
        if len(self._rows) > _LOG_LIMIT:
            drop = _LOG_LIMIT // 2
            del self._rows[:drop]
            self._start += drop


NodeRows = Sequence[NodeInfo | None]

_SPARE_VALUES = 64


class NodeColumn:
    """Keep one value per row; 0 where there is no node."""

    __slots__ = ("_changes", "_compute", "_position", "values")

    def __init__(
        self, size: int, dtype: npt.DTypeLike, compute: Callable[[NodeInfo], Any], changes: RowChangeLog
    ) -> None:
        self.values: npt.NDArray[Any] = np.zeros(size, dtype)
        self._compute = compute
        self._changes = changes
        self._position = -1

    def refresh(self, nodes: NodeRows) -> None:
        rows = self._changes.since(self._position)
        self._position = self._changes.position
        for row in range(len(nodes)) if rows is None else rows:
            node = nodes[row]
            self.values[row] = 0 if node is None or node.node is None else self._compute(node)

    def grow(self, size: int) -> None:
        self.values = grow_array(self.values, size)


class CodedColumn:
    """Keep a value that many nodes share as a small code per row: `values[codes[row]]` is the row's value.

    What depends on the value alone is computed once per distinct value and mapped to the rows by indexing. Codes mean
    something only together with the values of the same moment. Value 0 is None, and stands for rows without a node.
    """

    __slots__ = ("_changes", "_code_of", "_compute", "_position", "codes", "values")

    def __init__(self, size: int, compute: Callable[[NodeInfo], Hashable], changes: RowChangeLog) -> None:
        self.codes: npt.NDArray[np.intp] = np.zeros(size, np.intp)  # indices: taking by others costs a cast
        self.values: list[Any] = [None]
        self._code_of: dict[Hashable, int] = {None: 0}
        self._compute = compute
        self._changes = changes
        self._position = -1

    def code_of(self, value: Hashable) -> int | None:
        return self._code_of.get(value)

    def map_values(
        self, rows: npt.NDArray[np.intp] | slice, compute_value: Callable[[Any], int]
    ) -> npt.NDArray[np.int64]:
        """Map each distinct value to a number, once per value; return it per row, 0 where there is no value."""
        codes, distinct_values = self.codes[rows], self.values
        if len(distinct_values) > len(codes):  # few rows of many words: only theirs are asked about
            seen, codes = np.unique(codes, return_inverse=True)
            distinct_values = [distinct_values[code] for code in seen]
        values = [0 if value is None else compute_value(value) for value in distinct_values]
        return np.asarray(values, np.int64).take(codes) if any(values) else np.zeros(len(codes), np.int64)

    def refresh(self, nodes: NodeRows) -> None:
        rows = self._changes.since(self._position)
        self._position = self._changes.position
        if rows is not None and len(self.values) > 2 * len(nodes) + _SPARE_VALUES:
            rows = None  # mostly words that no row has any more: start the list anew
        if rows is None:
            self.values = [None]
            self._code_of = {None: 0}
        for row in range(len(nodes)) if rows is None else rows:
            node = nodes[row]
            self.codes[row] = 0 if node is None or node.node is None else self._intern_value(self._compute(node))

    def _intern_value(self, value: Hashable) -> int:
        code = self._code_of.get(value)
        if code is None:
            code = self._code_of[value] = len(self.values)
            self.values.append(value)
        return code

    def grow(self, size: int) -> None:
        self.codes = grow_array(self.codes, size)


def grow_array(values: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    longer = np.zeros(size, values.dtype)
    longer[: len(values)] = values
    return longer


Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
RowList = npt.NDArray[np.intp]
# Rows of the table to work on: some of them, or `ALL_ROWS` one, which reads columns without copying them. Rows without
# a
# node are zeros everywhere; what is worked out for them is thrown away, but must not raise.
Rows = RowList | slice
ALL_ROWS: Final = slice(None)
Compute = Callable[[NodeInfo], Any]
T = TypeVar("T")

_FIRST_ROWS = 64


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
        self._columns: dict[Hashable, NodeColumn] = {}
        self._coded: dict[Hashable, CodedColumn] = {}
        self._changes = RowChangeLog()
        self.node_changes = RowChangeLog()  # only of node objects, not of the pods on them
        # Rows whose pods leave requests unstated: what they are scored with there is not what they asked for.
        self.rows_without_requests: set[int] = set()
        self._derived: dict[Hashable, Any] = {}
        self.live = 0  # how many nodes are known
        self.layout = 0  # moves when rows come, go or grow: results per row must then be made anew

    # Rows --------------------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return len(self.nodes)

    def live_rows(self) -> RowList:
        return np.flatnonzero(self.alive)

    def row_of(self, name: str) -> NodeInfo:
        """Return the node of that name, in a new row if need be."""
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
        self.rows_without_requests.discard(node.row)
        self._free.append(node.row)
        self.live -= int(self.alive[node.row])
        for values in (self.alive, self.pod_count, self.allowed_pods, self.nonzero_cpu, self.nonzero_memory):
            values[node.row] = 0
        for by_name in (self._allocatable, self._requested):
            for column in by_name.values():
                column[node.row] = 0
        self._changes.append(node.row)
        self.node_changes.append(node.row)
        self.layout += 1

    def _grow(self) -> None:
        # In small steps: whoever reads whole columns pays for rows that are not in use yet.
        old, new = self.size, self.size + max(_FIRST_ROWS, self.size // 8)
        self.nodes += [None] * (new - old)
        self._free = list(range(new - 1, old - 1, -1))
        self.alive = grow_array(self.alive, new)
        self.pod_count = grow_array(self.pod_count, new)
        self.allowed_pods = grow_array(self.allowed_pods, new)
        self.nonzero_cpu = grow_array(self.nonzero_cpu, new)
        self.nonzero_memory = grow_array(self.nonzero_memory, new)
        for by_name in (self._allocatable, self._requested):
            for name, column in by_name.items():
                by_name[name] = grow_array(column, new)
        for own in self._columns.values():
            own.grow(new)
        for coded in self._coded.values():
            coded.grow(new)

    # Columns -----------------------------------------------------------------------------------------------------

    def allocatable(self, name: str) -> Ints:
        column = self._allocatable.get(name)
        return (
            column
            if column is not None
            else self._make_resource_column(self._allocatable, name, lambda n: n.allocatable)
        )

    def requested(self, name: str) -> Ints:
        column = self._requested.get(name)
        return (
            column if column is not None else self._make_resource_column(self._requested, name, lambda n: n.requested)
        )

    def _make_resource_column(
        self, columns: dict[str, Ints], name: str, of: Callable[[NodeInfo], dict[str, int]]
    ) -> Ints:
        column = columns[name] = np.zeros(self.size, np.int64)
        for node in self.index.values():
            column[node.row] = of(node).get(name, 0)
        return column

    def column(self, key: Hashable, dtype: npt.DTypeLike, compute: Compute) -> npt.NDArray[Any]:
        """Return a plugin's own column, up to date. `compute` must give the same answer for the same node and pods."""
        return self._column(key, dtype, compute, self._changes)

    def node_column(self, key: Hashable, dtype: npt.DTypeLike, compute: Compute) -> npt.NDArray[Any]:
        """Return a column that depends on the node object alone: placements do not cause it to be recomputed."""
        return self._column(key, dtype, compute, self.node_changes)

    def _column(self, key: Hashable, dtype: npt.DTypeLike, compute: Compute, changes: RowChangeLog) -> npt.NDArray[Any]:
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = NodeColumn(self.size, dtype, compute, changes)
        column.refresh(self.nodes)
        return column.values

    def coded_column(self, key: Hashable, compute: Callable[[NodeInfo], Hashable]) -> CodedColumn:
        """Return a coded column of what the node object alone says, such as its taints."""
        coded = self._coded.get(key)
        if coded is None:
            coded = self._coded[key] = CodedColumn(self.size, compute, self.node_changes)
        coded.refresh(self.nodes)
        return coded

    def label_column(self, key: str) -> CodedColumn:
        """Return the coded column of a label's values; None for nodes without it."""
        return self.coded_column(("label", key), lambda node: node.labels.get(key))

    # Changes -----------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        return self._changes.position

    def changed_since(self, position: int) -> list[int] | None:
        """Return the rows that changed after a position, each once; None when that is too long ago to say."""
        return self._changes.since(position)

    def derived(self, kind: Callable[[NodeTable], T]) -> T:
        """Return the one instance of that kind that is kept over this table, made on first use."""
        known: T | None = self._derived.get(kind)
        if known is None:
            known = self._derived[kind] = kind(self)
        return known

    def mark_changed(self, row: int) -> None:
        """Log that something else a plugin judges this row by changed, such as measured usage."""
        self._changes.append(row)

    def refresh_row(self, node: NodeInfo) -> None:
        """Copy the node's sums into its row and log the change."""
        row = node.row
        self.pod_count[row] = len(node.pods)
        self.nonzero_cpu[row] = node.nonzero_cpu
        self.nonzero_memory[row] = node.nonzero_memory
        requested = node.requested
        if node.nonzero_cpu != requested.get(CPU, 0) or node.nonzero_memory != requested.get(MEMORY, 0):
            self.rows_without_requests.add(row)
        elif self.rows_without_requests:
            self.rows_without_requests.discard(row)
        for name, column in self._requested.items():
            column[row] = requested.get(name, 0)
        self._changes.append(row)

    def refresh_node_row(self, node: NodeInfo) -> None:
        """Copy the node's allocatable and sums into its row and log the change, after the node object changed."""
        row = node.row
        self.live += (node.node is not None) - int(self.alive[row])
        self.alive[row] = node.node is not None
        self.allowed_pods[row] = node.allowed_pods
        for name, column in self._allocatable.items():
            column[row] = node.allocatable.get(name, 0)
        self.node_changes.append(row)
        self.refresh_row(node)
