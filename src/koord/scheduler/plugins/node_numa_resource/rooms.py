"""This module keeps as columns how many CPUs every node can still bind, and which nodes have a policy for all
pods.
"""

from __future__ import annotations

import numpy as np

from koord.api.annotations.resource_spec import FULL_PCPUS, SPREAD_BY_PCPUS
from koord.policy.topology.cpu_topology import CpuTopology
from koord.policy.topology.stock import free_cpus
from koord.scheduler.framework.plugin import Codes
from koord.scheduler.plugins.node_numa_resource.book import Book
from koord.scheduler.plugins.node_numa_resource.books import Books, Sites
from koord.scheduler.plugins.node_numa_resource.site import Site
from koord.scheduler.state.column import grown
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.table import Bools, Ints, NodeTable, Rows

# The codes of the columns; 0 passes.
INVALID, NOT_WHOLE, NOT_ENOUGH = 1, 2, 3


class Rooms:
    """Free CPUs per row. Rows follow the table's log of changes; a row with unchanged profile and allocation costs
    little.
    """

    def __init__(self, table: NodeTable, sites: Sites, books: Books) -> None:
        self._table = table
        self._sites = sites
        self._books = books
        self._position = -1
        self._seen: list[tuple[Site, Book] | None] = []
        self._free: Ints = np.zeros(0, np.int64)  # unallocated CPUs
        self._whole: Ints = np.zeros(0, np.int64)  # of these, on cores that are free whole
        self._cores: Ints = np.zeros(0, np.int64)  # cores with a free CPU
        self.per_core: Ints = np.zeros(0, np.int64)  # CPUs per core; 0: the CPU topology is unknown
        self.uneven: Bools = np.zeros(0, np.bool_)

    def refresh(self) -> None:
        table = self._table
        rows = table.changed_since(self._position)
        self._position = table.position
        if len(self._free) != table.size:
            self._free, self._whole, self._cores = (
                grown(column, table.size) for column in (self._free, self._whole, self._cores)
            )
            self.per_core, self.uneven = grown(self.per_core, table.size), grown(self.uneven, table.size)
            self._seen += [None] * (table.size - len(self._seen))
        nodes = table.nodes
        for row in range(table.size) if rows is None else rows:
            node = nodes[row]
            if node is None or node.node is None:
                self._seen[row] = None
            else:
                self._set(row, node)

    def _set(self, row: int, node: NodeInfo) -> None:
        site = self._sites.of(node)
        book = self._books.book(site, node.name)
        seen = self._seen[row]
        if seen is not None and seen[0] is site and seen[1] is book:
            return
        self._seen[row] = (site, book)
        topology = site.topology.cpu
        if not isinstance(topology, CpuTopology):
            self.per_core[row] = 0
            return
        free = free_cpus(site.topology, book.ledger).available
        self.per_core[row] = topology.per_core
        self.uneven[row] = not site.even
        self._free[row] = free.bit_count()
        self._whole[row] = topology.whole_cores(free).bit_count()
        self._cores[row] = topology.one_per_core(free).bit_count()

    def codes(self, rows: Rows, count: int, must: str) -> Codes:
        """Return codes for a pod that binds so many CPUs, on rows where its own policy counts and cores are alike."""
        per_core = self.per_core[rows]
        room = self._whole if must == FULL_PCPUS else self._cores if must == SPREAD_BY_PCPUS else self._free
        codes = np.where(room[rows] < count, np.int32(NOT_ENOUGH), np.int32(0))
        if must == FULL_PCPUS:
            codes[count % np.maximum(per_core, 1) != 0] = NOT_WHOLE
        codes[per_core == 0] = INVALID
        return codes
