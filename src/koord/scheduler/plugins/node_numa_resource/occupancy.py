"""The CPU occupancy of one node for people: what the node is, and what its pods and reservations hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from koord.api.annotations.codec import MalformedAnnotation
from koord.scheduler.plugins.node_numa_resource.available import free_zone_amounts
from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuTopology
from koord.scheduler.plugins.node_numa_resource.ledger import Amounts, NumaAllocation, NumaLedger
from koord.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions
from koord.values.cpuset import CPUSet

FREE_CPU, RESERVED_CPU, CONTESTED_CPU = ".", "#", "!"
HOLDER_MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class CpuOccupant(msgspec.Struct, frozen=True, kw_only=True):
    """A pod or a reservation; an owner names the reservation that it lives in."""

    uid: str
    name: str
    given: NumaAllocation | MalformedAnnotation | None
    reservation: bool = False
    lives_in: str = ""


class CpuHolder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    mark: str
    name: str
    cpus: str
    count: int
    exclusive: str = ""
    reservation: bool = False
    zones: Mapping[int, Amounts] = {}


class ZoneOccupancy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One NUMA node. `cores` are the drawing: a mark for each CPU, core by core; `core_cpus` are the CPUs' numbers."""

    number: int
    sockets: tuple[int, ...]  # those that its cores lie on: one, but for machines that interleave
    cpus: str
    cores: tuple[str, ...]
    core_cpus: tuple[tuple[int, ...], ...]
    free: str
    amounts: Amounts = {}  # what the NUMA node can give
    left: Amounts = {}  # and what of it is not given away


class CpuOccupancy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The occupancy of one node. `flaws` lists everything about it that cannot be read or contradicts itself."""

    node: str
    bind_policy: str
    numa_policy: str
    kept: str  # CPUs that no pod is bound to, reserved by the kubelet or the node
    shared: str  # CPUs that are free for everybody without CPUs of its own
    zones: tuple[ZoneOccupancy, ...]
    holders: tuple[CpuHolder, ...]
    flaws: tuple[str, ...]


def cpu_occupancy(name: str, node: TopologyOptions, tenants: Iterable[CpuOccupant]) -> CpuOccupancy:
    held, flaws = _split_readable(tenants)
    flaws = [*node.unreadable, *flaws]
    by_uid = {tenant.uid: allocation for tenant, allocation in held}
    topology = node.cpu
    if not isinstance(topology, CpuTopology):
        flaws.insert(0, str(topology))
    marks: dict[int, str] = {}
    holders: list[CpuHolder] = []
    ledger = NumaLedger.build(topology)
    for place, (tenant, allocation) in enumerate(held):
        mark = HOLDER_MARKS[place] if place < len(HOLDER_MARKS) else "?"
        own = allocation.cpus.bits
        for other in held if tenant.reservation else ():
            if other[0].lives_in == tenant.uid:  # an owner's CPUs are drawn as the owner's
                own &= ~by_uid[other[0].uid].cpus.bits
        holders.append(_holder(mark, tenant, allocation))
        ledger = ledger.add(tenant.uid, msgspec.structs.replace(allocation, cpus=CPUSet(own)))
        for cpu in CPUSet(own):
            if cpu in marks:
                flaws.append(f"CPU {cpu} is held by {_holder_name(marks[cpu], holders)} and by {tenant.name}")
            marks[cpu] = CONTESTED_CPU if cpu in marks else mark
        flaws += _misplaced(tenant, allocation, node)
    return CpuOccupancy(
        node=name,
        bind_policy=node.bind_policy,
        numa_policy=node.numa_policy or "None",
        kept=str(CPUSet(node.reserved)),
        shared=str(CPUSet(node.bindable_cpus & ~ledger.refcounts.referenced)),
        zones=tuple(_zones(node, ledger, marks)),
        holders=tuple(holders),
        flaws=tuple(flaws),
    )


def _split_readable(tenants: Iterable[CpuOccupant]) -> tuple[list[tuple[CpuOccupant, NumaAllocation]], list[str]]:
    held, flaws = [], []
    for tenant in sorted(tenants, key=lambda one: (one.reservation, one.name)):
        if isinstance(tenant.given, MalformedAnnotation):
            flaws.append(f"{tenant.name}: {tenant.given}")
        elif tenant.given is not None:
            held.append((tenant, tenant.given))
    return held, flaws


def _holder(mark: str, tenant: CpuOccupant, allocation: NumaAllocation) -> CpuHolder:
    return CpuHolder(
        mark=mark,
        name=tenant.name,
        cpus=str(allocation.cpus),
        count=len(allocation.cpus),
        exclusive=allocation.exclusive,
        reservation=tenant.reservation,
        zones=allocation.zones,
    )


def _holder_name(mark: str, holders: Iterable[CpuHolder]) -> str:
    return next((holder.name for holder in holders if holder.mark == mark), "others")


def _misplaced(tenant: CpuOccupant, allocation: NumaAllocation, node: TopologyOptions) -> Iterator[str]:
    """List what was allocated and is not there, or must not be allocated (any more)."""
    if isinstance(node.cpu, CpuTopology):
        if gone := allocation.cpus.bits & ~node.cpu.cpus:
            yield f"{tenant.name} holds CPUs {CPUSet(gone)}, which the topology does not have"
        if kept := allocation.cpus.bits & node.reserved:
            yield f"{tenant.name} holds CPUs {CPUSet(kept)}, which are reserved"
    known = set(node.zone_numbers)
    yield from [
        f"{tenant.name} has amounts on NUMA node {n}, which is not there" for n in allocation.zones if n not in known
    ]


def _zones(node: TopologyOptions, ledger: NumaLedger, marks: Mapping[int, str]) -> Iterable[ZoneOccupancy]:
    topology = node.cpu
    left, amounts = free_zone_amounts(node, ledger, {}), {zone.number: zone.amounts for zone in node.zones}
    groups = {zone.number: zone for zone in topology.zones} if isinstance(topology, CpuTopology) else {}
    for number in sorted({*groups, *amounts}):
        group = groups.get(number)
        cpus = 0 if group is None else group.cpus
        cores = () if group is None else group.cores
        yield ZoneOccupancy(
            number=number,
            sockets=_sockets(topology, cpus) if isinstance(topology, CpuTopology) else (),
            cpus=str(CPUSet(cpus)),
            cores=tuple(_core_marks(core, node.reserved, marks) for core in cores),
            core_cpus=tuple(tuple(CPUSet(core)) for core in cores),
            free=str(CPUSet(cpus & node.bindable_cpus & ~ledger.refcounts.referenced)),
            amounts=amounts.get(number, {}),
            left=left.get(number, {}),
        )


def _sockets(topology: CpuTopology, cpus: int) -> tuple[int, ...]:
    return tuple(socket.number for socket in topology.sockets if socket.cpus & cpus)


def _core_marks(core: int, reserved: int, marks: Mapping[int, str]) -> str:
    kept = CPUSet(reserved)
    return "".join(marks.get(cpu) or (RESERVED_CPU if cpu in kept else FREE_CPU) for cpu in CPUSet(core))
