"""This module says which nodes count for a class of pods, in which domain, and counts the pods of each
constraint.

It copies what node labels and taints said; `refresh` tells when they say something else.
"""

from __future__ import annotations

import numpy as np

from koord.scheduler.plugins.node_selector import Required
from koord.scheduler.plugins.pod_topology_spread.constraint import Constraint
from koord.scheduler.plugins.toleration import repels, taint_sets, taints_of
from koord.scheduler.state.domain import Atlas, Domains
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.shape import Shape
from koord.scheduler.state.table import EVERY, Bools, NodeTable

# After more node changes than this the copies are made anew rather than compared row by row.
_FEW = 16


class Ground:
    """The nodes that count. `domains[i]` and `counted[i]` belong to constraint i; `has_all_keys` tells the rows
    with every key.
    """

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
        "has_all",
    )

    def __init__(
        self, table: NodeTable, atlas: Atlas, shape: Shape, constraints: tuple[Constraint, ...], *, needs_all_keys: bool
    ) -> None:
        self._table = table
        self._atlas = atlas
        self._constraints = constraints
        self._needs_all = needs_all_keys
        self._required = Required.of(shape.spec)
        self._tolerations = shape.spec.tolerations
        self.domains: list[Domains] = []
        self.counted: list[Bools] = []
        self.has_all: Bools = np.zeros(0, np.bool_)
        self.alive: Bools = np.zeros(0, np.bool_)
        self._position = -1
        self._copy()

    def moved(self) -> bool:
        """Update the copies; return whether anything changed."""
        changes = self._table.node_changes
        same_size = len(self.has_all) == self._table.size
        if changes.position == self._position and same_size:
            return False
        rows = changes.since(self._position)
        if rows is not None and len(rows) <= _FEW and same_size and self._same(rows):
            self._position = changes.position
            return False
        self._copy()
        return True

    def _copy(self) -> None:
        table = self._table
        self.domains = [self._atlas.of(c.topology_key) for c in self._constraints]
        self.alive = table.alive.copy()
        self.has_all = np.ones(table.size, np.bool_)
        for domains in self.domains:
            self.has_all &= domains.ids != 0
        start = self.has_all if self._needs_all else np.ones(table.size, np.bool_)
        matching = repelled = None
        self.counted = []
        for constraint in self._constraints:
            mask = start.copy()
            if constraint.honors_affinity:
                matching = self._required.mask(table, EVERY) if matching is None else matching
                mask &= matching
            if constraint.honors_taints:
                if repelled is None:
                    repelled = taint_sets(table).spread(EVERY, lambda taints: repels(taints, self._tolerations)) != 0
                mask &= ~repelled
            self.counted.append(mask)
        self._position = table.node_changes.position

    def _same(self, rows: list[int]) -> bool:
        if any(self._atlas.of(c.topology_key) is not self.domains[i] for i, c in enumerate(self._constraints)):
            return False
        for row in rows:
            if self._table.alive[row] != self.alive[row]:
                return False
            node = self._table.nodes[row]
            if node is not None and node.node is not None:
                has_all = bool(self.has_all[row])
                if any(self._counts(c, node, has_all) != self.counted[i][row] for i, c in enumerate(self._constraints)):
                    return False
        return True

    def _counts(self, constraint: Constraint, node: NodeInfo, has_all: bool) -> bool:
        if self._needs_all and not has_all:
            return False
        assert node.node is not None
        if constraint.honors_affinity and not self._required.matches(node.node):
            return False
        return not (constraint.honors_taints and repels(taints_of(node), self._tolerations))
