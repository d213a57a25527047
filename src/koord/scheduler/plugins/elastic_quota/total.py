"""ClusterTotal is the sum of all nodes' allocatable resources, updated from the rows whose node object
changed.
"""

from __future__ import annotations

from koord.policy.quota.amount import Amounts, Counts, add_to
from koord.scheduler.state.node import PODS
from koord.scheduler.state.table import NodeTable


class Total:
    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self.position = -1  # in the log of changed nodes, up to which it holds
        self._rows: dict[int, Counts] = {}
        self._sum: Amounts = {}

    def refresh(self) -> Counts | None:
        """Return the new total, or None when it is unchanged."""
        changes = self._table.node_changes
        position = changes.position
        if position == self.position:
            return None
        rows = changes.since(self.position)
        self.position = position
        before = dict(self._sum)
        if rows is None:
            self._sum = {}
            self._rows = {}
        for row in range(self._table.size) if rows is None else rows:
            add_to(self._sum, self._rows.pop(row, {}), -1)
            node = self._table.nodes[row]
            if node is not None and node.node is not None:
                held = {**node.allocatable, PODS: node.allowed_pods}
                self._rows[row] = held
                add_to(self._sum, held)
        return dict(self._sum) if self._sum != before else None
