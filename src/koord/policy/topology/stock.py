"""What is available on a node: exactly for one request, and as a cheap bound for a look at many nodes."""

from __future__ import annotations

import msgspec

from koord.api.annotations.resource_spec import FULL_PCPUS, SPREAD_BY_PCPUS
from koord.policy.topology.amplification import amplify
from koord.policy.topology.cpu_topology import CpuTopology
from koord.policy.topology.ledger import Amounts, Ledger, ZoneAmounts
from koord.policy.topology.node import NodeTopology
from koord.policy.topology.pool import Pool
from koord.policy.topology.request import Request
from koord.values.resources import CPU


class Stock(msgspec.Struct, frozen=True):
    """What one request finds on a node. `pool` has only CPUs that the required policy can use; `zones` are never
    negative.
    """

    pool: Pool
    zones: ZoneAmounts


def take_stock(node: NodeTopology, ledger: Ledger, request: Request) -> Stock:
    pool = free_cpus(node, ledger, request.preferred)
    if request.must and isinstance(node.cpu, CpuTopology):
        pool = pool.of(usable(node.cpu, pool.available, request.must))
    zones = request.confined or free_amounts(node, ledger, request.reusable)
    if request.must and isinstance(node.cpu, CpuTopology):
        zones = _trimmed(zones, node.cpu, pool.available)
    return Stock(pool, zones)


def free_cpus(node: NodeTopology, ledger: Ledger, returned: int = 0) -> Pool:
    """Return the free CPUs for a pod that may use one reference of the returned CPUs."""
    held = ledger.held.remove(returned)
    return Pool(
        available=node.usable & ~held.at_least(node.max_ref_count),
        held=held,
        pcpu_marked=ledger.pcpu.held & held.held,
        numa_marked=ledger.numa.held & held.held,
        max_ref_count=node.max_ref_count,
    )


def usable(topology: CpuTopology, cpus: int, policy: str) -> int:
    """Return the CPUs that can meet a required policy: those on full cores, or one of each core."""
    if policy == FULL_PCPUS:
        return topology.whole_cores(cpus)
    return topology.one_per_core(cpus) if policy == SPREAD_BY_PCPUS else cpus


def free_amounts(node: NodeTopology, ledger: Ledger, reusable: ZoneAmounts) -> dict[int, Amounts]:
    """Return what each NUMA node has free for a pod that may also use `reusable`."""
    amplified = node.ratio is not None and node.ratio > 1 and isinstance(node.cpu, CpuTopology)
    free: dict[int, Amounts] = {}
    for zone in node.zones:
        taken, back = ledger.amounts.get(zone.number, {}), reusable.get(zone.number, {})
        left: dict[str, int] = {}
        for name, there in zone.amounts.items():
            used = taken.get(name, 0)
            if amplified and name == CPU and isinstance(node.cpu, CpuTopology):
                # Bound CPUs are listed as they are; on an amplified node each counts for the ratio.
                bound = 1000 * (node.cpu.zone_mask(zone.number) & ledger.held.held).bit_count()
                used += amplify(bound, node.ratio) - bound
            used = max(used - back.get(name, 0), 0)
            left[name] = max(there - used, 0)
        free[zone.number] = left
    return free


def _trimmed(zones: ZoneAmounts, topology: CpuTopology, cpus: int) -> dict[int, Amounts]:
    """Cap cpu by the number of CPUs of the right kind."""
    trimmed: dict[int, Amounts] = {}
    for number, amounts in zones.items():
        kept = amounts
        if CPU in amounts:
            kept = {**amounts, CPU: min(amounts[CPU], 1000 * (topology.zone_mask(number) & cpus).bit_count())}
        trimmed[number] = kept
    return trimmed
