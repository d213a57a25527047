"""This module keeps the free percentage of each GPU as columns, and which of the expected pods may run on each
node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from koord.api import device as wire
from koord.api.resource_name import GPU_MEMORY_RATIO
from koord.policy.device.fragmentation import Shape, Typical
from koord.policy.device.prospect import Ints, Prospect
from koord.scheduler.plugins.device_share.book import Book
from koord.scheduler.plugins.device_share.site import Site
from koord.scheduler.plugins.node_selector import Required
from koord.scheduler.state.column import grown
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.table import EVERY, NodeTable

_FIRST_PLACES = 8
# Percent. CPU without GPUs or GPUs without CPU are of use to fewer pods than either fragmentation alone would tell.
BALANCE = 10
Kind = tuple[bool, ...]  # which constraints a node meets, in their order


def percents_of(site: Site | None) -> tuple[int, ...]:
    """Return the free percentage of each GPU, in the order of their minors."""
    if site is None:
        return ()
    found: tuple[int, ...] = site.once(
        "percents", lambda: tuple(left.get(GPU_MEMORY_RATIO, 0) for left in site.free_of(wire.GPU).values())
    )
    return found


class Left:
    """The free GPU percentages by row and card slot, 0 where there is no card; it follows the table's log of
    changes.
    """

    def __init__(self, table: NodeTable, book: Book) -> None:
        self._table = table
        self._book = book
        self._position = -1
        self._sites: list[Site | None] = []
        self._percents: Ints = np.zeros((0, _FIRST_PLACES), np.int64)

    def percents(self) -> Ints:
        table = self._table
        rows = table.changed_since(self._position)
        self._position = table.position
        if len(self._sites) != table.size:
            self._sites += [None] * (table.size - len(self._sites))
            self._percents = grown_rows(self._percents, table.size, self._percents.shape[1])
        for row in range(table.size) if rows is None else rows:
            node = table.nodes[row]
            site = None if node is None or node.node is None else self._book.of(node)
            if site is not self._sites[row]:
                self._sites[row] = site
                self._write(row, percents_of(site))
        return self._percents

    def _write(self, row: int, percents: Sequence[int]) -> None:
        if len(percents) > self._percents.shape[1]:
            self._percents = grown_rows(self._percents, len(self._percents), len(percents))
        self._percents[row] = 0
        self._percents[row, : len(percents)] = percents


def grown_rows(matrix: Ints, rows: int, places: int) -> Ints:
    larger = np.zeros((rows, places), np.int64)
    larger[: matrix.shape[0], : matrix.shape[1]] = matrix
    return larger


class Outlook:
    """The usable capacity of all classes of nodes for one mix of expected pods."""

    def __init__(self, table: NodeTable, expected: tuple[Typical, ...], constraints: Mapping[str, Required]) -> None:
        self._table = table
        self.expected = expected
        self._constraints = constraints
        self._prospects: dict[Kind, Prospect] = {}
        self._seen = (-1, -1)
        self._codes: Ints = np.zeros(0, np.int64)
        self._kinds: list[Kind] = []
        self._position = -1
        self._worths: Ints = np.zeros(0, np.int64)

    def of(self, node: NodeInfo) -> Prospect:
        if not self._constraints:
            return self._prospect(())
        table = self._table
        live = table.nodes[node.row] if node.row < table.size else None
        if live is not None and live.node is node.node:
            self._refresh()
            return self._prospect(self._kinds[self._codes[node.row]])
        assert node.node is not None
        return self._prospect(tuple(one.matches(node.node) for one in self._constraints.values()))

    def kinds(self) -> tuple[Ints, list[Prospect]]:
        """Return a class number per row, and the evaluation of each class."""
        self._refresh()
        return self._codes, [self._prospect(kind) for kind in self._kinds]

    def worths(self, cpu_milli: Ints, percents: Ints) -> Ints:
        """Return the usable capacity of every row, from columns of all rows. Unchanged rows are cached."""
        table = self._table
        changed = table.changed_since(self._position) if len(self._worths) == table.size else None
        self._position = table.position
        if changed is None:
            self._worths = np.zeros(table.size, np.int64)
        rows = np.arange(table.size) if changed is None else np.asarray(changed, np.intp)
        codes, prospects = self.kinds()
        for code in np.unique(codes[rows]).tolist():
            of_kind = rows[codes[rows] == code]
            self._worths[of_kind] = prospects[code].worths(cpu_milli[of_kind], percents[of_kind])
        return self._worths

    def _prospect(self, kind: Kind) -> Prospect:
        found = self._prospects.get(kind)
        if found is None:
            met = {key for key, meets in zip(self._constraints, kind, strict=True) if meets}

            def takes(shape: Shape) -> bool:
                return not shape.gpu_spec or shape.gpu_spec in met

            found = self._prospects[kind] = Prospect(self.expected, takes, BALANCE)
        return found

    def _refresh(self) -> None:
        table = self._table
        now = (table.size, table.node_changes.position)
        if now == self._seen:
            return
        self._seen = now
        codes = grown(np.zeros(0, np.int64), table.size)
        columns = [one.mask(table, EVERY) for one in self._constraints.values()]
        for column in columns:  # numbered anew each time, so that many constraints do not overflow
            codes = np.unique(codes * 2 + column, return_inverse=True)[1].astype(np.int64)
        first = np.unique(codes, return_index=True)[1]
        self._codes = codes
        self._kinds = [tuple(bool(column[row]) for column in columns) for row in first.tolist()]
