"""Keep values per row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from koord.scheduler.state.changes import Changes
from koord.scheduler.state.node import NodeInfo

Nodes = Sequence[NodeInfo | None]

_SPARE_WORDS = 64


class Column:
    """Keep one value per row; 0 where there is no node."""

    __slots__ = ("_changes", "_compute", "_position", "values")

    def __init__(self, size: int, dtype: npt.DTypeLike, compute: Callable[[NodeInfo], Any], changes: Changes) -> None:
        self.values: npt.NDArray[Any] = np.zeros(size, dtype)
        self._compute = compute
        self._changes = changes
        self._position = -1

    def refresh(self, nodes: Nodes) -> None:
        rows = self._changes.since(self._position)
        self._position = self._changes.position
        for row in range(len(nodes)) if rows is None else rows:
            node = nodes[row]
            self.values[row] = 0 if node is None or node.node is None else self._compute(node)

    def grow(self, size: int) -> None:
        self.values = grown(self.values, size)


class Coded:
    """Keep a value that many nodes share as a small code per row: `values[codes[row]]` is the row's value.

    What depends on the value alone is computed once per distinct value and mapped to the rows by indexing. Codes mean
    something only together with the values of the same moment. Value 0 is None, and stands for rows without a node.
    """

    __slots__ = ("_changes", "_code_of", "_compute", "_position", "codes", "words")

    def __init__(self, size: int, compute: Callable[[NodeInfo], Hashable], changes: Changes) -> None:
        self.codes: npt.NDArray[np.intp] = np.zeros(size, np.intp)  # indices: taking by others costs a cast
        self.words: list[Any] = [None]
        self._code_of: dict[Hashable, int] = {None: 0}
        self._compute = compute
        self._changes = changes
        self._position = -1

    def code_of(self, word: Hashable) -> int | None:
        return self._code_of.get(word)

    def spread(self, rows: npt.NDArray[np.intp] | slice, worth: Callable[[Any], int]) -> npt.NDArray[np.int64]:
        """Map each distinct value to a number, computed once per value; return it per row, 0 where there is no value.

        """
        codes, words = self.codes[rows], self.words
        if len(words) > len(codes):  # few rows of many words: only theirs are asked about
            seen, codes = np.unique(codes, return_inverse=True)
            words = [words[code] for code in seen]
        values = [0 if word is None else worth(word) for word in words]
        return np.asarray(values, np.int64).take(codes) if any(values) else np.zeros(len(codes), np.int64)

    def refresh(self, nodes: Nodes) -> None:
        rows = self._changes.since(self._position)
        self._position = self._changes.position
        if rows is not None and len(self.words) > 2 * len(nodes) + _SPARE_WORDS:
            rows = None  # mostly words that no row has any more: start the list anew
        if rows is None:
            self.words = [None]
            self._code_of = {None: 0}
        for row in range(len(nodes)) if rows is None else rows:
            node = nodes[row]
            self.codes[row] = 0 if node is None or node.node is None else self._code(self._compute(node))

    def _code(self, word: Hashable) -> int:
        code = self._code_of.get(word)
        if code is None:
            code = self._code_of[word] = len(self.words)
            self.words.append(word)
        return code

    def grow(self, size: int) -> None:
        self.codes = grown(self.codes, size)


def grown(values: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    longer = np.zeros(size, values.dtype)
    longer[: len(values)] = values
    return longer
