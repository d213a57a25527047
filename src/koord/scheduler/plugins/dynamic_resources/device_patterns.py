"""Number the nodes by what their devices are to a claim, so that equal nodes are searched once.

    names       the attributes and capacities that a claim's selectors and constraints read
    kind        what a device is, seen through these names: devices of one kind are answered alike
    pattern     the kinds of a node's devices in their order, and which of them are in use

Two nodes of one pattern give the same answer to a claim. A pool that several nodes reach stands in a pattern by its
name: what of it is in use is the same for all of them, and answers that depend on it hold until that changes.

Keep what nodes answer to the claims of equal pods: one search for all nodes whose devices have one pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np
import numpy.typing as npt

from koord.api.model import encode
from koord.cel.device_selector import ATTRIBUTES, DeviceName
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows, grow_array
from koord.scheduler.framework.plugin import Codes, Scores
from koord.scheduler.plugins.dynamic_resources.allocator import AllocationRefusal, ClaimAllocation, preference_score
from koord.scheduler.plugins.dynamic_resources.claim_cache import ClaimedCards
from koord.scheduler.plugins.dynamic_resources.claim_demand import MAX_ALTERNATIVES, ClaimDemand
from koord.scheduler.plugins.dynamic_resources.resource_slice_cache import (
    ClaimableDevice,
    DeviceId,
    DevicePool,
    ReachablePool,
    ResourceSliceCache,
    counters_left,
)

PatternNames = frozenset[DeviceName] | None  # None where a claim may read anything
NO_DEVICES = 0  # the code of rows without a node
_SPARE_PATTERNS = 4096


def names_of_demands(demands: Sequence[ClaimDemand]) -> PatternNames:
    """Return what claims read of devices beside the driver, taints and counters, which every pattern has."""
    found: set[DeviceName] = set()
    for claim in demands:
        found.update((ATTRIBUTES, constraint.attribute) for constraint in claim.constraints)
        for request in claim.requests:
            for demand in request.alternatives:
                for program in (*demand.class_selectors, *demand.selectors):
                    if program.names is None:
                        return None
                    found |= program.names
    return frozenset(found)


class _LocalPool:
    """A pool that only this node reaches, with its devices numbered by kind: even numbers, odd ones are in use."""

    __slots__ = ("counted", "ids", "kinds")

    def __init__(self, ids: tuple[DeviceId, ...], kinds: tuple[int, ...], counted: DevicePool | None) -> None:
        self.ids = ids
        self.kinds = kinds
        self.counted = counted  # where its devices take from counters


_Part = _LocalPool | tuple[Hashable, ...]
_Pools = tuple[ReachablePool, ...]


class DevicePatterns:
    """The pattern of every row as a small number, computed again for rows that changed."""

    def __init__(self, names: PatternNames, table: NodeTable, slices: ResourceSliceCache, cards: ClaimedCards) -> None:
        self._names = None if names is None else tuple(sorted(names))
        self._table = table
        self._slices = slices
        self._cards = cards
        self._kinds: dict[Hashable, int] = {}
        self._parts: dict[int, tuple[_Pools, tuple[_Part, ...]]] = {}  # by row
        self._position = -1
        self._layout = -1
        self.generation = 0  # moves when numbers mean something else
        self._numbers: dict[Hashable, int] = {}
        self.shared: list[bool] = []  # by number: whether it depends on pools that several nodes reach
        self.codes: npt.NDArray[np.intp] = np.zeros(0, np.intp)

    def refresh(self) -> None:
        """Bring the numbers up to date."""
        table = self._table
        rows: Sequence[int] | None = None
        if self._layout == self._slices.wide_layout:
            if self._position == table.position:
                return
            rows = table.changed_since(self._position)
        if rows is None or len(self.shared) > 2 * table.size + _SPARE_PATTERNS:
            rows = range(table.size)
            self._start_anew()
        self._position, self._layout = table.position, self._slices.wide_layout
        if len(self.codes) < table.size:
            self.codes = grow_array(self.codes, table.size)
        for row in rows:
            node = table.nodes[row]
            if node is None or node.node is None:
                self.codes[row] = NO_DEVICES
                self._parts.pop(row, None)
            else:
                self.codes[row] = self._number_of(node)

    def _start_anew(self) -> None:
        self.generation += 1
        self._numbers.clear()
        self._kinds.clear()
        self._parts.clear()
        self.shared = [False]

    def _number_of(self, node: NodeInfo) -> int:
        pools = self._slices.pools_of(node)
        known = self._parts.get(node.row)
        if known is None or known[0] is not pools:
            known = self._parts[node.row] = (pools, tuple(map(self._part, pools)))
        in_use, held = self._cards.in_use(node), self._cards.held_devices(node)
        pattern: list[Hashable] = []
        is_shared = False
        for each, part in zip(pools, known[1], strict=True):
            if isinstance(part, tuple):
                is_shared = True
                pattern.append((part, frozenset(held.intersection(d.id for d in each.devices))) if held else part)
                continue
            taken = [kind + (device in in_use) for kind, device in zip(part.kinds, part.ids, strict=True)]
            if part.counted is not None:
                users = (device for device in part.counted.devices.values() if device.id in in_use)
                left = counters_left(part.counted, users)
                pattern.append((*taken, *sorted(left.items(), key=lambda item: item[0])))
            else:
                pattern.append(tuple(taken))
        key = tuple(pattern)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.shared)
            self.shared.append(is_shared)
        return number

    def _part(self, reachable: ReachablePool) -> _Part:
        pool = reachable.pool
        if pool.is_incomplete or pool.is_invalid or self._slices.is_wide(pool.id):
            return (pool.id, pool.is_incomplete, reachable.part_of_pool)
        ids = tuple(device.id for device in reachable.devices)
        is_counted = any(device.consumes for device in pool.devices.values())
        return _LocalPool(ids, tuple(map(self._kind, reachable.devices)), pool if is_counted else None)

    def _kind(self, device: ClaimableDevice) -> int:
        spec = device.spec
        seen: Hashable
        if self._names is None:
            seen = encode(spec.attributes), encode(spec.capacity)
        else:
            seen = tuple(
                device.attribute(name) if of == ATTRIBUTES else device.capacity(name) for of, name in self._names
            )
        taints = encode(spec.taints) if spec.taints else b""
        flags = bool(spec.allow_multiple_allocations), bool(spec.binding_conditions)
        value = (device.id[0], flags, seen, taints, device.consumes)
        return self._kinds.setdefault(value, 2 * len(self._kinds))


Allocate = Callable[[Sequence[ClaimDemand], NodeInfo], tuple[ClaimAllocation, ...] | AllocationRefusal]
_UNKNOWN = -1
_FITS = 0


class DemandVerdicts:
    """The answers to these demands by pattern: 0 for devices, else the number of the refusal, from 1 on."""

    def __init__(
        self,
        demands: tuple[ClaimDemand, ...],
        patterns: DevicePatterns,
        table: NodeTable,
        allocate: Allocate,
        wide_version: Callable[[], int],
    ) -> None:
        """`wide_version` moves when devices that several nodes reach are taken or freed."""
        self.demands = demands
        self.refusals: list[AllocationRefusal] = []
        self._patterns = patterns
        self._table = table
        self._allocate = allocate
        self._wide_version = wide_version
        self._at: tuple[int, int] = (-1, -1)  # generation of the patterns, wide version
        self._answers: Codes = np.zeros(0, np.int32)
        self._scores: Scores = np.zeros(0, np.int64)

    def answers(self, rows: Rows) -> Codes:
        """Return the answer of each row."""
        patterns = self._sync()[rows]
        found = self._answers[patterns]
        missing = np.flatnonzero(found == _UNKNOWN)
        if not len(missing):
            return found
        unknown, places = np.unique(patterns[missing], return_index=True)
        at = missing[places] if isinstance(rows, slice) else rows[missing[places]]
        for pattern, row in zip(unknown.tolist(), at.tolist(), strict=True):
            self._ask(pattern, row)
        return self._answers[patterns]

    def scores(self, rows: Rows) -> Scores:
        """Return how good the alternatives are that each row gives; 0 where it gives no devices."""
        self.answers(rows)
        return self._scores[self._patterns.codes[rows]]

    def refusal(self, node: NodeInfo) -> AllocationRefusal | None:
        answer = self._answer(node.row)
        return self.refusals[answer - 1] if answer else None

    def score(self, node: NodeInfo) -> int:
        self._answer(node.row)
        return self._scores.item(self._patterns.codes.item(node.row))

    def error_answers(self) -> list[int]:
        """Return the answers that end the attempt at a pod."""
        return [i for i, refusal in enumerate(self.refusals, 1) if refusal.is_error]

    def _answer(self, row: int) -> int:
        pattern = self._sync().item(row)
        found = self._answers.item(pattern)
        return self._ask(pattern, row) if found == _UNKNOWN else found

    def _sync(self) -> npt.NDArray[np.intp]:
        """Forget answers that no longer hold; return the patterns of all rows."""
        patterns = self._patterns
        patterns.refresh()
        now = (patterns.generation, self._wide_version())
        if now[0] != self._at[0]:
            self._answers, self._scores = self._answers[:0], self._scores[:0]
        elif now[1] != self._at[1]:
            self._answers[np.flatnonzero(patterns.shared[: len(self._answers)])] = _UNKNOWN
        self._at = now
        known, wanted = len(self._answers), len(patterns.shared)
        if known < wanted:
            room = max(2 * known, wanted, 64)
            answers, scores = np.full(room, _UNKNOWN, np.int32), np.zeros(room, np.int64)
            answers[:known], scores[:known] = self._answers, self._scores
            answers[NO_DEVICES] = _FITS  # nobody reads what is said of a row without a node
            self._answers, self._scores = answers, scores
        return patterns.codes

    def _ask(self, pattern: int, row: int) -> int:
        node = self._table.nodes[row]
        assert node is not None
        found = self._allocate(self.demands, node)
        answer, score = _FITS, 0
        if isinstance(found, AllocationRefusal):
            if found not in self.refusals:
                self.refusals.append(found)
            answer = self.refusals.index(found) + 1
        else:
            score = preference_score(found, MAX_ALTERNATIVES)
        self._answers[pattern], self._scores[pattern] = answer, score
        return answer
