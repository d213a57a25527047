"""This module keeps the devices of all nodes as columns, one slot per card, to count the cards that could
serve a pod.

Rows follow the table's log of changes; only rows whose devices changed are written again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from koord.api.koordinator import scheduling as wire
from koord.api.koordinator.resource_name import GPU_MEMORY, GPU_MEMORY_RATIO
from koord.scheduler.cache.node_table import Bools, CodedColumn, Ints, NodeTable, RowList, Rows, grow_array
from koord.scheduler.framework.plugin import Scores
from koord.scheduler.plugins.device_share.cache import NodeDeviceCache
from koord.scheduler.plugins.device_share.device_amounts import MAX_DEVICE_SCORE, Amounts, DeviceScorer
from koord.scheduler.plugins.device_share.inventory import FULL_CARD_PERCENT, KNOWN_TYPES
from koord.scheduler.plugins.device_share.node_devices import NodeDevices

# What a place says that holds no amount. Both are below any request.
_NO_SUCH_RESOURCE = -1  # the card has no such resource
_NO_CARD = -2  # no card, or one that is not healthy
_INITIAL_CARD_SLOTS = 8
_SPARE_NUMBERS = 1024


class DeviceTypeColumns:
    """The columns of one device type."""

    def __init__(self, device_type: str, resources: Sequence[str], sites: list[NodeDevices | None]) -> None:
        """Make empty columns. `resources`: those that scores count. `sites`: devices by row, kept by DeviceColumns."""
        self._type = device_type
        self._card_slots = _INITIAL_CARD_SLOTS
        self._free: dict[str, Ints] = {}
        self._memory: Ints = np.zeros((0, _INITIAL_CARD_SLOTS), np.int64)
        self.count: npt.NDArray[np.int32] = np.zeros(0, np.int32)  # cards of any health
        self._totals = {name: np.zeros(0, np.int64) for name in resources}
        self._free_sums = {name: np.zeros(0, np.int64) for name in resources}
        self._sites = sites

    def grow(self, size: int) -> None:
        self.count = grow_array(self.count, size)
        for columns in (self._totals, self._free_sums):
            for name, column in columns.items():
                columns[name] = grow_array(column, size)
        self._free = {name: _enlarged(matrix, size, self._card_slots, _NO_CARD) for name, matrix in self._free.items()}
        self._memory = _enlarged(self._memory, size, self._card_slots, 0)

    def set(self, row: int, node_devices: NodeDevices | None) -> None:
        cards = {} if node_devices is None else node_devices.inventory.of_type(self._type)
        self.count[row] = len(cards)
        if len(cards) > self._card_slots:
            self._card_slots = len(cards)
            self.grow(len(self.count))
        free: Sequence[Amounts] = ()
        if node_devices is not None and cards:
            left = node_devices.free_by_minor(self._type)
            free = [left[minor] if card.total else _NO_FREE_AMOUNTS for minor, card in cards.items()]
            for place, card in enumerate(cards.values()):
                self._memory[row, place] = card.total.get(GPU_MEMORY, 0)
        for name, matrix in self._free.items():
            _write(matrix, row, name, free)
        for name, column in self._totals.items():
            column[row] = sum(card.total.get(name, 0) for card in cards.values())
            self._free_sums[name][row] = sum(amounts.get(name, 0) for amounts in free)

    def _free_matrix(self, name: str) -> Ints:
        matrix = self._free.get(name)
        if matrix is None:
            matrix = np.full((len(self.count), self._card_slots), _NO_CARD, np.int64)
            for row, node_devices in enumerate(self._sites):
                if node_devices is not None and self.count[row]:
                    cards, left = node_devices.inventory.of_type(self._type), node_devices.free_by_minor(self._type)
                    _write(
                        matrix, row, name, [left[m] if card.total else _NO_FREE_AMOUNTS for m, card in cards.items()]
                    )
            self._free[name] = matrix
        return matrix

    def count_fitting_cards(self, rows: Rows, each: Amounts) -> Ints:
        """Count the cards of each row that have what one card must give, memory compared in bytes and in percent."""
        fits: Bools | None = None
        for name, amount in each.items():
            enough = self._free_matrix(name)[rows] >= (amount or _NO_SUCH_RESOURCE)
            fits = enough if fits is None else fits & enough
        assert fits is not None
        if self._type == wire.GPU:
            memory = self._memory[rows]
            if GPU_MEMORY_RATIO in each:
                if GPU_MEMORY not in each:
                    left = self._free_matrix(GPU_MEMORY)[rows]
                    fits &= left >= each[GPU_MEMORY_RATIO] * memory // FULL_CARD_PERCENT
            elif GPU_MEMORY in each:
                left = self._free_matrix(GPU_MEMORY_RATIO)[rows]
                percent = each[GPU_MEMORY] * FULL_CARD_PERCENT // np.maximum(memory, 1)
                fits &= (left == _NO_SUCH_RESOURCE) | (left >= percent) | (memory == 0)
        found: Ints = np.count_nonzero(fits, axis=1)
        return found

    def scores(self, rows: Rows, each: Amounts, scorer: DeviceScorer) -> Scores:
        """Compute `DeviceScorer.score` over all cards of a row as if they were one."""
        points: Scores | None = None
        weights: Scores | None = None
        for name, weight in scorer.weights:
            total, left = self._totals[name][rows], self._free_sums[name][rows]
            there = total > 0
            capacity = np.maximum(total, 1)
            after = total - left + each.get(name, 0)
            if scorer.packs:
                part = np.minimum(after, total) * MAX_DEVICE_SCORE // capacity
            else:
                part = np.maximum(total - after, 0) * MAX_DEVICE_SCORE // capacity
            part *= there
            part *= weight
            points = part if points is None else points + part
            counted = there * np.int64(weight)
            weights = counted if weights is None else weights + counted
        assert points is not None
        assert weights is not None
        return points // np.maximum(weights, 1)


_NO_FREE_AMOUNTS: Amounts = {}


def _write(matrix: Ints, row: int, name: str, free: Sequence[Mapping[str, int]]) -> None:
    matrix[row] = _NO_CARD
    for place, amounts in enumerate(free):
        if amounts:
            matrix[row, place] = amounts.get(name, _NO_SUCH_RESOURCE)


def _enlarged(matrix: Ints, rows: int, places: int, fill: int) -> Ints:
    larger = np.full((rows, places), fill, np.int64)
    larger[: matrix.shape[0], : matrix.shape[1]] = matrix
    return larger


class DeviceColumns:
    """The columns of all device types, and the flags that say whether counting cards decides."""

    def __init__(self, table: NodeTable, cache: NodeDeviceCache, scorer: DeviceScorer) -> None:
        self._table = table
        self._cache = cache
        self._position = -1
        self._sites: list[NodeDevices | None] = []
        # A number for each situation that a row is in; worked out when somebody asks, for rows that changed since.
        self._situations: Ints = np.zeros(0, np.int64)
        self._situation_ids: dict[Hashable, int] = {}
        self._changed_rows: set[int] = set()
        counted = [name for name, _ in scorer.weights]
        self.types = {kind: DeviceTypeColumns(kind, counted, self._sites) for kind in KNOWN_TYPES}
        self.has_device: Bools = np.zeros(0, np.bool_)  # a Device object was seen
        self.has_gpu_topology: Bools = np.zeros(0, np.bool_)  # every GPU tells its place
        self.must_honour_partitions: Bools = np.zeros(0, np.bool_)  # its partitions are a must
        self.lists_partitions: Bools = np.zeros(0, np.bool_)  # it lists partitions itself
        self.well_planned: Bools = np.zeros(0, np.bool_)

    def refresh(self) -> None:
        table = self._table
        rows = table.changed_since(self._position)
        self._position = table.position
        if len(self._sites) != table.size:
            self._grow(table.size)
        nodes, of = table.nodes, self._cache.for_node
        for row in range(table.size) if rows is None else rows:
            node = nodes[row]
            node_devices = None if node is None or node.node is None else of(node)
            if node_devices is not self._sites[row]:
                self._set(row, node_devices)

    def evaluate_by_situation(self, rows: RowList, told: CodedColumn, worth: Callable[[NodeDevices, Any], int]) -> Ints:
        """Evaluate `worth` once per situation and node facts; return it for each row. All rows must have devices."""
        self._renumber_changed_rows()
        words = len(told.values)
        keys = self._situations[rows] * words + told.codes[rows]
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        values = np.zeros(len(first), np.int64)
        for place, row in enumerate(rows[first].tolist()):
            node_devices = self._sites[row]
            assert node_devices is not None
            values[place] = worth(node_devices, told.values[told.codes[row]])
        return values[which]

    def _renumber_changed_rows(self) -> None:
        if len(self._situation_ids) > 4 * len(self._sites) + _SPARE_NUMBERS:  # mostly of what has been
            self._situation_ids.clear()
            self._changed_rows = set(np.flatnonzero(self.has_device).tolist())
        for row in self._changed_rows:
            node_devices = self._sites[row]
            if node_devices is not None:
                self._situations[row] = self._situation_ids.setdefault(node_devices.situation, len(self._situation_ids))
        self._changed_rows.clear()

    def _grow(self, size: int) -> None:
        self._sites += [None] * (size - len(self._sites))
        for cards in self.types.values():
            cards.grow(size)
        self._situations = grow_array(self._situations, size)
        self.has_device, self.has_gpu_topology = (
            grow_array(self.has_device, size),
            grow_array(self.has_gpu_topology, size),
        )
        self.must_honour_partitions, self.lists_partitions = (
            grow_array(self.must_honour_partitions, size),
            grow_array(self.lists_partitions, size),
        )
        self.well_planned = grow_array(self.well_planned, size)

    def _set(self, row: int, node_devices: NodeDevices | None) -> None:
        before = self._sites[row]
        self._sites[row] = node_devices
        self._changed_rows.add(row)
        for kind, cards in self.types.items():
            if before is None or node_devices is None or _differs(before, node_devices, kind):
                cards.set(row, node_devices)
        self.has_device[row] = node_devices is not None
        inventory = None if node_devices is None else node_devices.inventory
        self.has_gpu_topology[row] = inventory is not None and inventory.tree is not None
        self.must_honour_partitions[row] = inventory is not None and inventory.honors_partitions
        self.lists_partitions[row] = inventory is not None and inventory.partitions is not None
        self.well_planned[row] = inventory is not None and inventory.has_planned_secondary_devices


def _differs(a: NodeDevices, b: NodeDevices, kind: str) -> bool:
    """Return whether the devices of a type differ. Unchanged amounts are the same objects, shared by ledgers."""
    return a.inventory.cards.get(kind) is not b.inventory.cards.get(kind) or a.used.get(kind) is not b.used.get(kind)
