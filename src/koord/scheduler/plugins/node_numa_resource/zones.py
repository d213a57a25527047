"""ZoneColumns keeps the NUMA nodes of all nodes as columns, for pods that must fit into one NUMA node."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from koord.api.annotations import node_numa
from koord.api.annotations.numa_topology_spec import NONE, REQUIRED, SINGLE_NUMA_NODE
from koord.api.annotations.resource_spec import FULL_PCPUS, SPREAD_BY_PCPUS
from koord.policy.topology.cpu_topology import CpuTopology
from koord.policy.topology.ledger import SHARED
from koord.policy.topology.score import Scorer
from koord.policy.topology.stock import free_amounts, free_cpus
from koord.scheduler.framework.plugin import Scores
from koord.scheduler.plugins.node_numa_resource.book import Book
from koord.scheduler.plugins.node_numa_resource.books import Books, Sites
from koord.scheduler.plugins.node_numa_resource.demand import Demand
from koord.scheduler.plugins.node_numa_resource.site import Site
from koord.scheduler.plugins.node_numa_resource.totals import percent
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.table import Bools, Ints, NodeTable, Rows
from koord.values.resources import CPU

MOST_ZONES = 8
_ALL, _WHOLE, _CORES = range(3)
_KINDS = {FULL_PCPUS: _WHOLE, SPREAD_BY_PCPUS: _CORES}

Grid = npt.NDArray[np.int64]  # by place of the NUMA node, then by row


class ZoneRooms:
    """The columns of NUMA nodes. Rows follow the table's log of changes; slots beyond a node's last NUMA node are
    0.
    """

    def __init__(self, table: NodeTable, sites: Sites, books: Books) -> None:
        self._table = table
        self._sites = sites
        self._books = books
        self._position = -1
        self._seen: list[tuple[Site, Book] | None] = []
        self._places = 2
        self._there: dict[str, Grid] = {}  # by resource: what NUMA nodes have
        self._left: dict[str, Grid] = {}  # and what of it is not given away
        self._known: dict[str, Bools] = {}  # whether some NUMA node of a row lists it
        self._cpus: npt.NDArray[np.int64] = np.zeros((3, 2, 0), np.int64)  # free CPUs: all, on whole cores, one a core
        self._shared: npt.NDArray[np.bool_] = np.zeros((2, 0), np.bool_)
        self._held: Ints = np.zeros(0, np.int64)  # CPUs that somebody has, on the whole node
        self._simple: Bools = np.zeros(0, np.bool_)
        self._stated: Bools = np.zeros(0, np.bool_)  # it is the node's own policy

    def refresh(self, names: Collection[str]) -> None:
        """Update the columns of these resources."""
        table = self._table
        rows = table.changed_since(self._position)
        self._position = table.position
        if len(self._held) != table.size:
            self._resize(table.size)
            rows = None
        if any(name not in self._there for name in names):
            for name in names:
                self._there.setdefault(name, np.zeros((self._places, table.size), np.int64))
                self._left.setdefault(name, np.zeros((self._places, table.size), np.int64))
                self._known.setdefault(name, np.zeros(table.size, np.bool_))
            self._seen = [None] * table.size
            rows = None
        nodes = table.nodes
        for row in range(table.size) if rows is None else rows:
            node = nodes[row]
            if node is None or node.node is None:
                self._seen[row] = None
                self._simple[row] = False
            else:
                self._set(row, node)

    def _resize(self, size: int) -> None:
        """Make all columns anew, which is seldom."""
        self._there = {name: np.zeros((self._places, size), np.int64) for name in self._there}
        self._left = {name: np.zeros((self._places, size), np.int64) for name in self._left}
        self._known = {name: np.zeros(size, np.bool_) for name in self._known}
        self._cpus = np.zeros((3, self._places, size), np.int64)
        self._shared = np.zeros((self._places, size), np.bool_)
        self._held = np.zeros(size, np.int64)
        self._simple, self._stated = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        self._seen = [None] * size

    def _set(self, row: int, node: NodeInfo) -> None:
        site = self._sites.of(node)
        book = self._books.book(site, node.name)
        seen = self._seen[row]
        if seen is not None and seen[0] is site and seen[1] is book:
            return
        self._seen[row] = (site, book)
        self._simple[row] = simple = _is_simple(site)
        if not simple:
            return
        topology, ledger = site.topology, book.ledger
        assert isinstance(topology.cpu, CpuTopology)
        while len(topology.zones) > self._places:
            self._widen()
        self._stated[row] = topology.numa_policy == SINGLE_NUMA_NODE
        self._held[row] = ledger.held.held.bit_count()
        left = free_amounts(topology, ledger, {})
        free = free_cpus(topology, ledger).available
        kinds = (free, topology.cpu.whole_cores(free), topology.cpu.one_per_core(free))
        for place, zone in enumerate(topology.zones):
            mask = topology.cpu.zone_mask(zone.number)
            for kind, cpus in enumerate(kinds):
                self._cpus[kind, place, row] = (cpus & mask).bit_count()
            self._shared[place, row] = ledger.status(zone.number) == SHARED
        for name, grid in self._there.items():
            rest = self._left[name]
            self._known[name][row] = any(name in zone.amounts for zone in topology.zones)
            grid[:, row] = 0
            rest[:, row] = 0
            for place, zone in enumerate(topology.zones):
                grid[place, row] = zone.amounts.get(name, 0)
                rest[place, row] = left[zone.number].get(name, 0)
        if len(topology.zones) < self._places:
            self._cpus[:, len(topology.zones) :, row] = 0

    def _widen(self) -> None:
        self._places += 1
        self._there = {name: _taller(grid) for name, grid in self._there.items()}
        self._left = {name: _taller(grid) for name, grid in self._left.items()}
        self._cpus = np.concatenate([self._cpus, np.zeros((3, 1, self._cpus.shape[2]), np.int64)], axis=1)
        self._shared = np.concatenate([self._shared, np.zeros((1, self._shared.shape[1]), np.bool_)])

    # Asking ------------------------------------------------------------------------------------------------------

    def simple(self, rows: Rows, demand: Demand) -> Bools:
        """Return the rows on which the pod must fit into one NUMA node and numbers decide.

        Some requested resource must be listed by the NUMA nodes, and cpu if the pod's CPUs are bound.
        """
        known = np.zeros(len(self._simple[rows]), np.bool_)
        for name in demand.amounts:
            known |= self._known[name][rows]
        if demand.wish.binds:
            known &= self._known[CPU][rows]
        simple: Bools = self._simple[rows] & known
        return simple if demand.policy else simple & self._stated[rows]

    def fits(self, rows: Rows, demand: Demand) -> Bools:
        """Return per row whether some NUMA node takes the pod."""
        found: Bools = np.logical_or.reduce(self._takes(rows, demand), axis=0)
        return found

    def _takes(self, rows: Rows, demand: Demand) -> npt.NDArray[np.bool_]:
        wish = demand.wish
        takes: npt.NDArray[np.bool_] = np.ones(self._shared[:, rows].shape, np.bool_)
        for name, amount in demand.amounts.items():
            takes &= (self._left[name][:, rows] >= amount) | ~self._known[name][rows]
        if wish.binds:
            takes &= self._cpus[_KINDS.get(wish.required, _ALL)][:, rows] >= wish.count
        if demand.exclusive == REQUIRED:
            takes &= ~self._shared[:, rows]
        return takes

    def scores(self, rows: Rows, demand: Demand, zones: Scorer, nodes: Scorer) -> Scores:
        """Return the score of the NUMA node that is chosen, by the scorer of nodes; 0 where none takes the pod."""
        takes = self._takes(rows, demand)
        left_cpu = self._left_cpu(rows, demand)
        means = self._means(rows, demand, zones, left_cpu)
        chosen = np.argmax(np.where(takes, means, -1), axis=0)[np.newaxis]
        if demand.wish.binds:
            # CPUs that are bound anywhere on the node count as taken from this NUMA node.
            left_cpu = self._there[CPU][:, rows] - 1000 * self._held[rows]
        if demand.wish.binds or nodes != zones:
            means = self._means(rows, demand, nodes, left_cpu)
        scores: Scores = np.take_along_axis(means, chosen, axis=0)[0]
        return np.where(takes.any(axis=0), scores, 0)

    def _left_cpu(self, rows: Rows, demand: Demand) -> Grid:
        """Return the free cpu, no more than there are CPUs of the required kind."""
        left = self._left[CPU][:, rows]
        kind = _KINDS.get(demand.wish.required) if demand.wish.binds else None
        return left if kind is None else np.minimum(left, 1000 * self._cpus[kind][:, rows])

    def _means(self, rows: Rows, demand: Demand, scorer: Scorer, left_cpu: Grid) -> Grid:
        total: Grid = np.zeros(self._shared[:, rows].shape, np.int64)
        weights = np.zeros_like(total)
        for name, weight in scorer.counted(demand.amounts):
            there = self._there[name][:, rows]
            left = left_cpu if name == CPU else self._left[name][:, rows]
            share = percent(scorer, there, there - left, demand.amounts.get(name, 0)).astype(np.int64)
            total += share * weight
            weights += (there > 0) * weight
        found: Grid = total // np.maximum(weights, 1)
        return found


def _is_simple(site: Site) -> bool:
    topology = site.topology
    return (
        topology.numa_policy in (NONE, SINGLE_NUMA_NODE)
        and topology.bind_policy == node_numa.BIND_NONE
        and not topology.ratio_fault
        and (topology.ratio or 0) <= 1
        and (topology.node_ratio or 0) <= 1
        and topology.max_ref_count == 1
        and site.even
        and 1 < len(topology.zones) <= MOST_ZONES
    )


def _taller(grid: Grid) -> Grid:
    return np.concatenate([grid, np.zeros((1, grid.shape[1]), np.int64)])
