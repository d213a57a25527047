"""This module finds the nodes that affect every pod: those with a policy of their own or amplified resources."""

from __future__ import annotations

import numpy as np

from koord.scheduler.plugins.node_numa_resource.books import Sites
from koord.scheduler.state.column import grown
from koord.scheduler.state.table import Bools, NodeTable


class StrictRows:
    """The rows that affect every pod. It is read for every pod, so it is cheap while no node or topology changes."""

    def __init__(self, table: NodeTable, sites: Sites) -> None:
        self._table = table
        self._log = table.node_changes
        self._sites = sites
        self._position = -1
        self._rows: Bools = np.zeros(0, np.bool_)
        self._any = False

    def any(self) -> bool:
        if self._position != self._log.position:
            self._refresh()
        return self._any

    def column(self) -> Bools:
        self._refresh()
        return self._rows

    def _refresh(self) -> None:
        table = self._table
        if len(self._rows) != table.size:
            self._rows = grown(self._rows, table.size)
        changed = self._log.since(self._position)
        self._position = self._log.position
        for row in range(table.size) if changed is None else changed:
            node = table.nodes[row]
            self._rows[row] = node is not None and node.node is not None and self._sites.of(node).strict
        if changed is None or changed:
            self._any = bool(self._rows.any())
