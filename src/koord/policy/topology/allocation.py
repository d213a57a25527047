"""Allocate NUMA amounts and CPUs to one pod, or say why not. The NUMA nodes (the mask) are chosen before."""

from __future__ import annotations

from koord.api.annotations.resource_spec import FULL_PCPUS
from koord.policy.topology.accumulator import Want, take_preferring
from koord.policy.topology.binding import Binding
from koord.policy.topology.cpu_topology import CpuTopology, Invalid
from koord.policy.topology.distribution import cpu_step, distribute
from koord.policy.topology.ledger import Allocation, Ledger, ZoneAmounts
from koord.policy.topology.node import NodeTopology
from koord.policy.topology.refusal import (
    INVALID_CPU_TOPOLOGY,
    NO_NUMA_ON_MASK,
    NOT_ENOUGH_CPUS,
    Short,
    policy_not_met,
)
from koord.policy.topology.request import Request
from koord.policy.topology.stock import Stock, take_stock
from koord.values.bitmask import BitMask
from koord.values.cpuset import CPUSet
from koord.values.resources import CPU


def allocate(node: NodeTopology, ledger: Ledger, request: Request, mask: BitMask | None = None) -> Allocation | Short:
    """Allocate on the node. With `mask` None no NUMA amounts are given, and CPUs may lie anywhere."""
    return allocate_from(node, take_stock(node, ledger, request), request, mask)


def allocate_from(
    node: NodeTopology, stock: Stock, request: Request, mask: BitMask | None = None
) -> Allocation | Short:
    """Allocate as `allocate` does, with the available resources computed once for many masks."""
    zones: ZoneAmounts = {}
    binding = request.binding
    per_core = node.cpu.per_core if isinstance(node.cpu, CpuTopology) else 1
    if mask is not None:
        if not node.zones:
            return Short.finally_(NO_NUMA_ON_MASK)
        step = cpu_step(request.must, binds=binding is not None, per_core=per_core)
        # A pod that binds is divided by what it states, not by what its CPUs count for on an amplified node.
        divided = distribute(request.amounts, stock.zones, mask, cpu_step=step)
        if isinstance(divided, Short):
            return divided
        zones = divided
    if binding is None:
        return Allocation(zones=zones)
    if isinstance(node.cpu, Invalid):
        return Short.finally_(INVALID_CPU_TOPOLOGY)
    cpus = _bound(node.cpu, stock, request, binding, zones, node.strategy)
    if isinstance(cpus, Short):
        return cpus
    return Allocation(cpus=CPUSet(cpus), exclusive=binding.exclusive, zones=zones)


def fits(node: NodeTopology, stock: Stock, request: Request, mask: BitMask) -> bool:
    """Return whether `allocate_from` would succeed, from counts where they suffice.

    CPUs are never short when enough are counted, and the ones left to a required policy are all of its kind.
    """
    binding, topology = request.binding, node.cpu
    kept = request.preferred | request.promised
    if isinstance(topology, Invalid) or (binding is not None and binding.required and (kept or not topology.even)):
        return not isinstance(allocate_from(node, stock, request, mask), Short)
    step = cpu_step(request.must, binds=binding is not None, per_core=topology.per_core)
    zones = distribute(request.amounts, stock.zones, mask, cpu_step=step) if node.zones else None
    if zones is None or isinstance(zones, Short):
        return False
    if binding is None:
        return True
    free, found = stock.pool.available, binding.count
    if zones:
        found = sum(
            min((free & topology.zone_mask(number)).bit_count(), amounts.get(CPU, 0) // 1000)
            for number, amounts in zones.items()
        )
    whole = request.must != FULL_PCPUS or binding.count % topology.per_core == 0
    return whole and found == binding.count <= free.bit_count()


def designated(node: NodeTopology, ledger: Ledger, request: Request, given: Allocation) -> Allocation | Short:
    """Allocate exactly what the pod was assigned earlier, if that is still possible."""
    mask = BitMask.of(*given.zones) if given.zones else None
    again = Request(
        amounts=request.amounts,
        binding=request.binding,
        promised=given.cpus.bits,
        reusable=request.reusable,
        confined=given.zones,
    )
    found = allocate(node, ledger, again, mask)
    if not isinstance(found, Short) and found.cpus != given.cpus:
        return Short.of(NOT_ENOUGH_CPUS)
    return found


def _bound(
    topology: CpuTopology, stock: Stock, request: Request, binding: Binding, zones: ZoneAmounts, strategy: str
) -> int | Short:
    pool, count = stock.pool, binding.count
    if pool.available.bit_count() < count:
        return Short.of(NOT_ENOUGH_CPUS)
    chosen = 0
    if zones:
        for number, amounts in sorted(zones.items()):
            inside = pool.available & topology.zone_mask(number)
            part = min(inside.bit_count(), amounts.get(CPU, 0) // 1000)
            want = Want(part, binding.policy, binding.exclusive, strategy)
            taken = take_preferring(topology, pool.of(inside), request.preferred | request.promised, want)
            if isinstance(taken, Short):
                return taken
            chosen |= taken
        if chosen.bit_count() != count:
            return Short.of(NOT_ENOUGH_CPUS)
    else:
        want = Want(count, binding.policy, binding.exclusive, strategy)
        taken = take_preferring(topology, pool, request.preferred | request.promised, want)
        if isinstance(taken, Short):
            return taken
        chosen = taken
    if binding.required:
        cores = topology.core_count(chosen)
        per_core = topology.per_core if binding.policy == FULL_PCPUS else 1
        if cores * per_core != count:
            return Short.of(policy_not_met(binding.policy))
    return chosen
