"""A cheap bound on what a node can still bind, for a look at many nodes before CPUs are chosen on one."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations.numa_topology_spec import REQUIRED
from koord.api.annotations.resource_spec import FULL_PCPUS, SPREAD_BY_PCPUS
from koord.policy.topology.cpu_topology import CpuTopology
from koord.policy.topology.ledger import IDLE, SHARED, Amounts, Ledger
from koord.policy.topology.node import NodeTopology
from koord.policy.topology.stock import free_amounts, free_cpus


class Free(msgspec.Struct, frozen=True, gc=False):
    """Numbers of free CPUs: all, those on cores that are fully free, and one for each core with a free CPU."""

    cpus: int = 0
    on_whole_cores: int = 0
    cores: int = 0

    def fits(self, count: int, must: str) -> bool:
        if must == FULL_PCPUS:
            return count <= self.on_whole_cores
        return count <= (self.cores if must == SPREAD_BY_PCPUS else self.cpus)


class ZoneRoom(msgspec.Struct, frozen=True):
    free: Free
    amounts: Amounts  # what is free, with bound CPUs amplified
    status: str


class Room(msgspec.Struct, frozen=True):
    """Free counts of a node and of each NUMA node. `per_core` is 0 where CPUs cannot be bound."""

    total: Free
    zones: Mapping[int, ZoneRoom]
    per_core: int = 0
    known: frozenset[str] = frozenset()


def room(node: NodeTopology, ledger: Ledger) -> Room:
    """Summarize what is free. The result is valid until the ledger or the topology changes."""
    topology = node.cpu
    left = free_amounts(node, ledger, {})
    known = frozenset(name for zone in node.zones for name in zone.amounts)
    if not isinstance(topology, CpuTopology):
        return Room(Free(), {n: ZoneRoom(Free(), amounts, IDLE) for n, amounts in left.items()}, known=known)
    free = free_cpus(node, ledger).available
    whole, single = topology.whole_cores(free), topology.one_per_core(free)
    zones = {}
    for number in {*left, *topology.zone_masks}:
        cpus = topology.zone_mask(number)
        inside = _free(free & cpus, whole & cpus, single & cpus)
        zones[number] = ZoneRoom(inside, left.get(number, {}), ledger.status(number))
    return Room(_free(free, whole, single), zones, topology.per_core, known)


def can_fit(there: Room, count: int, must: str = "", zone: int | None = None) -> bool:
    """Return whether CPUs will be found, for a pod without reserved CPUs. Exact where all cores are alike.

    `must` is the required policy, `zone` the one NUMA node that all CPUs shall come from.
    """
    if count <= 0:
        return True
    if not there.per_core or (must == FULL_PCPUS and count % there.per_core):
        return False
    if zone is None:
        return there.total.fits(count, must)
    found = there.zones.get(zone)
    return found is not None and found.free.fits(count, must)


def can_fit_one_zone(there: Room, amounts: Amounts, *, count: int = 0, must: str = "", exclusive: str = "") -> bool:
    """Return whether SingleNUMANode would admit the pod to some NUMA node: the same answer as hints give, without
    them.
    """
    asked = [(name, amount) for name, amount in amounts.items() if amount > 0 and name in there.known]
    if not asked:
        return can_fit(there, count, must)
    return any(
        all(amount <= zone.amounts.get(name, 0) for name, amount in asked)
        and can_fit(there, count, must, number)
        and not (exclusive == REQUIRED and zone.status == SHARED)
        for number, zone in there.zones.items()
    )


def _free(free: int, whole: int, single: int) -> Free:
    return Free(free.bit_count(), whole.bit_count(), single.bit_count())
