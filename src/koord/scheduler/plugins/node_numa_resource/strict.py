"""Which nodes ask something of every pod: those with a policy of their own, or larger on paper than they are."""

from __future__ import annotations

import numpy as np

from koord.scheduler.plugins.node_numa_resource.books import Books, Sites
from koord.scheduler.state.column import grown
from koord.scheduler.state.table import Bools, NodeTable


class StrictRows:
    """Asked for every pod, so it costs nothing while neither node objects nor topologies change."""

    def __init__(self, table: NodeTable, sites: Sites, books: Books) -> None:
        self._table = table
        self._sites = sites
        self._logs = (table.node_changes, books.described)
        self._seen = (-1, -1)
        self._rows: Bools = np.zeros(0, np.bool_)
        self._count = 0

    def any(self) -> bool:
        self._refresh()
        return self._count > 0

    def column(self) -> Bools:
        self._refresh()
        return self._rows

    def _refresh(self) -> None:
        table, (nodes, topologies) = self._table, self._logs
        seen = (nodes.position, topologies.position)
        if seen == self._seen and len(self._rows) == table.size:
            return
        if len(self._rows) != table.size:
            self._rows = grown(self._rows, table.size)
        changed, described = nodes.since(self._seen[0]), topologies.since(self._seen[1])
        self._seen = seen
        for row in range(table.size) if changed is None or described is None else (*changed, *described):
            node = table.nodes[row]
            strict = node is not None and node.node is not None and self._sites.of(node).strict
            self._count += int(strict) - int(self._rows[row])
            self._rows[row] = strict
