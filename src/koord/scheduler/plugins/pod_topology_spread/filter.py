"""This module decides the DoNotSchedule constraints of one class of pods by the skew that each domain would
have.

    skew = pods in the node's domain + 1 if the pod itself counts - pods in the emptiest domain  <=  maxSkew

A domain exists while a node counts in it. With fewer domains than minDomains the emptiest one counts as
empty. Verdicts are kept per domain; `version` changes when one of them does.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from koord.scheduler.framework.plugin import Codes
from koord.scheduler.framework.verdict import reject, unresolvable
from koord.scheduler.plugins.pod_topology_spread.constraint import Constraint, Spread
from koord.scheduler.plugins.pod_topology_spread.count import NO_COUNTS, Count
from koord.scheduler.plugins.pod_topology_spread.ground import Ground
from koord.scheduler.state.domain import Atlas
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.shape import Shape
from koord.scheduler.state.table import Bools, Ints, NodeTable, RowList, Rows
from koord.scheduler.state.tally import Tallies

_TEXT = "node(s) didn't match pod topology spread constraints"
PASSES: Final = 0
TOO_FAR: Final = 1
NO_LABEL: Final = 2
ANY: Final = -1
# With more changed domains than this it is cheaper to judge all rows than to find theirs.
_FEW_DOMAINS: Final = 4
VERDICTS: Final = {TOO_FAR: reject(_TEXT), NO_LABEL: unresolvable(f"{_TEXT} (missing required label)")}


class Balance:
    """One constraint: the counts per domain, their minimum, and the verdict on each domain."""

    __slots__ = ("_exists", "_floor", "_lowest", "constraint", "count", "counts", "verdicts")

    def __init__(self, count: Count) -> None:
        self.count = count
        self.constraint: Constraint = count.constraint
        self._exists: Bools = np.zeros(0, np.bool_)
        self._lowest = 0  # how many domains are as empty as the emptiest
        self._floor = 0
        self.counts: Ints = NO_COUNTS
        self.verdicts: Codes = np.zeros(0, np.int32)

    def recount(self) -> None:
        self.counts = self.count.counts
        self._exists = np.zeros(len(self.counts), np.bool_)
        self._exists[self.count.domains[self.count.counted]] = True
        self._settle()

    def _settle(self) -> None:
        """Find the minimum and compute every verdict."""
        alive = self.counts[self._exists]
        enough = len(alive) >= max(self.constraint.min_domains, 1)
        self._floor = int(alive.min()) if enough else 0
        self._lowest = int(np.count_nonzero(alive == self._floor)) if enough else -1
        excess = self.counts + (int(self.constraint.self_match) - self._floor - self.constraint.max_skew)
        self.verdicts = (excess > 0).astype(np.int32)
        self.verdicts[0] = NO_LABEL

    def shift(self, domain: int, by: int) -> int | None:
        """Count a pod more or less in a domain; return the domain whose verdict changed, or ANY_DOMAIN; None when none
        did.
        """
        before = int(self.counts[domain])
        after = before + by
        self.counts[domain] = after
        if self._lowest >= 0:  # there are enough domains for the floor to follow them
            if before == self._floor:
                self._lowest -= 1
            if after == self._floor:
                self._lowest += 1
            if after < self._floor or self._lowest == 0:
                before_all = self.verdicts
                self._settle()
                return None if np.array_equal(before_all, self.verdicts) else ANY
        verdict = int(after + self.constraint.self_match - self._floor > self.constraint.max_skew)
        if self.verdicts[domain] == verdict:
            return None
        self.verdicts[domain] = verdict
        return domain

    def copy(self) -> Balance:
        other = Balance(self.count)
        other.counts = self.counts.copy()
        other.verdicts = self.verdicts.copy()
        other._exists, other._floor, other._lowest = self._exists, self._floor, self._lowest
        return other


class Balances:
    """All DoNotSchedule constraints of one class. A copy is a dry run: it follows `update_count` and no longer the
    cluster.
    """

    def __init__(self, spread: Spread, shape: Shape, table: NodeTable, atlas: Atlas, tallies: Tallies) -> None:
        self.spread = spread
        self.version = 0
        self._table = table
        self._tallies = tallies
        self._moves = -1
        self._moved: set[tuple[int, int]] | None = None  # constraint and domain whose verdict changed; None for any
        self._follows = True
        self._ground = Ground(table, atlas, shape, spread.hard, needs_all_keys=True)
        self._balances = [Balance(Count(c, spread.namespace, tallies)) for c in spread.hard]
        self._recount()

    def _recount(self) -> None:
        ground = self._ground
        for i, balance in enumerate(self._balances):
            balance.count.recount(ground.domains[i], ground.counted[i])
            balance.recount()
        self._moved = None
        self.version += 1
        self._moves = self._tallies.moves

    def refresh(self) -> None:
        if not self._follows:
            return
        if self._ground.moved():
            self._recount()
        elif self._moves != self._tallies.moves:
            self._moves = self._tallies.moves
            for i, balance in enumerate(self._balances):
                news = balance.count.news()
                if news is None:
                    self._recount()
                    return
                for domain, by in news:
                    self._note(i, balance.shift(domain, by))

    def _note(self, i: int, domain: int | None) -> None:
        if domain is None:
            return
        self.version += 1
        if domain == ANY:
            self._moved = None
        elif self._moved is not None:
            self._moved.add((i, domain))

    def moved_rows(self) -> RowList | None:
        """Return the rows whose verdict may have changed since the last call; None for any."""
        moved, self._moved = self._moved, set()
        if moved is None or len(moved) > _FEW_DOMAINS:
            return None
        found = [np.flatnonzero(self._ground.domains[i].ids == domain) for i, domain in moved]
        return found[0] if len(found) == 1 else np.concatenate((np.zeros(0, np.intp), *found))

    def what_if(self, other: PodInfo, node: NodeInfo, by: int) -> None:
        row = node.row
        if other.deleting:  # it was never counted, so its going is no relief
            return
        if other.namespace != self.spread.namespace or not self._ground.has_all[row]:
            return
        for i, balance in enumerate(self._balances):
            if self._ground.counted[i][row] and balance.constraint.selector.matches(other.labels):
                balance.shift(int(self._ground.domains[i].ids[row]), by)

    def code(self, row: int) -> int:
        for i, balance in enumerate(self._balances):
            code = balance.verdicts[self._ground.domains[i].ids[row]]
            if code:
                return int(code)
        return PASSES

    def codes(self, rows: Rows) -> Codes:
        """Return the codes of the rows; the first constraint that rejects a node gives the reason."""
        codes: Codes | None = None
        for i, balance in enumerate(self._balances):
            mine = balance.verdicts.take(self._ground.domains[i].ids[rows])
            codes = mine if codes is None else np.where(codes != PASSES, codes, mine)
        assert codes is not None
        return codes

    def copy(self) -> Balances:
        other = object.__new__(Balances)
        other.__dict__.update(self.__dict__)
        other._follows = False
        other._balances = [balance.copy() for balance in self._balances]
        return other
