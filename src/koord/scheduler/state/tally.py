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

from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.column import grown
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.peers import Peers
from koord.scheduler.state.pod import PodInfo
from koord.values.selector import Operator, Selector

# More selectors than this are not counted at a time; the one asked for longest ago gives way and is counted anew later.
TALLIES_KEPT = 1024
_LOG_LIMIT = 1 << 12
_PINNING = (Operator.EQUALS, Operator.DOUBLE_EQUALS, Operator.IN)

Pin = tuple[str, str]  # label key and value


class Clause(msgspec.Struct, frozen=True):
    """Match a selector within namespaces; None stands for all of them."""

    namespaces: frozenset[str] | None
    selector: Selector

    def matches(self, peers: Peers) -> bool:
        return (self.namespaces is None or peers.namespace in self.namespaces) and self.selector.matches(peers.labels)


class Question(msgspec.Struct, frozen=True):
    """Say which pods to count: those that satisfy every clause, without those being deleted if `exclude_deleting`."""

    clauses: tuple[Clause, ...]
    lasting: bool = False

    def matches(self, peers: Peers) -> bool:
        return all(clause.matches(peers) for clause in self.clauses)


class Placed:
    """Hold where the pods of one label group are: how many per row, and how many of these are being deleted."""

    __slots__ = ("count", "ending", "peers", "rows", "tallies")

    def __init__(self, peers: Peers) -> None:
        self.peers = peers
        self.count = 0
        self.rows: dict[int, int] = {}
        self.ending: dict[int, int] = {}
        self.tallies: list[Tally] = []  # those that count them


class Tally:
    """Hold the counts per row; `live` turns False when they are no longer updated: ask for the count again then."""

    __slots__ = ("_log", "_start", "counts", "live", "members", "question")

    def __init__(self, question: Question, size: int) -> None:
        self.question = question
        self.counts: npt.NDArray[np.int64] = np.zeros(size, np.int64)
        self.members: dict[Placed, None] = {}
        self.live = True
        self._log: list[int] = []
        self._start = 0

    @property
    def position(self) -> int:
        return self._start + len(self._log)

    def since(self, position: int) -> list[int] | None:
        """Return what came after a position: a row for a pod that came there, ~row for one that left; None if
        forgotten.
        """
        return None if position < self._start else self._log[position - self._start :]

    def add(self, row: int, sign: int) -> None:
        if row >= len(self.counts):
            self.counts = grown(self.counts, 2 * row)
        self.counts[row] += sign
        self._log.append(row if sign > 0 else ~row)
        if len(self._log) > _LOG_LIMIT:
            self._start += len(self._log)
            self._log.clear()

    def sized(self, size: int) -> npt.NDArray[np.int64]:
        """Return the counts of exactly that many rows; the table can be longer, or shorter than what was grown ahead.

        """
        if len(self.counts) < size:
            self.counts = grown(self.counts, size)
        return self.counts[:size]

    def fill(self, placed: Placed) -> None:
        self.members[placed] = None
        placed.tallies.append(self)
        for row, count in placed.rows.items():
            self.counts[row] += count
        if self.question.lasting:
            for row, count in placed.ending.items():
                self.counts[row] -= count


