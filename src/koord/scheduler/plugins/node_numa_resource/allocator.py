"""Allocate NUMA amounts and CPUs to one pod on chosen NUMA nodes, or say why not."""

from __future__ import annotations

from collections.abc import Iterable

from koord.api.annotations.cpu_codecs import CPU_BIND_FULL_PCPUS
from koord.scheduler.plugins.node_numa_resource import refusal
from koord.scheduler.plugins.node_numa_resource.available import AvailableResources, available_resources
from koord.scheduler.plugins.node_numa_resource.cpu_accumulator import CpuRequest, take_preferred_cpus
from koord.scheduler.plugins.node_numa_resource.cpu_binding import CpuBinding, NumaRequest
from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuTopology, InvalidCpuTopology
from koord.scheduler.plugins.node_numa_resource.ledger import Amounts, NumaAllocation, NumaLedger, ZoneAmounts
from koord.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions
from koord.values.bitmask import BitMask
from koord.values.cpuset import CPUSet
from koord.values.resources import CPU


def distribute_over_zones(
    amounts: Amounts, available: ZoneAmounts, zones: Iterable[int], *, cpu_step: int
) -> dict[int, Amounts] | refusal.NumaRefusal:
    """Divide a pod's amounts over NUMA nodes: evenly, the tightest first. What no NUMA node has is not refused."""
    chosen = [zone for zone in zones if zone in available]
    given: dict[int, dict[str, int]] = {zone: {} for zone in sorted(chosen)}
    missing = []
    for name, asked in sorted(amounts.items()):
        if asked <= 0 or not any(name in known for known in available.values()):
            continue
        left, step = asked, cpu_step if name == CPU else 1
        there = {zone: available[zone].get(name, 0) for zone in chosen}
        order = sorted(chosen, key=lambda zone: (there[zone], zone))
        for place, zone in enumerate(order):
            share = left // step // (len(order) - place) * step
            part = min(share, there[zone] // step * step)
            if part:
                given[zone][name] = part
                left -= part
        if left:
            missing.append(refusal.insufficient_numa(name))
    if missing:
        return refusal.NumaRefusal(tuple(missing))
    return {zone: parts for zone, parts in given.items() if parts}


def cpu_step_milli(must: str, *, binds: bool, per_core: int) -> int:
    """Return the portion in which cpu is divided, in milli-cores."""
    if not binds:
        return 1
    return 1000 * max(per_core, 1) if must == CPU_BIND_FULL_PCPUS else 1000


def allocate_numa(
    node: TopologyOptions, ledger: NumaLedger, request: NumaRequest, mask: BitMask | None = None
) -> NumaAllocation | refusal.NumaRefusal:
    """Allocate on the node. With `mask` None no NUMA amounts are given, and CPUs may lie anywhere."""
    return allocate_from_available(node, available_resources(node, ledger, request), request, mask)


def allocate_from_available(
    node: TopologyOptions, available: AvailableResources, request: NumaRequest, mask: BitMask | None = None
) -> NumaAllocation | refusal.NumaRefusal:
    """Allocate as `allocate_numa` does, with the available resources computed once for many masks."""
    zones: ZoneAmounts = {}
    binding = request.binding
    per_core = node.cpu.per_core if isinstance(node.cpu, CpuTopology) else 1
    if mask is not None:
        if not node.zones:
            return refusal.NumaRefusal.unresolvable(refusal.NO_NUMA_ON_MASK)
        step = cpu_step_milli(request.required_policy, binds=binding is not None, per_core=per_core)
        # A pod that binds is divided by what it states, not by what its CPUs count for on an amplified node.
        divided = distribute_over_zones(request.amounts, available.zones, mask, cpu_step=step)
        if isinstance(divided, refusal.NumaRefusal):
            return divided
        zones = divided
    if binding is None:
        return NumaAllocation(zones=zones)
    if isinstance(node.cpu, InvalidCpuTopology):
        return refusal.NumaRefusal.unresolvable(refusal.INVALID_CPU_TOPOLOGY)
    cpus = _bind_cpus(node.cpu, available, request, binding, zones, node.strategy)
    if isinstance(cpus, refusal.NumaRefusal):
        return cpus
    return NumaAllocation(cpus=CPUSet(cpus), exclusive=binding.exclusive, zones=zones)


def can_allocate(node: TopologyOptions, available: AvailableResources, request: NumaRequest, mask: BitMask) -> bool:
    """Return whether `allocate_from_available` would succeed, from counts where they suffice.

    CPUs are never short when enough are counted, and the ones left to a required policy are all of its kind.
    """
    binding, topology = request.binding, node.cpu
    kept = request.preferred | request.designated_cpus
    if isinstance(topology, InvalidCpuTopology) or (
        binding is not None and binding.required and (kept or not topology.has_uniform_cores)
    ):
        return not isinstance(allocate_from_available(node, available, request, mask), refusal.NumaRefusal)
    step = cpu_step_milli(request.required_policy, binds=binding is not None, per_core=topology.per_core)
    zones = distribute_over_zones(request.amounts, available.zones, mask, cpu_step=step) if node.zones else None
    if zones is None or isinstance(zones, refusal.NumaRefusal):
        return False
    if binding is None:
        return True
    free, found = available.pool.available, binding.count
    if zones:
        found = sum(
            min((free & topology.zone_mask(number)).bit_count(), amounts.get(CPU, 0) // 1000)
            for number, amounts in zones.items()
        )
    whole = request.required_policy != CPU_BIND_FULL_PCPUS or binding.count % topology.per_core == 0
    return whole and found == binding.count <= free.bit_count()


def allocate_designated(
    node: TopologyOptions, ledger: NumaLedger, request: NumaRequest, given: NumaAllocation
) -> NumaAllocation | refusal.NumaRefusal:
    """Allocate exactly what the pod was assigned earlier, if that is still possible."""
    mask = BitMask.of(*given.zones) if given.zones else None
    again = NumaRequest(
        amounts=request.amounts,
        binding=request.binding,
        designated_cpus=given.cpus.bits,
        reusable=request.reusable,
        confined_to=given.zones,
    )
    found = allocate_numa(node, ledger, again, mask)
    if not isinstance(found, refusal.NumaRefusal) and found.cpus != given.cpus:
        return refusal.NumaRefusal.unschedulable(refusal.NOT_ENOUGH_CPUS)
    return found


def _bind_cpus(
    topology: CpuTopology,
    available: AvailableResources,
    request: NumaRequest,
    binding: CpuBinding,
    zones: ZoneAmounts,
    strategy: str,
) -> int | refusal.NumaRefusal:
    pool, count = available.pool, binding.count
    if pool.available.bit_count() < count:
        return refusal.NumaRefusal.unschedulable(refusal.NOT_ENOUGH_CPUS)
    chosen = 0
    if zones:
        for number, amounts in sorted(zones.items()):
            inside = pool.available & topology.zone_mask(number)
            part = min(inside.bit_count(), amounts.get(CPU, 0) // 1000)
            want = CpuRequest(part, binding.policy, binding.exclusive, strategy)
            taken = take_preferred_cpus(
                topology, pool.narrowed_to(inside), request.preferred | request.designated_cpus, want
            )
            if isinstance(taken, refusal.NumaRefusal):
                return taken
            chosen |= taken
        if chosen.bit_count() != count:
            return refusal.NumaRefusal.unschedulable(refusal.NOT_ENOUGH_CPUS)
    else:
        want = CpuRequest(count, binding.policy, binding.exclusive, strategy)
        taken = take_preferred_cpus(topology, pool, request.preferred | request.designated_cpus, want)
        if isinstance(taken, refusal.NumaRefusal):
            return taken
        chosen = taken
    if binding.required:
        cores = topology.core_count(chosen)
        per_core = topology.per_core if binding.policy == CPU_BIND_FULL_PCPUS else 1
        if cores * per_core != count:
            return refusal.NumaRefusal.unschedulable(refusal.policy_not_met(binding.policy))
    return chosen
