"""A cheap bound on what a node can still bind, for a look at many nodes before CPUs are chosen on one."""

from __future__ import annotations

import msgspec

from koord.api.annotations.resource_spec import FULL_PCPUS, SPREAD_BY_PCPUS
from koord.policy.topology.cpu_topology import CpuTopology
from koord.policy.topology.ledger import Ledger
from koord.policy.topology.node import NodeTopology
from koord.policy.topology.stock import free_cpus


class Free(msgspec.Struct, frozen=True, gc=False):
    """Numbers of CPUs: all free ones, those on cores that are free whole, and one for each core with a free one."""

    cpus: int = 0
    on_whole_cores: int = 0
    cores: int = 0

    def fits(self, count: int, must: str) -> bool:
        if must == FULL_PCPUS:
            return count <= self.on_whole_cores
        return count <= (self.cores if must == SPREAD_BY_PCPUS else self.cpus)


class Room(msgspec.Struct, frozen=True):
    """Of a node, and of each of its NUMA nodes by number. `per_core` is 0 where CPUs cannot be bound."""

    total: Free
    zones: dict[int, Free]
    per_core: int = 0


NO_ROOM = Room(Free(), {})


def room(node: NodeTopology, ledger: Ledger) -> Room:
    """To be kept until the ledger or the topology changes."""
    topology = node.cpu
    if not isinstance(topology, CpuTopology):
        return NO_ROOM
    free = free_cpus(node, ledger).available
    whole, single = topology.whole_cores(free), topology.one_per_core(free)
    zones = {zone.number: _free(free & zone.cpus, whole & zone.cpus, single & zone.cpus) for zone in topology.zones}
    return Room(_free(free, whole, single), zones, topology.per_core)


def can_fit(there: Room, count: int, must: str = "", zone: int | None = None) -> bool:
    """Exact for a pod that no reservation keeps CPUs for: True says that CPUs will be found, False that they will not.

    `must` is the required policy, `zone` the one NUMA node that all CPUs shall come from.
    """
    if count <= 0:
        return True
    if not there.per_core or (must == FULL_PCPUS and count % there.per_core):
        return False
    free = there.total if zone is None else there.zones.get(zone, Free())
    return free.fits(count, must)


def _free(free: int, whole: int, single: int) -> Free:
    return Free(free.bit_count(), whole.bit_count(), single.bit_count())