class Tallies:
    """Keep all counts of one cluster state. Get it with `state.derived(SelectorCounts)`."""

    def __init__(self, state: ClusterState) -> None:
        self._table = state.table
        self._known: OrderedDict[Question, Tally] = OrderedDict()
        self._by_pin: dict[Pin | None, dict[Tally, None]] = {}  # None: counts that require no label value
        self._placed: dict[Peers, Placed] = {}
        self._placed_in: dict[str, dict[Placed, None]] = {}  # by namespace
        self._placed_by_pin: dict[Pin, dict[Placed, None]] = {}
        self._unindexed: dict[Placed, None] = {}  # by neither: indexed when a new count looks for them
        self.moves = 0  # moves with every change of any count
        state.listen(self._heard)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, question: Question) -> Tally:
        known = self._known.get(question)
        if known is not None:
            self._known.move_to_end(question)
            return known
        tally = self._known[question] = Tally(question, self._table.size)
        for placed in self._candidates(question):
            if question.matches(placed.peers):
                tally.fill(placed)
        for pin in _index_pins(question):
            self._by_pin.setdefault(pin, {})[tally] = None
        if len(self._known) > TALLIES_KEPT:
            self._drop(next(iter(self._known)))
        return tally

    def _drop(self, question: Question) -> None:
        tally = self._known.pop(question)
        tally.live = False
        for pin in _index_pins(question):
            found = self._by_pin[pin]
            del found[tally]
            if not found:
                del self._by_pin[pin]
        for placed in tally.members:
            placed.tallies.remove(tally)
        tally.members.clear()

    def _candidates(self, question: Question) -> Iterable[Placed]:
        """Return placed groups among which all that match are, found by the rarest label that they must have."""
        self._index()
        best: list[dict[Placed, None]] | None = None
        for pins in _pins(question):
            found = [placed for pin in pins if (placed := self._placed_by_pin.get(pin)) is not None]
            if best is None or sum(map(len, found)) < sum(map(len, best)):
                best = found
        if best is not None:
            return [placed for part in best for placed in part]
        spaces = next((clause.namespaces for clause in question.clauses if clause.namespaces is not None), None)
        if spaces is None:
            return self._placed.values()
        return [placed for name in spaces for placed in self._placed_in.get(name, ())]

    # Placements --------------------------------------------------------------------------------------------------

    def _heard(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        row = node.row
        sign = 1 if what == "add" else -1
        placed = self._placed.get(pod.peers) or self._appeared(pod.peers)
        placed.count += sign
        _count(placed.rows, row, sign)
        if pod.deleting:
            _count(placed.ending, row, sign)
        if placed.tallies:
            self.moves += 1
            for tally in placed.tallies:
                if not (pod.deleting and tally.question.lasting):
                    tally.add(row, sign)
        if not placed.count:
            self._vanished(placed)

    def _appeared(self, peers: Peers) -> Placed:
        placed = self._placed[peers] = Placed(peers)
        self._unindexed[placed] = None
        if self._by_pin:
            for tally in self._asking(peers):
                if tally.question.matches(peers):
                    tally.fill(placed)
        return placed

    def _index(self) -> None:
        for placed in self._unindexed:
            self._placed_in.setdefault(placed.peers.namespace, {})[placed] = None
            for pin in placed.peers.labels.items():
                self._placed_by_pin.setdefault(pin, {})[placed] = None
        self._unindexed.clear()

    def _asking(self, peers: Peers) -> list[Tally]:
        by_pin = self._by_pin
        seen = dict(by_pin[None]) if None in by_pin else {}
        for pin in peers.labels.items():
            if pin in by_pin:
                seen.update(by_pin[pin])
        return list(seen)

    def _vanished(self, placed: Placed) -> None:
        peers = placed.peers
        del self._placed[peers]
        for tally in placed.tallies:
            del tally.members[placed]
        if placed in self._unindexed:
            del self._unindexed[placed]
            return
        here = self._placed_in[peers.namespace]
        del here[placed]
        if not here:
            del self._placed_in[peers.namespace]
        for pin in peers.labels.items():
            found = self._placed_by_pin[pin]
            del found[placed]
            if not found:
                del self._placed_by_pin[pin]


def _count(rows: dict[int, int], row: int, sign: int) -> None:
    left = rows.get(row, 0) + sign
    if left:
        rows[row] = left
    else:
        del rows[row]


def _pins(question: Question) -> Iterator[tuple[Pin, ...]]:
    """Yield for each requirement that names values the labels of which a matching pod must have one."""
    for clause in question.clauses:
        for requirement in clause.selector.requirements:
            if requirement.operator in _PINNING:
                yield tuple((requirement.key, value) for value in requirement.values)


def _index_pins(question: Question) -> tuple[Pin | None, ...]:
    """Return the labels under which a count is indexed, so that every label group that it matches finds it."""
    return next(_pins(question), (None,))
