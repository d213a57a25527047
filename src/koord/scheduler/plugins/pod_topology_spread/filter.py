"""This module decides the DoNotSchedule constraints of one class of pods by the skew that each domain would
have.

    skew = pods in the node's domain + 1 if the pod itself counts - pods in the emptiest domain  <=  maxSkew

A domain exists while a node counts in it. With fewer domains than minDomains the emptiest one counts as
empty. Verdicts are kept per domain; `version` changes when one of them does.

It also says which nodes count for a class of pods, in which domain, and counts the pods of each
constraint.

It copies what node labels and taints said; `refresh` tells when they say something else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from koord.policy.node_match import RequiredNodeAffinity, find_untolerated_taint
from koord.scheduler.cache.cluster_state import DomainIds, TopologyDomainIndex, TopologyDomains
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import ALL_ROWS, Bools, Ints, NodeTable, RowList, Rows
from koord.scheduler.cache.pod_info import PodInfo, PodShape
from koord.scheduler.cache.selector_counts import PodQuery, SelectorClause, SelectorCount, SelectorCounts
from koord.scheduler.framework.plugin import Codes
from koord.scheduler.framework.verdict import reject, unresolvable
from koord.scheduler.plugins.node_affinity import node_affinity_mask
from koord.scheduler.plugins.node_filters import has_untolerated_taint, taint_column
from koord.scheduler.plugins.pod_topology_spread.constraint import HOSTNAME, PodSpread, ResolvedSpreadConstraint

# After more node changes than this the copies are made anew rather than compared row by row.
_MAX_COMPARED_ROWS = 16


class CountedNodes:
    """The nodes that count. `domains[i]`, `counted[i]` are of constraint i; `has_all_keys`: rows with every key."""

    __slots__ = (
        "_atlas",
        "_constraints",
        "_needs_all",
        "_position",
        "_required",
        "_table",
        "_tolerations",
        "alive",
        "counted",
        "domains",
        "has_all_keys",
    )

    def __init__(
        self,
        table: NodeTable,
        atlas: TopologyDomainIndex,
        shape: PodShape,
        constraints: tuple[ResolvedSpreadConstraint, ...],
        *,
        needs_all_keys: bool,
    ) -> None:
        self._table = table
        self._atlas = atlas
        self._constraints = constraints
        self._needs_all = needs_all_keys
        self._required = RequiredNodeAffinity.from_spec(shape.spec)
        self._tolerations = shape.spec.tolerations
        self.domains: list[TopologyDomains] = []
        self.counted: list[Bools] = []
        self.has_all_keys: Bools = np.zeros(0, np.bool_)
        self.alive: Bools = np.zeros(0, np.bool_)
        self._position = -1
        self._rebuild()

    def refresh(self) -> bool:
        """Update the copies; return whether anything changed."""
        changes = self._table.node_changes
        same_size = len(self.has_all_keys) == self._table.size
        if changes.position == self._position and same_size:
            return False
        rows = changes.since(self._position)
        if rows is not None and len(rows) <= _MAX_COMPARED_ROWS and same_size and self._are_rows_unchanged(rows):
            self._position = changes.position
            return False
        self._rebuild()
        return True

    def _rebuild(self) -> None:
        table = self._table
        self.domains = [self._atlas.domains_of(c.topology_key) for c in self._constraints]
        self.alive = table.alive.copy()
        self.has_all_keys = np.ones(table.size, np.bool_)
        for domains in self.domains:
            self.has_all_keys &= domains.ids != 0
        start = self.has_all_keys if self._needs_all else np.ones(table.size, np.bool_)
        matching = repelled = None
        self.counted = []
        for constraint in self._constraints:
            mask = start.copy()
            if constraint.honors_affinity:
                matching = node_affinity_mask(self._required, table, ALL_ROWS) if matching is None else matching
                mask &= matching
            if constraint.honors_taints:
                if repelled is None:
                    repelled = (
                        taint_column(table).map_values(
                            ALL_ROWS, lambda taints: has_untolerated_taint(taints, self._tolerations)
                        )
                        != 0
                    )
                mask &= ~repelled
            self.counted.append(mask)
        self._position = table.node_changes.position

    def _are_rows_unchanged(self, rows: list[int]) -> bool:
        if any(self._atlas.domains_of(c.topology_key) is not self.domains[i] for i, c in enumerate(self._constraints)):
            return False
        for row in rows:
            if self._table.alive[row] != self.alive[row]:
                return False
            node = self._table.nodes[row]
            if node is not None and node.node is not None:
                has_all_keys = bool(self.has_all_keys[row])
                if any(
                    self._is_counted(c, node, has_all_keys) != self.counted[i][row]
                    for i, c in enumerate(self._constraints)
                ):
                    return False
        return True

    def _is_counted(self, constraint: ResolvedSpreadConstraint, node: NodeInfo, has_all_keys: bool) -> bool:
        if self._needs_all and not has_all_keys:
            return False
        assert node.node is not None
        if constraint.honors_affinity and not self._required.matches(node.node):
            return False
        if not constraint.honors_taints:
            return True
        return find_untolerated_taint(self._tolerations, node.node.spec.taints) is None


NO_COUNTS: Ints = np.zeros(0, np.int64)


class DomainCounts:
    """The pods of one constraint per domain; `domains` and `counted` come from CountedNodes."""

    __slots__ = ("_tallies", "_tally", "by_host", "constraint", "counted", "counts", "domains", "namespace", "position")

    def __init__(self, constraint: ResolvedSpreadConstraint, namespace: str, tallies: SelectorCounts) -> None:
        self.constraint = constraint
        self.by_host = constraint.topology_key == HOSTNAME
        self.namespace = namespace
        self._tallies = tallies
        self._tally: SelectorCount | None = None
        self.position = 0
        self.domains: DomainIds = np.zeros(0, np.intp)
        self.counted: Bools = np.zeros(0, np.bool_)
        self.counts = NO_COUNTS

    def pods_per_row(self, size: int) -> Ints:
        """Return the matching pods per node. An empty selector counts none, unlike anywhere else in Kubernetes."""
        selector = self.constraint.selector
        if selector.is_everything():
            return np.zeros(size, np.int64)
        if self._tally is None or not self._tally.live:
            clause = SelectorClause(frozenset((self.namespace,)), selector)
            self._tally = self._tallies.count_of(PodQuery((clause,), exclude_deleting=True))
        return self._tally.sized(size)

    def recount(self, domains: TopologyDomains, counted: Bools) -> None:
        self.domains = domains.ids
        self.counted = counted
        pods = self.pods_per_row(len(domains.ids))
        sums = np.bincount(domains.ids, weights=np.where(counted, pods, 0), minlength=domains.size)
        self.counts = sums.astype(np.int64)
        self.position = self._tally.position if self._tally is not None else 0

    def read_changes(self) -> Iterable[tuple[int, int]] | None:
        """Return the domains that gained (+1) or lost (-1) a pod since the last call; None to count all again."""
        tally = self._tally
        if tally is None:
            return ()
        if not tally.live:
            return None
        if tally.position == self.position:
            return ()
        log = tally.since(self.position)
        self.position = tally.position
        if log is None:
            return None
        known = len(self.domains)
        return [
            (int(self.domains[row]), 1 if row == entry else -1)
            for entry in log
            if (row := entry if entry >= 0 else ~entry) < known and self.counted[row]
        ]


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
