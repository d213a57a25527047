"""This module decides the DoNotSchedule constraints of one class of pods by the skew that each domain would
have.

    skew = pods in the node's domain + 1 if the pod itself counts - pods in the emptiest domain  <=  maxSkew

A domain exists while a node counts in it. With fewer domains than minDomains the emptiest one counts as
empty. Verdicts are kept per domain; `version` changes when one of them does.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from koord.scheduler.cache.cluster_state import TopologyDomainIndex
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import Bools, Ints, NodeTable, RowList, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_shape import PodShape
from koord.scheduler.cache.selector_counts import SelectorCounts
from koord.scheduler.framework.plugin import Codes
from koord.scheduler.framework.verdict import reject, unresolvable
from koord.scheduler.plugins.pod_topology_spread.constraint import PodSpread, ResolvedSpreadConstraint
from koord.scheduler.plugins.pod_topology_spread.domain_counts import NO_COUNTS, CountedNodes, DomainCounts

_TEXT = "node(s) didn't match pod topology spread constraints"
PASSES: Final = 0
SKEW_EXCEEDED: Final = 1
MISSING_LABEL: Final = 2
ANY_DOMAIN: Final = -1
# With more changed domains than this it is cheaper to judge all rows than to find theirs.
_MAX_CHANGED_DOMAINS: Final = 4
REJECTIONS: Final = {SKEW_EXCEEDED: reject(_TEXT), MISSING_LABEL: unresolvable(f"{_TEXT} (missing required label)")}


class ConstraintSkew:
    """One constraint: the counts per domain, their minimum, and the verdict on each domain."""

    __slots__ = ("_domains_at_min", "_exists", "_min_match", "constraint", "count", "counts", "verdicts")

    def __init__(self, count: DomainCounts) -> None:
        self.count = count
        self.constraint: ResolvedSpreadConstraint = count.constraint
        self._exists: Bools = np.zeros(0, np.bool_)
        self._domains_at_min = 0  # how many domains are as empty as the emptiest
        self._min_match = 0
        self.counts: Ints = NO_COUNTS
        self.verdicts: Codes = np.zeros(0, np.int32)

    def recount(self) -> None:
        self.counts = self.count.counts
        self._exists = np.zeros(len(self.counts), np.bool_)
        self._exists[self.count.domains[self.count.counted]] = True
        self._recompute()

    def _recompute(self) -> None:
        """Find the minimum and compute every verdict."""
        alive = self.counts[self._exists]
        enough = len(alive) >= max(self.constraint.min_domains, 1)
        self._min_match = int(alive.min()) if enough else 0
        self._domains_at_min = int(np.count_nonzero(alive == self._min_match)) if enough else -1
        excess = self.counts + (int(self.constraint.self_match) - self._min_match - self.constraint.max_skew)
        self.verdicts = (excess > 0).astype(np.int32)
        self.verdicts[0] = MISSING_LABEL

    def update_count(self, domain: int, by: int) -> int | None:
        """Count a pod more or less in a domain; return the domain whose verdict changed, ANY_DOMAIN or None."""
        before = int(self.counts[domain])
        after = before + by
        self.counts[domain] = after
        if self._domains_at_min >= 0:  # there are enough domains for the floor to follow them
            if before == self._min_match:
                self._domains_at_min -= 1
            if after == self._min_match:
                self._domains_at_min += 1
            if after < self._min_match or self._domains_at_min == 0:
                before_all = self.verdicts
                self._recompute()
                return None if np.array_equal(before_all, self.verdicts) else ANY_DOMAIN
        verdict = int(after + self.constraint.self_match - self._min_match > self.constraint.max_skew)
        if self.verdicts[domain] == verdict:
            return None
        self.verdicts[domain] = verdict
        return domain

    def copy(self) -> ConstraintSkew:
        other = ConstraintSkew(self.count)
        other.counts = self.counts.copy()
        other.verdicts = self.verdicts.copy()
        other._exists, other._min_match, other._domains_at_min = self._exists, self._min_match, self._domains_at_min
        return other


class SpreadFilterState:
    """All DoNotSchedule constraints of one class. A copy is a dry run: it follows `update_count`, not the cluster."""

    def __init__(
        self, spread: PodSpread, shape: PodShape, table: NodeTable, atlas: TopologyDomainIndex, tallies: SelectorCounts
    ) -> None:
        self.spread = spread
        self.version = 0
        self._table = table
        self._tallies = tallies
        self._counts_seen = -1
        self._changed_domains: set[tuple[int, int]] | None = (
            None  # constraint and domain whose verdict changed; None for any
        )
        self._is_live = True
        self._counted_nodes = CountedNodes(table, atlas, shape, spread.hard, needs_all_keys=True)
        self._skews = [ConstraintSkew(DomainCounts(c, spread.namespace, tallies)) for c in spread.hard]
        self._recount()

    def _recount(self) -> None:
        counted_nodes = self._counted_nodes
        for i, skew in enumerate(self._skews):
            skew.count.recount(counted_nodes.domains[i], counted_nodes.counted[i])
            skew.recount()
        self._changed_domains = None
        self.version += 1
        self._counts_seen = self._tallies.version

    def refresh(self) -> None:
        if not self._is_live:
            return
        if self._counted_nodes.refresh():
            self._recount()
        elif self._counts_seen != self._tallies.version:
            self._counts_seen = self._tallies.version
            for i, skew in enumerate(self._skews):
                news = skew.count.read_changes()
                if news is None:
                    self._recount()
                    return
                for domain, by in news:
                    self._note_change(i, skew.update_count(domain, by))

    def _note_change(self, i: int, domain: int | None) -> None:
        if domain is None:
            return
        self.version += 1
        if domain == ANY_DOMAIN:
            self._changed_domains = None
        elif self._changed_domains is not None:
            self._changed_domains.add((i, domain))

    def moved_rows(self) -> RowList | None:
        """Return the rows whose verdict may have changed since the last call; None for any."""
        moved, self._changed_domains = self._changed_domains, set()
        if moved is None or len(moved) > _MAX_CHANGED_DOMAINS:
            return None
        found = [np.flatnonzero(self._counted_nodes.domains[i].ids == domain) for i, domain in moved]
        return found[0] if len(found) == 1 else np.concatenate((np.zeros(0, np.intp), *found))

    def update_with_pod(self, other: PodInfo, node: NodeInfo, by: int) -> None:
        row = node.row
        if other.deleting:  # it was never counted, so its going is no relief
            return
        if other.namespace != self.spread.namespace or not self._counted_nodes.has_all_keys[row]:
            return
        for i, skew in enumerate(self._skews):
            if self._counted_nodes.counted[i][row] and skew.constraint.selector.matches(other.labels):
                skew.update_count(int(self._counted_nodes.domains[i].ids[row]), by)

    def code(self, row: int) -> int:
        for i, skew in enumerate(self._skews):
            code = skew.verdicts[self._counted_nodes.domains[i].ids[row]]
            if code:
                return int(code)
        return PASSES

    def codes(self, rows: Rows) -> Codes:
        """Return the codes of the rows; the first constraint that rejects a node gives the reason."""
        codes: Codes | None = None
        for i, skew in enumerate(self._skews):
            mine = skew.verdicts.take(self._counted_nodes.domains[i].ids[rows])
            codes = mine if codes is None else np.where(codes != PASSES, codes, mine)
        assert codes is not None
        return codes

    def copy(self) -> SpreadFilterState:
        other = object.__new__(SpreadFilterState)
        other.__dict__.update(self.__dict__)
        other._is_live = False
        other._skews = [skew.copy() for skew in self._skews]
        return other
