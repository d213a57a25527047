"""Accumulate CPUs from a pool: whole cores or one thread of each, close together, and apart where pods want
exclusivity.

The search goes from near to far: one NUMA node, one socket, several sockets, single CPUs anywhere. Which
NUMA nodes and which pool are decided before, in `allocator`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from koord.api.annotations.cpu_codecs import (
    CPU_BIND_FULL_PCPUS,
    CPU_EXCLUSIVE_NUMA_NODE_LEVEL,
    CPU_EXCLUSIVE_PCPU_LEVEL,
    NUMA_LEAST_ALLOCATED,
    NUMA_MOST_ALLOCATED,
)
from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuGroup, CpuTopology
from koord.scheduler.plugins.node_numa_resource.ledger import CpuPool
from koord.scheduler.plugins.node_numa_resource.refusal import NOT_ENOUGH_CPUS, NumaRefusal

_EXCLUSIVE_THEN_ANY = (True, False)


class CpuRequest(msgspec.Struct, frozen=True, gc=False):
    """A request for CPUs. Policies but FullPCPUs spread over cores; strategies but MostAllocated mean Least."""

    count: int
    policy: str = ""
    exclusive: str = ""
    strategy: str = NUMA_LEAST_ALLOCATED


def take_cpus(topology: CpuTopology, pool: CpuPool, want: CpuRequest) -> int | NumaRefusal:
    """Return the mask of the chosen CPUs; a sufficient number of CPUs always suffices, wherever they lie."""
    if want.count < 1:
        return 0
    if want.count > pool.available.bit_count():
        return NumaRefusal.unschedulable(NOT_ENOUGH_CPUS)
    search = _CpuAccumulator(topology, pool, want)
    full = want.policy == CPU_BIND_FULL_PCPUS
    if (full or topology.per_core == 1) and search.whole_cores():
        return search.taken
    if not full and search.spread_near():
        return search.taken
    search.anywhere()
    return search.taken


def take_preferred_cpus(topology: CpuTopology, pool: CpuPool, preferred: int, want: CpuRequest) -> int | NumaRefusal:
    """Take CPUs from the preferred ones first: those that a reservation holds for this pod."""
    first = pool.available & preferred
    if not first or want.count < 1:
        return take_cpus(topology, pool, want)
    near = min(want.count, first.bit_count())
    chosen = take_cpus(topology, pool.narrowed_to(first), msgspec.structs.replace(want, count=near))
    if isinstance(chosen, NumaRefusal) or near == want.count:
        return chosen
    rest = take_cpus(
        topology, pool.narrowed_to(pool.available & ~first), msgspec.structs.replace(want, count=want.count - near)
    )
    return rest if isinstance(rest, NumaRefusal) else chosen | rest


class _CpuAccumulator:
    """The state of one search: what is free, what is taken, how many are missing."""

    def __init__(self, topology: CpuTopology, pool: CpuPool, want: CpuRequest) -> None:
        self.topology = topology
        self.refcounts = pool.refcounts
        self.has_shared_cpus = pool.max_ref_count > 1
        # CPUs by how often they are held: a list of CPUs is in this order, then by number.
        self.by_reference_count = (
            pool.refcounts.by_reference_count(pool.max_ref_count) if self.has_shared_cpus else (-1,)
        )
        self.free = pool.available
        self.taken = 0
        self.missing = want.count
        self.sign = 1 if want.strategy == NUMA_MOST_ALLOCATED else -1  # fewest free first, or most free first
        self.exclusive = want.exclusive
        marked = {CPU_EXCLUSIVE_PCPU_LEVEL: pool.pcpu_exclusive, CPU_EXCLUSIVE_NUMA_NODE_LEVEL: pool.numa_exclusive}
        self.exclusive_cpus = marked.get(want.exclusive, 0)

    # What a pod that wants to be alone keeps away from: cores or NUMA nodes of others that want the same.

    def avoided_cores(self) -> int:
        return (
            self.topology.cpus_sharing_cores(self.exclusive_cpus)
            if self.exclusive == CPU_EXCLUSIVE_PCPU_LEVEL and self.exclusive_cpus
            else 0
        )

    def avoided_zones(self) -> int:
        return (
            self.topology.cpus_sharing_zones(self.exclusive_cpus)
            if self.exclusive == CPU_EXCLUSIVE_NUMA_NODE_LEVEL and self.exclusive_cpus
            else 0
        )

    def take(self, cpus: int) -> bool:
        """Take the CPUs and return whether nothing is missing any more."""
        self.taken |= cpus
        self.free &= ~cpus
        self.missing -= cpus.bit_count()
        if self.exclusive in (CPU_EXCLUSIVE_PCPU_LEVEL, CPU_EXCLUSIVE_NUMA_NODE_LEVEL):
            self.exclusive_cpus |= cpus
        return self.missing == 0

    # Whole cores.

    def whole_cores(self) -> bool:
        topology = self.topology
        if self.missing <= topology.per_zone:
            for stated in _EXCLUSIVE_THEN_ANY:
                free = self.free & ~self.avoided_zones() if stated else self.free
                for cores, size in self.zone_cores(free):
                    if size >= self.missing:
                        return self.take(self.first_of_cores(cores))
                if not self.exclusive_cpus:
                    break  # nothing was kept away from: the second look would see the same
        sockets = self.socket_cores()
        if self.missing <= topology.per_socket:
            for cores, size in sockets:
                if size >= self.missing:
                    return self.take(self.first_of_cores(cores))
        parked = []
        for cores, size in sorted(sockets, key=lambda listed: -listed[1]):
            if self.missing < size:
                parked.append((cores, size))
            elif self.take(sum(cores)):
                return True
        if self.missing >= topology.per_core:
            for cores, _ in sorted(parked, key=lambda listed: listed[1]):
                for core in cores:
                    if self.missing < max(topology.per_core, core.bit_count()):
                        break
                    if self.take(core):
                        return True
        return False

    def zone_cores(self, free: int) -> list[tuple[Sequence[int], int]]:
        listed = []
        socket_free = [(socket.cpus & free).bit_count() for socket in self.topology.sockets]
        for zone in self.topology.zones:
            cores, size = self.full_cores(zone, free)
            listed.append((self.sign * size, self.sign * socket_free[zone.socket], zone.number, cores, size))
        listed.sort(key=lambda row: row[:3])
        return [(cores, size) for _, _, _, cores, size in listed]

    def socket_cores(self) -> list[tuple[Sequence[int], int]]:
        listed = []
        for socket in self.topology.sockets:
            cores, size = self.full_cores(socket, self.free)
            listed.append((self.sign * size, socket.number, cores, size))
        listed.sort(key=lambda row: row[:2])
        return [(cores, size) for _, _, cores, size in listed]

    def full_cores(self, group: CpuGroup, free: int) -> tuple[Sequence[int], int]:
        """Return the free cores of a group, best first, and how many CPUs they have."""
        cores = [core for core in group.cores if core & free == core]
        size = sum(cores).bit_count()
        if self.has_shared_cpus:
            cores.sort(key=lambda core: (-core.bit_count(), self.refcounts.total_references(core)))
        elif size != len(cores) * self.topology.per_core:
            cores.sort(key=lambda core: -core.bit_count())
        return cores, size

    def first_of_cores(self, cores: Sequence[int]) -> int:
        """Return as many CPUs as are missing, core by core."""
        chosen, missing = 0, self.missing
        for core in cores:
            size = core.bit_count()
            if size >= missing:
                return chosen | lowest_cpus(core, missing)
            chosen |= core
            missing -= size
        return chosen

    # Single CPUs.

    def spread_near(self) -> bool:
        """Spread over the cores of one NUMA node, else of one socket; one CPU of each core when that is enough."""
        topology = self.topology
        for limit, groups, avoid_zones in (
            (topology.per_zone, topology.zones, True),
            (topology.per_socket, topology.sockets, False),
        ):
            if self.missing > limit:
                continue
            for stated in _EXCLUSIVE_THEN_ANY:
                free = self.free
                if stated:
                    free &= ~(self.avoided_cores() | (self.avoided_zones() if avoid_zones else 0))
                for group in self.groups_by_free(groups, free, by_zone=avoid_zones, one_per_core=stated):
                    inside = group.cpus & free
                    choice = self.one_per_core(group.cores, inside) if stated else inside
                    if choice.bit_count() >= self.missing:
                        return self.take(self.spread(group.cores, choice))
        return False

    def groups_by_free(
        self, groups: Sequence[CpuGroup], free: int, *, by_zone: bool, one_per_core: bool
    ) -> Iterable[CpuGroup]:
        """Order the groups: NUMA nodes by their free CPUs and their socket's; sockets by CPUs that would be listed."""
        sign = self.sign
        if by_zone:
            sockets = [(socket.cpus & free).bit_count() for socket in self.topology.sockets]
            return sorted(
                groups, key=lambda g: (sign * (g.cpus & free).bit_count(), sign * sockets[g.socket], g.number)
            )
        if one_per_core:
            return sorted(groups, key=lambda g: (sign * self.one_per_core(g.cores, free).bit_count(), g.number))
        return sorted(groups, key=lambda g: (sign * (g.cpus & free).bit_count(), g.number))

    def one_per_core(self, cores: Iterable[int], cpus: int) -> int:
        chosen = 0
        for core in cores:
            part = core & cpus
            if part:
                chosen |= self.first(part)
        return chosen

    def first(self, cpus: int) -> int:
        """Return the least referenced of the CPUs; of those the lowest."""
        for held in self.by_reference_count:
            part = cpus & held
            if part:
                return part & -part
        return 0

    def in_order(self, cpus: int, count: int) -> int:
        """Return that many CPUs, least referenced and then lowest first."""
        chosen = 0
        for held in self.by_reference_count:
            part = lowest_cpus(cpus & held, count)
            chosen |= part
            count -= part.bit_count()
        return chosen

    def spread(self, cores: Sequence[int], cpus: int) -> int:
        """Return as many CPUs as are missing: one of each core, then the next of each, and so on."""
        if cpus.bit_count() <= self.topology.per_core:
            return self.in_order(cpus, self.missing)
        chosen, missing = 0, self.missing
        while True:
            turn = self.one_per_core(cores, cpus)
            size = turn.bit_count()
            if size >= missing:
                return chosen | self.in_order(turn, missing)
            chosen |= turn
            cpus ^= turn
            missing -= size

    def anywhere(self) -> None:
        for stated in _EXCLUSIVE_THEN_ANY:
            free = self.free & ~(self.avoided_cores() | self.avoided_zones()) if stated else self.free
            rest = [part for core in self.ranked_cores(free) if (part := core & free)]
            if free.bit_count() <= self.topology.per_core:
                for part in rest:
                    if self.take(self.in_order(part, self.missing)):
                        return
                continue
            while rest:
                for place, part in enumerate(rest):
                    cpu = self.first(part)
                    if self.take(cpu):
                        return
                    rest[place] = part ^ cpu
                rest = [part for part in rest if part]
        raise AssertionError(f"{self.missing} CPUs are missing though there were enough")

    def ranked_cores(self, free: int) -> list[int]:
        """Rank cores: beside what is taken already, then by strategy, then partly used cores before free ones."""
        topology, sign, held, shared = self.topology, self.sign, self.refcounts, self.has_shared_cpus
        beside = [-(socket.cpus & self.taken).bit_count() for socket in topology.sockets]
        in_socket = [sign * (socket.cpus & free).bit_count() for socket in topology.sockets]
        in_zone = [sign * (zone.cpus & free).bit_count() for zone in topology.zones]
        ranked = []
        for place, core in enumerate(topology.cores):
            part = core & free
            if part:
                socket, zone = topology.core_sockets[place], topology.core_zones[place]
                refs = held.total_references(core) if shared else 0
                ranked.append(
                    (beside[socket], in_socket[socket], in_zone[zone], part.bit_count(), socket, refs, place, core)
                )
        ranked.sort()
        return [row[-1] for row in ranked]


def lowest_cpus(cpus: int, count: int) -> int:
    """Return the lowest `count` of the CPUs, or all when they are fewer."""
    if count >= cpus.bit_count():
        return cpus
    rest = cpus
    for _ in range(count):
        rest &= rest - 1
    return cpus ^ rest
