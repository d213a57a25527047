"""Count the placed pods that match a selector, per row; kept for the selectors in use only.

    pod placed --> its label group --> the counts that match it --> one row of each

A pod that no count matches costs one dictionary entry. A count is filled from the placed label groups that match it,
which are found by label, and keeps a log of its changes, so that whoever sums it up (by zone, say) need not sum again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import grow_array
from koord.scheduler.cache.pod_info import LabelGroup, PodInfo
from koord.values.selector import Operator, Selector

# More selectors than this are not counted at a time; the one asked for longest ago gives way and is counted anew later.
MAX_SELECTOR_COUNTS = 1024
_LOG_LIMIT = 1 << 12
_EQUALITY_OPERATORS = (Operator.EQUALS, Operator.DOUBLE_EQUALS, Operator.IN)

LabelPair = tuple[str, str]  # label key and value


class SelectorClause(msgspec.Struct, frozen=True):
    """Match a selector within namespaces; None stands for all of them."""

    namespaces: frozenset[str] | None
    selector: Selector

    def matches(self, label_group: LabelGroup) -> bool:
        return (self.namespaces is None or label_group.namespace in self.namespaces) and self.selector.matches(
            label_group.labels
        )


class PodQuery(msgspec.Struct, frozen=True):
    """Say which pods to count: those that satisfy every clause, without those being deleted if `exclude_deleting`."""

    clauses: tuple[SelectorClause, ...]
    exclude_deleting: bool = False

    def matches(self, label_group: LabelGroup) -> bool:
        return all(clause.matches(label_group) for clause in self.clauses)


class LabelGroupPlacement:
    """Hold where the pods of one label group are: how many per row, and how many of these are being deleted."""

    __slots__ = ("count", "deleting_rows", "label_group", "rows", "selector_counts")

    def __init__(self, label_group: LabelGroup) -> None:
        self.label_group = label_group
        self.count = 0
        self.rows: dict[int, int] = {}
        self.deleting_rows: dict[int, int] = {}
        self.selector_counts: list[SelectorCount] = []  # those that count them


class SelectorCount:
    """Hold the counts per row; `live` turns False when they are no longer updated: ask for the count again then."""

    __slots__ = ("_log", "_start", "counts", "live", "members", "query")

    def __init__(self, query: PodQuery, size: int) -> None:
        self.query = query
        self.counts: npt.NDArray[np.int64] = np.zeros(size, np.int64)
        self.members: dict[LabelGroupPlacement, None] = {}
        self.live = True
        self._log: list[int] = []
        self._start = 0

    @property
    def position(self) -> int:
        return self._start + len(self._log)

    def since(self, position: int) -> list[int] | None:
        """Return what came after a position: a row for a pod that came, ~row for one that left; None if forgotten."""
        return None if position < self._start else self._log[position - self._start :]

    def add(self, row: int, sign: int) -> None:
        if row >= len(self.counts):
            self.counts = grow_array(self.counts, 2 * row)
        self.counts[row] += sign
        self._log.append(row if sign > 0 else ~row)
        if len(self._log) > _LOG_LIMIT:
            self._start += len(self._log)
            self._log.clear()

    def sized(self, size: int) -> npt.NDArray[np.int64]:
        """Return the counts of exactly that many rows; the table can be longer, or shorter than was grown ahead."""
        if len(self.counts) < size:
            self.counts = grow_array(self.counts, size)
        return self.counts[:size]

    def fill(self, placed: LabelGroupPlacement) -> None:
        self.members[placed] = None
        placed.selector_counts.append(self)
        for row, count in placed.rows.items():
            self.counts[row] += count
        if self.query.exclude_deleting:
            for row, count in placed.deleting_rows.items():
                self.counts[row] -= count


class SelectorCounts:
    """Keep all counts of one cluster state. Get it with `state.derived(SelectorCounts)`."""

    def __init__(self, state: ClusterState) -> None:
        self._table = state.table
        self._known: OrderedDict[PodQuery, SelectorCount] = OrderedDict()
        self._by_label_pair: dict[
            LabelPair | None, dict[SelectorCount, None]
        ] = {}  # None: counts that require no label value
        self._placed: dict[LabelGroup, LabelGroupPlacement] = {}
        self._placed_in: dict[str, dict[LabelGroupPlacement, None]] = {}  # by namespace
        self._placed_by_label_pair: dict[LabelPair, dict[LabelGroupPlacement, None]] = {}
        self._unindexed: dict[LabelGroupPlacement, None] = {}  # by neither: indexed when a new count looks for them
        self.version = 0  # moves with every change of any count
        state.add_placement_listener(self._on_placement)

    def __len__(self) -> int:
        return len(self._known)

    def count_of(self, query: PodQuery) -> SelectorCount:
        known = self._known.get(query)
        if known is not None:
            self._known.move_to_end(query)
            return known
        selector_count = self._known[query] = SelectorCount(query, self._table.size)
        for placed in self._candidates(query):
            if query.matches(placed.label_group):
                selector_count.fill(placed)
        for label_pair in _index_label_pairs(query):
            self._by_label_pair.setdefault(label_pair, {})[selector_count] = None
        if len(self._known) > MAX_SELECTOR_COUNTS:
            self._drop(next(iter(self._known)))
        return selector_count

    def _drop(self, query: PodQuery) -> None:
        selector_count = self._known.pop(query)
        selector_count.live = False
        for label_pair in _index_label_pairs(query):
            found = self._by_label_pair[label_pair]
            del found[selector_count]
            if not found:
                del self._by_label_pair[label_pair]
        for placed in selector_count.members:
            placed.selector_counts.remove(selector_count)
        selector_count.members.clear()

    def _candidates(self, query: PodQuery) -> Iterable[LabelGroupPlacement]:
        """Return placed groups among which all that match are, found by the rarest label that they must have."""
        self._index()
        best: list[dict[LabelGroupPlacement, None]] | None = None
        for label_pairs in _required_label_pairs(query):
            found = [
                placed
                for label_pair in label_pairs
                if (placed := self._placed_by_label_pair.get(label_pair)) is not None
            ]
            if best is None or sum(map(len, found)) < sum(map(len, best)):
                best = found
        if best is not None:
            return [placed for part in best for placed in part]
        spaces = next((clause.namespaces for clause in query.clauses if clause.namespaces is not None), None)
        if spaces is None:
            return self._placed.values()
        return [placed for name in spaces for placed in self._placed_in.get(name, ())]

    # Placements --------------------------------------------------------------------------------------------------

    def _on_placement(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        row = node.row
        sign = 1 if what == "add" else -1
        placed = self._placed.get(pod.label_group) or self._add_group(pod.label_group)
        placed.count += sign
        _count(placed.rows, row, sign)
        if pod.deleting:
            _count(placed.deleting_rows, row, sign)
        if placed.selector_counts:
            self.version += 1
            for selector_count in placed.selector_counts:
                if not (pod.deleting and selector_count.query.exclude_deleting):
                    selector_count.add(row, sign)
        if not placed.count:
            self._remove_group(placed)

    def _add_group(self, label_group: LabelGroup) -> LabelGroupPlacement:
        placed = self._placed[label_group] = LabelGroupPlacement(label_group)
        self._unindexed[placed] = None
        if self._by_label_pair:
            for selector_count in self._counts_matching(label_group):
                if selector_count.query.matches(label_group):
                    selector_count.fill(placed)
        return placed

    def _index(self) -> None:
        for placed in self._unindexed:
            self._placed_in.setdefault(placed.label_group.namespace, {})[placed] = None
            for label_pair in placed.label_group.labels.items():
                self._placed_by_label_pair.setdefault(label_pair, {})[placed] = None
        self._unindexed.clear()

    def _counts_matching(self, label_group: LabelGroup) -> list[SelectorCount]:
        by_pin = self._by_label_pair
        seen = dict(by_pin[None]) if None in by_pin else {}
        for label_pair in label_group.labels.items():
            if label_pair in by_pin:
                seen.update(by_pin[label_pair])
        return list(seen)

    def _remove_group(self, placed: LabelGroupPlacement) -> None:
        label_group = placed.label_group
        del self._placed[label_group]
        for selector_count in placed.selector_counts:
            del selector_count.members[placed]
        if placed in self._unindexed:
            del self._unindexed[placed]
            return
        here = self._placed_in[label_group.namespace]
        del here[placed]
        if not here:
            del self._placed_in[label_group.namespace]
        for label_pair in label_group.labels.items():
            found = self._placed_by_label_pair[label_pair]
            del found[placed]
            if not found:
                del self._placed_by_label_pair[label_pair]


def _count(rows: dict[int, int], row: int, sign: int) -> None:
    left = rows.get(row, 0) + sign
    if left:
        rows[row] = left
    else:
        del rows[row]


def _required_label_pairs(query: PodQuery) -> Iterator[tuple[LabelPair, ...]]:
    """Yield for each requirement that names values the labels of which a matching pod must have one."""
    for clause in query.clauses:
        for requirement in clause.selector.requirements:
            if requirement.operator in _EQUALITY_OPERATORS:
                yield tuple((requirement.key, value) for value in requirement.values)


def _index_label_pairs(query: PodQuery) -> tuple[LabelPair | None, ...]:
    """Return the labels under which a count is indexed, so that every label group that it matches finds it."""
    return next(_required_label_pairs(query), (None,))
