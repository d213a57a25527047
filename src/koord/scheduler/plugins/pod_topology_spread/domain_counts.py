"""This module says which nodes count for a class of pods, in which domain, and counts the pods of each
constraint.

It copies what node labels and taints said; `refresh` tells when they say something else.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from koord.policy.node_match import RequiredNodeAffinity, find_untolerated_taint
from koord.scheduler.cache.cluster_state import DomainIds, TopologyDomainIndex, TopologyDomains
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import ALL_ROWS, Bools, Ints, NodeTable
from koord.scheduler.cache.pod_shape import PodShape
from koord.scheduler.cache.selector_counts import PodQuery, SelectorClause, SelectorCount, SelectorCounts
from koord.scheduler.plugins.node_affinity import node_affinity_mask
from koord.scheduler.plugins.node_filters import has_untolerated_taint, taint_column
from koord.scheduler.plugins.pod_topology_spread.constraint import HOSTNAME, ResolvedSpreadConstraint

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
