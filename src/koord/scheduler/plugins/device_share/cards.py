"""This module keeps the devices of all nodes as columns, one slot per card, to count the cards that could
serve a pod.

Rows follow the table's log of changes; only rows whose devices changed are written again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from koord.api import device as wire
from koord.api.resource_name import GPU_MEMORY, GPU_MEMORY_RATIO
from koord.policy.device.holding import Amounts
from koord.policy.device.inventory import KNOWN_TYPES, WHOLE
from koord.policy.device.score import MAX, Scorer
from koord.scheduler.framework.plugin import Scores
from koord.scheduler.plugins.device_share.book import Book
from koord.scheduler.plugins.device_share.site import Site
from koord.scheduler.state.column import Coded, grown
from koord.scheduler.state.table import Bools, Ints, NodeTable, RowList, Rows

# What a place says that holds no amount. Both are below any request.
_LACKS = -1  # the card has no such resource
_NO_CARD = -2  # no card, or one that is not healthy
_FIRST_PLACES = 8
_SPARE_NUMBERS = 1024


class Cards:
    """The columns of one device type."""

    def __init__(self, device_type: str, resources: Sequence[str], sites: list[Site | None]) -> None:
        """Make empty columns. `resources`: those that scores count. `sites`: devices by row, kept by DeviceColumns."""
        self._type = device_type
        self._places = _FIRST_PLACES
        self._free: dict[str, Ints] = {}
        self._memory: Ints = np.zeros((0, _FIRST_PLACES), np.int64)
        self.count: npt.NDArray[np.int32] = np.zeros(0, np.int32)  # cards of any health
        self._totals = {name: np.zeros(0, np.int64) for name in resources}
        self._left = {name: np.zeros(0, np.int64) for name in resources}
        self._sites = sites

    def grow(self, size: int) -> None:
        self.count = grown(self.count, size)
        for columns in (self._totals, self._left):
            for name, column in columns.items():
                columns[name] = grown(column, size)
        self._free = {name: _larger(matrix, size, self._places, _NO_CARD) for name, matrix in self._free.items()}
        self._memory = _larger(self._memory, size, self._places, 0)

    def set(self, row: int, site: Site | None) -> None:
        cards = {} if site is None else site.inventory.of(self._type)
        self.count[row] = len(cards)
        if len(cards) > self._places:
            self._places = len(cards)
            self.grow(len(self.count))
        free: Sequence[Amounts] = ()
        if site is not None and cards:
            left = site.free_of(self._type)
            free = [left[minor] if card.total else _NONE for minor, card in cards.items()]
            for place, card in enumerate(cards.values()):
                self._memory[row, place] = card.total.get(GPU_MEMORY, 0)
        for name, matrix in self._free.items():
            _write(matrix, row, name, free)
        for name, column in self._totals.items():
            column[row] = sum(card.total.get(name, 0) for card in cards.values())
            self._left[name][row] = sum(amounts.get(name, 0) for amounts in free)

    def _of(self, name: str) -> Ints:
        matrix = self._free.get(name)
        if matrix is None:
            matrix = np.full((len(self.count), self._places), _NO_CARD, np.int64)
            for row, site in enumerate(self._sites):
                if site is not None and self.count[row]:
                    cards, left = site.inventory.of(self._type), site.free_of(self._type)
                    _write(matrix, row, name, [left[m] if card.total else _NONE for m, card in cards.items()])
            self._free[name] = matrix
        return matrix

    def fitting(self, rows: Rows, each: Amounts) -> Ints:
        """Count the cards of each row that have what one card must give, with memory compared both in bytes and in
        percent.
        """
        fits: Bools | None = None
        for name, amount in each.items():
            enough = self._of(name)[rows] >= (amount or _LACKS)
            fits = enough if fits is None else fits & enough
        assert fits is not None
        if self._type == wire.GPU:
            memory = self._memory[rows]
            if GPU_MEMORY_RATIO in each:
                if GPU_MEMORY not in each:
                    left = self._of(GPU_MEMORY)[rows]
                    fits &= left >= each[GPU_MEMORY_RATIO] * memory // WHOLE
            elif GPU_MEMORY in each:
                left = self._of(GPU_MEMORY_RATIO)[rows]
                percent = each[GPU_MEMORY] * WHOLE // np.maximum(memory, 1)
                fits &= (left == _LACKS) | (left >= percent) | (memory == 0)
        found: Ints = np.count_nonzero(fits, axis=1)
        return found

    def scores(self, rows: Rows, each: Amounts, scorer: Scorer) -> Scores:
        """Compute `DeviceScorer.score` over all cards of a row as if they were one."""
        points: Scores | None = None
        weights: Scores | None = None
        for name, weight in scorer.weights:
            total, left = self._totals[name][rows], self._left[name][rows]
            there = total > 0
            capacity = np.maximum(total, 1)
            after = total - left + each.get(name, 0)
            if scorer.most:
                part = np.minimum(after, total) * MAX // capacity
            else:
                part = np.maximum(total - after, 0) * MAX // capacity
            part *= there
            part *= weight
            points = part if points is None else points + part
            counted = there * np.int64(weight)
            weights = counted if weights is None else weights + counted
        assert points is not None
        assert weights is not None
        return points // np.maximum(weights, 1)


_NONE: Amounts = {}


def _write(matrix: Ints, row: int, name: str, free: Sequence[Mapping[str, int]]) -> None:
    matrix[row] = _NO_CARD
    for place, amounts in enumerate(free):
        if amounts:
            matrix[row, place] = amounts.get(name, _LACKS)


def _larger(matrix: Ints, rows: int, places: int, fill: int) -> Ints:
    larger = np.full((rows, places), fill, np.int64)
    larger[: matrix.shape[0], : matrix.shape[1]] = matrix
    return larger


class Fleet:
    """The columns of all device types, and the flags that say whether counting cards decides."""

    def __init__(self, table: NodeTable, book: Book, scorer: Scorer) -> None:
        self._table = table
        self._book = book
        self._position = -1
        self._sites: list[Site | None] = []
        # A number for each situation that a row is in; worked out when somebody asks, for rows that changed since.
        self._situations: Ints = np.zeros(0, np.int64)
        self._numbers: dict[Hashable, int] = {}
        self._moved: set[int] = set()
        counted = [name for name, _ in scorer.weights]
        self.types = {kind: Cards(kind, counted, self._sites) for kind in KNOWN_TYPES}
        self.known: Bools = np.zeros(0, np.bool_)  # a Device object was seen
        self.placed: Bools = np.zeros(0, np.bool_)  # every GPU tells its place
        self.parted: Bools = np.zeros(0, np.bool_)  # its partitions are a must
        self.tabled: Bools = np.zeros(0, np.bool_)  # it lists partitions itself
        self.planned: Bools = np.zeros(0, np.bool_)

    def refresh(self) -> None:
        table = self._table
        rows = table.changed_since(self._position)
        self._position = table.position
        if len(self._sites) != table.size:
            self._grow(table.size)
        nodes, of = table.nodes, self._book.of
        for row in range(table.size) if rows is None else rows:
            node = nodes[row]
            site = None if node is None or node.node is None else of(node)
            if site is not self._sites[row]:
                self._set(row, site)

    def by_situation(self, rows: RowList, told: Coded, worth: Callable[[Site, Any], int]) -> Ints:
        """Evaluate `worth` once per situation and node facts, and return its value for each row. All rows must have
        devices.
        """
        self._number_moved()
        words = len(told.words)
        keys = self._situations[rows] * words + told.codes[rows]
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        values = np.zeros(len(first), np.int64)
        for place, row in enumerate(rows[first].tolist()):
            site = self._sites[row]
            assert site is not None
            values[place] = worth(site, told.words[told.codes[row]])
        return values[which]

    def _number_moved(self) -> None:
        if len(self._numbers) > 4 * len(self._sites) + _SPARE_NUMBERS:  # mostly of what has been
            self._numbers.clear()
            self._moved = set(np.flatnonzero(self.known).tolist())
        for row in self._moved:
            site = self._sites[row]
            if site is not None:
                self._situations[row] = self._numbers.setdefault(site.situation, len(self._numbers))
        self._moved.clear()

    def _grow(self, size: int) -> None:
        self._sites += [None] * (size - len(self._sites))
        for cards in self.types.values():
            cards.grow(size)
        self._situations = grown(self._situations, size)
        self.known, self.placed = grown(self.known, size), grown(self.placed, size)
        self.parted, self.tabled = grown(self.parted, size), grown(self.tabled, size)
        self.planned = grown(self.planned, size)

    def _set(self, row: int, site: Site | None) -> None:
        before = self._sites[row]
        self._sites[row] = site
        self._moved.add(row)
        for kind, cards in self.types.items():
            if before is None or site is None or _differs(before, site, kind):
                cards.set(row, site)
        self.known[row] = site is not None
        inventory = None if site is None else site.inventory
        self.placed[row] = inventory is not None and inventory.tree is not None
        self.parted[row] = inventory is not None and inventory.honours_partitions
        self.tabled[row] = inventory is not None and inventory.partitions is not None
        self.planned[row] = inventory is not None and inventory.well_planned


def _differs(a: Site, b: Site, kind: str) -> bool:
    """Return whether the devices of a type differ. Unchanged amounts are the same objects: ledgers share what they
    can.
    """
    return a.inventory.cards.get(kind) is not b.inventory.cards.get(kind) or a.used.get(kind) is not b.used.get(kind)
