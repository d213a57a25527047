"""This module computes what is available on a node: exactly for one request, as a cheap bound for many nodes."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koord.api.annotations.cpu_codecs import CPU_BIND_FULL_PCPUS, CPU_BIND_SPREAD_BY_PCPUS
from koord.scheduler.plugins.node_numa_resource.cpu_binding import NumaRequest
from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuTopology
from koord.scheduler.plugins.node_numa_resource.ledger import IDLE, Amounts, CpuPool, NumaLedger, ZoneAmounts
from koord.scheduler.plugins.node_numa_resource.topology_options import TopologyOptions, amplify
from koord.values.resources import CPU


class AvailableResources(msgspec.Struct, frozen=True):
    """AvailableResources is what a request finds on a node. `pool`: CPUs that the policy can use; `zones` are >= 0."""

    pool: CpuPool
    zones: ZoneAmounts


def available_resources(node: TopologyOptions, ledger: NumaLedger, request: NumaRequest) -> AvailableResources:
    pool = free_cpu_pool(node, ledger, request.preferred)
    if request.required_policy and isinstance(node.cpu, CpuTopology):
        pool = pool.narrowed_to(cpus_for_policy(node.cpu, pool.available, request.required_policy))
    zones = request.confined_to or free_zone_amounts(node, ledger, request.reusable)
    if request.required_policy and isinstance(node.cpu, CpuTopology):
        zones = _capped_by_cpus(zones, node.cpu, pool.available)
    return AvailableResources(pool, zones)


def free_cpu_pool(node: TopologyOptions, ledger: NumaLedger, returned: int = 0) -> CpuPool:
    """Return the free CPUs for a pod that may use one reference of the returned CPUs."""
    held = ledger.refcounts.remove(returned)
    return CpuPool(
        available=node.bindable_cpus & ~held.at_least(node.max_ref_count),
        refcounts=held,
        pcpu_exclusive=ledger.pcpu_exclusive.referenced & held.referenced,
        numa_exclusive=ledger.numa_exclusive.referenced & held.referenced,
        max_ref_count=node.max_ref_count,
    )


def cpus_for_policy(topology: CpuTopology, cpus: int, policy: str) -> int:
    """Return the CPUs that can meet a required policy: those on full cores, or one of each core."""
    if policy == CPU_BIND_FULL_PCPUS:
        return topology.full_core_cpus(cpus)
    return topology.one_per_core(cpus) if policy == CPU_BIND_SPREAD_BY_PCPUS else cpus


def free_zone_amounts(node: TopologyOptions, ledger: NumaLedger, reusable: ZoneAmounts) -> dict[int, Amounts]:
    """Return what each NUMA node has free for a pod that may also use `reusable`."""
    amplified = node.ratio is not None and node.ratio > 1 and isinstance(node.cpu, CpuTopology)
    free: dict[int, Amounts] = {}
    for zone in node.zones:
        taken, back = ledger.zone_amounts.get(zone.number, {}), reusable.get(zone.number, {})
        left: dict[str, int] = {}
        for name, there in zone.amounts.items():
            used = taken.get(name, 0)
            if amplified and name == CPU and isinstance(node.cpu, CpuTopology):
                # Bound CPUs are listed as they are; on an amplified node each counts for the ratio.
                bound = 1000 * (node.cpu.zone_mask(zone.number) & ledger.refcounts.referenced).bit_count()
                used += amplify(bound, node.ratio) - bound
            used = max(used - back.get(name, 0), 0)
            left[name] = max(there - used, 0)
        free[zone.number] = left
    return free


def _capped_by_cpus(zones: ZoneAmounts, topology: CpuTopology, cpus: int) -> dict[int, Amounts]:
    """Cap cpu by the number of CPUs of the right kind."""
    trimmed: dict[int, Amounts] = {}
    for number, amounts in zones.items():
        kept = amounts
        if CPU in amounts:
            kept = {**amounts, CPU: min(amounts[CPU], 1000 * (topology.zone_mask(number) & cpus).bit_count())}
        trimmed[number] = kept
    return trimmed


class FreeCpuCounts(msgspec.Struct, frozen=True, gc=False):
    """Numbers of free CPUs: all, those on cores that are fully free, and one for each core with a free CPU."""

    cpus: int = 0
    on_whole_cores: int = 0
    cores: int = 0


class FreeZone(msgspec.Struct, frozen=True):
    free: FreeCpuCounts
    amounts: Amounts  # what is free, with bound CPUs amplified
    status: str


class FreeNumaSummary(msgspec.Struct, frozen=True):
    """Free counts of a node and of each NUMA node."""

    total: FreeCpuCounts
    zones: Mapping[int, FreeZone]
    known_resources: frozenset[str] = frozenset()


def summarize_free(node: TopologyOptions, ledger: NumaLedger) -> FreeNumaSummary:
    """Summarize what is free. The result is valid until the ledger or the topology changes."""
    topology = node.cpu
    left = free_zone_amounts(node, ledger, {})
    known = frozenset(name for zone in node.zones for name in zone.amounts)
    if not isinstance(topology, CpuTopology):
        zones = {n: FreeZone(FreeCpuCounts(), amounts, IDLE) for n, amounts in left.items()}
        return FreeNumaSummary(FreeCpuCounts(), zones, known)
    free = free_cpu_pool(node, ledger).available
    whole, single = topology.full_core_cpus(free), topology.one_per_core(free)
    zones = {}
    for number in {*left, *topology.zone_masks}:
        cpus = topology.zone_mask(number)
        inside = _count_cpus(free & cpus, whole & cpus, single & cpus)
        zones[number] = FreeZone(inside, left.get(number, {}), ledger.zone_status(number))
    return FreeNumaSummary(_count_cpus(free, whole, single), zones, known)


def _count_cpus(free: int, whole: int, single: int) -> FreeCpuCounts:
    return FreeCpuCounts(free.bit_count(), whole.bit_count(), single.bit_count())
