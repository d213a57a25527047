"""Keep values per row that plugins derive from nodes, computed again only for rows that changed.

The node table owns the columns and brings them up to date when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

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
