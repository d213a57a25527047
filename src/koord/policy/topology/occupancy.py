"""The CPU occupancy of one node for people: what the node is, and what its pods and reservations hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.api.annotations.codec import Malformed
from koord.policy.topology.cpu_topology import CpuTopology
from koord.policy.topology.ledger import Allocation, Amounts, Ledger
from koord.policy.topology.node import NodeTopology
from koord.policy.topology.stock import free_amounts
from koord.values.cpuset import CPUSet

FREE, KEPT, CONTESTED = ".", "#", "!"
MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A pod or a reservation; an owner names the reservation that it lives in."""

    uid: str
    name: str
    given: Allocation | Malformed | None
    reservation: bool = False
    lives_in: str = ""


class Holder(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    mark: str
    name: str
    cpus: str
    count: int
    exclusive: str = ""
    reservation: bool = False
    zones: Mapping[int, Amounts] = {}


class Zone(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One NUMA node. `cores` are the drawing: a mark for each CPU, core by core."""

    number: int
    cpus: str
    cores: tuple[str, ...]
    free: str
    amounts: Amounts = {}  # what the NUMA node can give
    left: Amounts = {}  # and what of it is not given away


class Occupancy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The occupancy of one node. `flaws` lists everything about it that cannot be read or contradicts itself."""

    node: str
    bind_policy: str
    numa_policy: str
    kept: str  # CPUs that no pod is bound to, reserved by the kubelet or the node
    shared: str  # CPUs that are free for everybody without CPUs of its own
    zones: tuple[Zone, ...]
    holders: tuple[Holder, ...]
    flaws: tuple[str, ...]


def occupancy(name: str, node: NodeTopology, tenants: Iterable[Tenant]) -> Occupancy:
    held, flaws = _read(tenants)
    flaws = [*node.ignored, *flaws]
    by_uid = {tenant.uid: allocation for tenant, allocation in held}
    topology = node.cpu
    if not isinstance(topology, CpuTopology):
        flaws.insert(0, str(topology))
    marks: dict[int, str] = {}
    holders: list[Holder] = []
    ledger = Ledger.over(topology)
    for place, (tenant, allocation) in enumerate(held):
        mark = MARKS[place] if place < len(MARKS) else "?"
        own = allocation.cpus.bits
        for other in held if tenant.reservation else ():
            if other[0].lives_in == tenant.uid:  # an owner's CPUs are drawn as the owner's
                own &= ~by_uid[other[0].uid].cpus.bits
        holders.append(_holder(mark, tenant, allocation))
        ledger = ledger.add(tenant.uid, msgspec.structs.replace(allocation, cpus=CPUSet(own)))
        for cpu in CPUSet(own):
            if cpu in marks:
                flaws.append(f"CPU {cpu} is held by {_named(marks[cpu], holders)} and by {tenant.name}")
            marks[cpu] = CONTESTED if cpu in marks else mark
        flaws += _misplaced(tenant, allocation, node)
    return Occupancy(
        node=name,
        bind_policy=node.bind_policy,
        numa_policy=node.numa_policy or "None",
        kept=str(CPUSet(node.reserved)),
        shared=str(CPUSet(node.usable & ~ledger.held.held)),
        zones=tuple(_zones(node, ledger, marks)),
        holders=tuple(holders),
        flaws=tuple(flaws),
    )


def _read(tenants: Iterable[Tenant]) -> tuple[list[tuple[Tenant, Allocation]], list[str]]:
    held, flaws = [], []
    for tenant in sorted(tenants, key=lambda one: (one.reservation, one.name)):
        if isinstance(tenant.given, Malformed):
            flaws.append(f"{tenant.name}: {tenant.given}")
        elif tenant.given is not None:
            held.append((tenant, tenant.given))
    return held, flaws


def _holder(mark: str, tenant: Tenant, allocation: Allocation) -> Holder:
    return Holder(
        mark=mark,
        name=tenant.name,
        cpus=str(allocation.cpus),
        count=len(allocation.cpus),
        exclusive=allocation.exclusive,
        reservation=tenant.reservation,
        zones=allocation.zones,
    )


def _named(mark: str, holders: Iterable[Holder]) -> str:
    return next((holder.name for holder in holders if holder.mark == mark), "others")


def _misplaced(tenant: Tenant, allocation: Allocation, node: NodeTopology) -> list[str]:
    """List what was allocated and is not there, or must not be allocated (any more)."""
    said = []
    if isinstance(node.cpu, CpuTopology):
        if gone := allocation.cpus.bits & ~node.cpu.cpus:
            said.append(f"{tenant.name} holds CPUs {CPUSet(gone)}, which the topology does not have")
        if kept := allocation.cpus.bits & node.reserved:
            said.append(f"{tenant.name} holds CPUs {CPUSet(kept)}, which are reserved")
    known = set(node.zone_numbers)
    said += [
        f"{tenant.name} has amounts on NUMA node {n}, which is not there" for n in allocation.zones if n not in known
    ]
    return said


def _zones(node: NodeTopology, ledger: Ledger, marks: Mapping[int, str]) -> Iterable[Zone]:
    topology = node.cpu
    left, amounts = free_amounts(node, ledger, {}), {zone.number: zone.amounts for zone in node.zones}
    groups = {zone.number: zone for zone in topology.zones} if isinstance(topology, CpuTopology) else {}
    for number in sorted({*groups, *amounts}):
        group = groups.get(number)
        cpus = 0 if group is None else group.cpus
        cores = () if group is None else tuple(_drawn(core, node.reserved, marks) for core in group.cores)
        yield Zone(
            number=number,
            cpus=str(CPUSet(cpus)),
            cores=cores,
            free=str(CPUSet(cpus & node.usable & ~ledger.held.held)),
            amounts=amounts.get(number, {}),
            left=left.get(number, {}),
        )


def _drawn(core: int, reserved: int, marks: Mapping[int, str]) -> str:
    kept = CPUSet(reserved)
    return "".join(marks.get(cpu) or (KEPT if cpu in kept else FREE) for cpu in CPUSet(core))
