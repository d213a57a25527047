"""ZoneColumns keeps the NUMA nodes of all nodes as columns, for pods that must fit into one NUMA node.

It says exactly what hints and their merging say where these come down to comparing numbers: nodes with a
few NUMA nodes, equal cores and no amplification. Other nodes (not in `decidable_rows`) are evaluated one by one.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from koord.api.annotations import cpu_codecs
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import Bools, Ints, NodeTable, Rows
from koord.scheduler.framework.plugin import Scores
from koord.scheduler.plugins.node_numa_resource.available import free_cpu_pool, free_zone_amounts
from koord.scheduler.plugins.node_numa_resource.cache import (
    NodeAllocation,
    NodeAllocationCache,
    NodeTopologyProfile,
    NodeTopologyProfiles,
)
from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuTopology
from koord.scheduler.plugins.node_numa_resource.cycle_state import MAX_NUMA_SCORE, NumaScorer
from koord.scheduler.plugins.node_numa_resource.demand import NumaDemand
from koord.scheduler.plugins.node_numa_resource.ledger import SHARED
from koord.scheduler.plugins.node_resources.allocation_columns import EXACT_FLOAT_LIMIT
from koord.values.resources import CPU

Floats = npt.NDArray[np.float64]


def zone_percent(scorer: NumaScorer, there: Ints, taken: Ints, asked: int) -> Floats:
    """Return the free or used percentage truncated to integers; 0 where there is no capacity."""
    part = np.minimum(taken + asked, there) if scorer.packs else np.maximum(there - taken - asked, 0)
    return _floor_percent(part, _divisor(there))


def _divisor(there: Ints) -> Ints | Floats:
    """Return the divisor as floats, which are much faster, where these are exact."""
    divisor: Ints = np.maximum(there, 1)
    return divisor.astype(np.float64) if not there.size or int(there.max()) <= EXACT_FLOAT_LIMIT else divisor


def _floor_percent(part: Ints, divisor: Ints | Floats) -> Floats:
    """Compute the percentage in place: `part` is changed."""
    part *= MAX_NUMA_SCORE
    if divisor.dtype != np.float64:
        return (part // divisor).astype(np.float64)
    share: Floats = part / divisor
    return np.floor(share, out=share)


MAX_ZONES = 8
_ALL_CPUS, _WHOLE_CORE_CPUS, _ONE_CPU_PER_CORE = range(3)
_CPU_KINDS = {
    cpu_codecs.CPU_BIND_FULL_PCPUS: _WHOLE_CORE_CPUS,
    cpu_codecs.CPU_BIND_SPREAD_BY_PCPUS: _ONE_CPU_PER_CORE,
}

ZoneGrid = npt.NDArray[np.int64]  # by place of the NUMA node, then by row


class ZoneColumns:
    """The columns of NUMA nodes. Rows follow the table's log of changes; slots beyond a node's last NUMA node are 0."""

    def __init__(self, table: NodeTable, profiles: NodeTopologyProfiles, cache: NodeAllocationCache) -> None:
        self._table = table
        self._profiles = profiles
        self._cache = cache
        self._position = -1
        self._seen: list[tuple[NodeTopologyProfile, NodeAllocation] | None] = []
        self._zone_slots = 2
        self._capacity: dict[str, ZoneGrid] = {}  # by resource: what NUMA nodes have
        self._free: dict[str, ZoneGrid] = {}  # and what of it is not given away
        self._listed: dict[str, Bools] = {}  # whether some NUMA node of a row lists it
        self._cpus: npt.NDArray[np.int64] = np.zeros((3, 2, 0), np.int64)  # free CPUs: all, on whole cores, one a core
        self._shared: npt.NDArray[np.bool_] = np.zeros((2, 0), np.bool_)
        self._bound_cpus: Ints = np.zeros(0, np.int64)  # CPUs that somebody has, on the whole node
        self._decidable: Bools = np.zeros(0, np.bool_)
        self._single_numa_policy: Bools = np.zeros(0, np.bool_)  # it is the node's own policy

    def refresh(self, names: Collection[str]) -> None:
        """Update the columns of these resources."""
        table = self._table
        rows = table.changed_since(self._position)
        self._position = table.position
        if len(self._bound_cpus) != table.size:
            self._resize(table.size)
            rows = None
        if any(name not in self._capacity for name in names):
            for name in names:
                self._capacity.setdefault(name, np.zeros((self._zone_slots, table.size), np.int64))
                self._free.setdefault(name, np.zeros((self._zone_slots, table.size), np.int64))
                self._listed.setdefault(name, np.zeros(table.size, np.bool_))
            self._seen = [None] * table.size
            rows = None
        nodes = table.nodes
        for row in range(table.size) if rows is None else rows:
            node = nodes[row]
            if node is None or node.node is None:
                self._seen[row] = None
                self._decidable[row] = False
            else:
                self._set(row, node)

    def _resize(self, size: int) -> None:
        """Make all columns anew, which is seldom."""
        self._capacity = {name: np.zeros((self._zone_slots, size), np.int64) for name in self._capacity}
        self._free = {name: np.zeros((self._zone_slots, size), np.int64) for name in self._free}
        self._listed = {name: np.zeros(size, np.bool_) for name in self._listed}
        self._cpus = np.zeros((3, self._zone_slots, size), np.int64)
        self._shared = np.zeros((self._zone_slots, size), np.bool_)
        self._bound_cpus = np.zeros(size, np.int64)
        self._decidable, self._single_numa_policy = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        self._seen = [None] * size

    def _set(self, row: int, node: NodeInfo) -> None:
        profile = self._profiles.for_node(node)
        node_allocation = self._cache.node_allocation(profile, node.name)
        seen = self._seen[row]
        if seen is not None and seen[0] is profile and seen[1] is node_allocation:
            return
        self._seen[row] = (profile, node_allocation)
        self._decidable[row] = simple = _is_simple(profile)
        if not simple:
            return
        topology, ledger = profile.topology, node_allocation.ledger
        assert isinstance(topology.cpu, CpuTopology)
        while len(topology.zones) > self._zone_slots:
            self._widen()
        self._single_numa_policy[row] = topology.numa_policy == cpu_codecs.NUMA_POLICY_SINGLE_NUMA_NODE
        self._bound_cpus[row] = ledger.refcounts.referenced.bit_count()
        left = free_zone_amounts(topology, ledger, {})
        free = free_cpu_pool(topology, ledger).available
        kinds = (free, topology.cpu.full_core_cpus(free), topology.cpu.one_per_core(free))
        for place, zone in enumerate(topology.zones):
            mask = topology.cpu.zone_mask(zone.number)
            for kind, cpus in enumerate(kinds):
                self._cpus[kind, place, row] = (cpus & mask).bit_count()
            self._shared[place, row] = ledger.zone_status(zone.number) == SHARED
        for name, grid in self._capacity.items():
            rest = self._free[name]
            self._listed[name][row] = any(name in zone.amounts for zone in topology.zones)
            grid[:, row] = 0
            rest[:, row] = 0
            for place, zone in enumerate(topology.zones):
                grid[place, row] = zone.amounts.get(name, 0)
                rest[place, row] = left[zone.number].get(name, 0)
        if len(topology.zones) < self._zone_slots:
            self._cpus[:, len(topology.zones) :, row] = 0

    def _widen(self) -> None:
        self._zone_slots += 1
        self._capacity = {name: _with_one_more_zone(grid) for name, grid in self._capacity.items()}
        self._free = {name: _with_one_more_zone(grid) for name, grid in self._free.items()}
        self._cpus = np.concatenate([self._cpus, np.zeros((3, 1, self._cpus.shape[2]), np.int64)], axis=1)
        self._shared = np.concatenate([self._shared, np.zeros((1, self._shared.shape[1]), np.bool_)])

    # Asking ------------------------------------------------------------------------------------------------------

    def decidable_rows(self, rows: Rows, demand: NumaDemand) -> Bools:
        """Return the rows on which the pod must fit into one NUMA node and numbers decide.

        Some requested resource must be listed by the NUMA nodes, and cpu if the pod's CPUs are bound.
        """
        known = np.zeros(len(self._decidable[rows]), np.bool_)
        for name in demand.amounts:
            known |= self._listed[name][rows]
        if demand.wish.binds:
            known &= self._listed[CPU][rows]
        simple: Bools = self._decidable[rows] & known
        return simple if demand.policy else simple & self._single_numa_policy[rows]

    def fits(self, rows: Rows, demand: NumaDemand) -> Bools:
        """Return per row whether some NUMA node takes the pod."""
        found: Bools = np.logical_or.reduce(self._zones_that_fit(rows, demand), axis=0)
        return found

    def _zones_that_fit(self, rows: Rows, demand: NumaDemand) -> npt.NDArray[np.bool_]:
        wish = demand.wish
        takes: npt.NDArray[np.bool_] = np.ones(self._shared[:, rows].shape, np.bool_)
        for name, amount in demand.amounts.items():
            takes &= (self._free[name][:, rows] >= amount) | ~self._listed[name][rows]
        if wish.binds:
            takes &= self._cpus[_CPU_KINDS.get(wish.required, _ALL_CPUS)][:, rows] >= wish.count
        if demand.exclusive == cpu_codecs.NUMA_EXCLUSIVE_REQUIRED:
            takes &= ~self._shared[:, rows]
        return takes

    def scores(self, rows: Rows, demand: NumaDemand, zones: NumaScorer, nodes: NumaScorer) -> Scores:
        """Return the score of the NUMA node that is chosen, by the scorer of nodes; 0 where none takes the pod."""
        takes = self._zones_that_fit(rows, demand)
        left_cpu = self._left_cpu(rows, demand)
        means = self._means(rows, demand, zones, left_cpu)
        chosen = np.argmax(np.where(takes, means, -1), axis=0)[np.newaxis]
        if demand.wish.binds:
            # CPUs that are bound anywhere on the node count as taken from this NUMA node.
            left_cpu = self._capacity[CPU][:, rows] - 1000 * self._bound_cpus[rows]
        if demand.wish.binds or nodes != zones:
            means = self._means(rows, demand, nodes, left_cpu)
        scores: Scores = np.take_along_axis(means, chosen, axis=0)[0]
        return np.where(takes.any(axis=0), scores, 0)

    def _left_cpu(self, rows: Rows, demand: NumaDemand) -> ZoneGrid:
        """Return the free cpu, no more than there are CPUs of the required kind."""
        left = self._free[CPU][:, rows]
        kind = _CPU_KINDS.get(demand.wish.required) if demand.wish.binds else None
        return left if kind is None else np.minimum(left, 1000 * self._cpus[kind][:, rows])

    def _means(self, rows: Rows, demand: NumaDemand, scorer: NumaScorer, left_cpu: ZoneGrid) -> ZoneGrid:
        total: ZoneGrid = np.zeros(self._shared[:, rows].shape, np.int64)
        weights = np.zeros_like(total)
        for name, weight in scorer.weighted_resources(demand.amounts):
            there = self._capacity[name][:, rows]
            left = left_cpu if name == CPU else self._free[name][:, rows]
            share = zone_percent(scorer, there, there - left, demand.amounts.get(name, 0)).astype(np.int64)
            total += share * weight
            weights += (there > 0) * weight
        found: ZoneGrid = total // np.maximum(weights, 1)
        return found


def _is_simple(profile: NodeTopologyProfile) -> bool:
    topology = profile.topology
    return (
        topology.numa_policy in (cpu_codecs.NUMA_POLICY_NONE, cpu_codecs.NUMA_POLICY_SINGLE_NUMA_NODE)
        and topology.bind_policy == cpu_codecs.NODE_BIND_NONE
        and not topology.ratio_error
        and (topology.ratio or 0) <= 1
        and (topology.node_ratio or 0) <= 1
        and topology.max_ref_count == 1
        and profile.has_uniform_cores
        and 1 < len(topology.zones) <= MAX_ZONES
    )


def _with_one_more_zone(grid: ZoneGrid) -> ZoneGrid:
    return np.concatenate([grid, np.zeros((1, grid.shape[1]), np.int64)])
