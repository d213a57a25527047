"""This module keeps as columns how many CPUs every node can still bind, and which nodes have a policy for all pods."""

from __future__ import annotations

import numpy as np

from koord.api.annotations.cpu_codecs import CPU_BIND_FULL_PCPUS, CPU_BIND_SPREAD_BY_PCPUS
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import Bools, Ints, NodeTable, Rows, grow_array
from koord.scheduler.framework.plugin import Codes
from koord.scheduler.plugins.node_numa_resource.available import free_cpu_pool
from koord.scheduler.plugins.node_numa_resource.cache import (
    NodeAllocation,
    NodeAllocationCache,
    NodeTopologyProfile,
    NodeTopologyProfiles,
)
from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuTopology

# The codes of the columns; 0 passes.
INVALID_TOPOLOGY, NOT_WHOLE_CORE_COUNT, TOO_FEW_CPUS = 1, 2, 3


class FreeCpuColumns:
    """Free CPUs per row. Rows follow the table's log of changes; a row with nothing changed costs little."""

    def __init__(self, table: NodeTable, profiles: NodeTopologyProfiles, cache: NodeAllocationCache) -> None:
        self._table = table
        self._profiles = profiles
        self._cache = cache
        self._position = -1
        self._seen: list[tuple[NodeTopologyProfile, NodeAllocation] | None] = []
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
                grow_array(column, table.size) for column in (self._free, self._whole, self._cores)
            )
            self.per_core, self.uneven = grow_array(self.per_core, table.size), grow_array(self.uneven, table.size)
            self._seen += [None] * (table.size - len(self._seen))
        nodes = table.nodes
        for row in range(table.size) if rows is None else rows:
            node = nodes[row]
            if node is None or node.node is None:
                self._seen[row] = None
            else:
                self._set(row, node)

    def _set(self, row: int, node: NodeInfo) -> None:
        profile = self._profiles.for_node(node)
        node_allocation = self._cache.node_allocation(profile, node.name)
        seen = self._seen[row]
        if seen is not None and seen[0] is profile and seen[1] is node_allocation:
            return
        self._seen[row] = (profile, node_allocation)
        topology = profile.topology.cpu
        if not isinstance(topology, CpuTopology):
            self.per_core[row] = 0
            return
        free = free_cpu_pool(profile.topology, node_allocation.ledger).available
        self.per_core[row] = topology.per_core
        self.uneven[row] = not profile.has_uniform_cores
        self._free[row] = free.bit_count()
        self._whole[row] = topology.full_core_cpus(free).bit_count()
        self._cores[row] = topology.one_per_core(free).bit_count()

    def codes(self, rows: Rows, count: int, must: str) -> Codes:
        """Return codes for a pod that binds so many CPUs, on rows where its own policy counts and cores are alike."""
        per_core = self.per_core[rows]
        room = (
            self._whole
            if must == CPU_BIND_FULL_PCPUS
            else self._cores
            if must == CPU_BIND_SPREAD_BY_PCPUS
            else self._free
        )
        codes = np.where(room[rows] < count, np.int32(TOO_FEW_CPUS), np.int32(0))
        if must == CPU_BIND_FULL_PCPUS:
            codes[count % np.maximum(per_core, 1) != 0] = NOT_WHOLE_CORE_COUNT
        codes[per_core == 0] = INVALID_TOPOLOGY
        return codes


class PolicyRows:
    """The rows that affect every pod. It is read for every pod, so it is cheap while no node or topology changes."""

    def __init__(self, table: NodeTable, profiles: NodeTopologyProfiles) -> None:
        self._table = table
        self._log = table.node_changes
        self._profiles = profiles
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
            self._rows = grow_array(self._rows, table.size)
        changed = self._log.since(self._position)
        self._position = self._log.position
        for row in range(table.size) if changed is None else changed:
            node = table.nodes[row]
            self._rows[row] = (
                node is not None and node.node is not None and self._profiles.for_node(node).concerns_all_pods
            )
        if changed is None or changed:
            self._any = bool(self._rows.any())
