"""The CPU and NUMA allocations of one node as an immutable value, so a dry run is a plain copy; and their
annotations.

Every sum is that of the allocations listed, in whatever order they came and went. Reference counts of CPUs are bit
masks: adding a hundred CPUs is a few integer operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.api.annotations import cpu_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.cpu_codecs import CPU_EXCLUSIVE_NUMA_NODE_LEVEL, CPU_EXCLUSIVE_PCPU_LEVEL
from koord.api.koordinator.protocol import A_RESOURCE_STATUS
from koord.scheduler.plugins.node_numa_resource.cpu_topology import CpuTopology, InvalidCpuTopology
from koord.values.cpuset import EMPTY, CPUSet, CPUSetError
from koord.values.resources import add_keyed_amounts, materialise, parse, to_units, to_wire

Amounts = Mapping[str, int]
ZoneAmounts = Mapping[int, Amounts]

IDLE, SINGLE, SHARED = "idle", "single", "shared"


class CpuRefCounts(msgspec.Struct, frozen=True, gc=False):
    """Reference counts by level: `levels[k]` has the CPUs held more than k times, within the level before."""

    levels: tuple[int, ...] = ()

    @property
    def referenced(self) -> int:
        return self.levels[0] if self.levels else 0

    def at_least(self, times: int) -> int:
        """Return the CPUs held so many times or more; `times` is at least 1."""
        return self.levels[times - 1] if times <= len(self.levels) else 0

    def add(self, cpus: int) -> CpuRefCounts:
        if not cpus:
            return self
        levels = []
        for level in self.levels:
            levels.append(level | cpus)
            cpus &= level
        if cpus:
            levels.append(cpus)
        return CpuRefCounts(tuple(levels))

    def remove(self, cpus: int) -> CpuRefCounts:
        """Drop one reference of each of the CPUs that is held; the others are unchanged."""
        if not cpus or not self.levels:
            return self
        levels = list(self.levels)
        for k in range(len(levels) - 1, -1, -1):
            gone = levels[k] & cpus
            levels[k] ^= gone
            cpus ^= gone
        while levels and not levels[-1]:
            levels.pop()
        return CpuRefCounts(tuple(levels))

    def total_references(self, cpus: int) -> int:
        """Return the total number of references of these CPUs."""
        return sum((level & cpus).bit_count() for level in self.levels)

    def by_reference_count(self, below: int) -> tuple[int, ...]:
        """Return masks of the CPUs held 0 .. below-1 times, least first. ~0 stands for all CPUs."""
        edges = [-1, *(self.at_least(times) for times in range(1, below + 1))]
        return tuple(edges[k] & ~edges[k + 1] for k in range(below))


NO_REFERENCES = CpuRefCounts()


class CpuPool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool of CPUs. The marked CPUs are held by pods that want their cores, or their NUMA nodes, exclusively."""

    available: int
    refcounts: CpuRefCounts = NO_REFERENCES
    pcpu_exclusive: int = 0
    numa_exclusive: int = 0
    max_ref_count: int = 1

    def narrowed_to(self, cpus: int) -> CpuPool:
        """Return the same pool narrowed to these CPUs."""
        return CpuPool(
            available=cpus,
            refcounts=self.refcounts,
            pcpu_exclusive=self.pcpu_exclusive,
            numa_exclusive=self.numa_exclusive,
            max_ref_count=self.max_ref_count,
        )


class NumaAllocation(msgspec.Struct, frozen=True):
    """The allocation of one pod. `zones` are amounts by NUMA node as the pod requested them: not amplified."""

    cpus: CPUSet = EMPTY
    exclusive: str = ""
    zones: ZoneAmounts = {}

    def is_empty(self) -> bool:
        return not self.cpus.bits and not self.zones


class NumaLedger(msgspec.Struct, frozen=True, kw_only=True):
    """The allocations of one node with their sums.

    The exclusive counts are of holders that want their cores, or their NUMA nodes, for themselves. The zone
    counts are, by NUMA node, of pods whose CPUs lie all in it, and of pods whose CPUs also lie in others.
    """

    topology: CpuTopology | None = None
    pods: Mapping[str, NumaAllocation] = {}
    refcounts: CpuRefCounts = NO_REFERENCES
    pcpu_exclusive: CpuRefCounts = NO_REFERENCES
    numa_exclusive: CpuRefCounts = NO_REFERENCES
    zone_amounts: ZoneAmounts = {}
    single_zone_pods: Mapping[int, int] = {}
    multi_zone_pods: Mapping[int, int] = {}

    @staticmethod
    def build(
        topology: CpuTopology | InvalidCpuTopology | None, pods: Mapping[str, NumaAllocation] | None = None
    ) -> NumaLedger:
        """Build a ledger. Without a topology CPUs are still counted; only their location is unknown."""
        ledger = NumaLedger(topology=topology if isinstance(topology, CpuTopology) else None)
        for uid, allocation in (pods or {}).items():
            ledger = ledger.add(uid, allocation)
        return ledger

    def with_topology(self, topology: CpuTopology | InvalidCpuTopology | None) -> NumaLedger:
        """Return the same allocations on a changed topology."""
        known = topology if isinstance(topology, CpuTopology) else None
        return self if known is self.topology else NumaLedger.build(known, self.pods)

    def add(self, uid: str, allocation: NumaAllocation) -> NumaLedger:
        """Add or replace the allocation of a pod."""
        before = self.pods.get(uid)
        if before == allocation:
            return self
        ledger = self if before is None else self.remove(uid)
        if allocation.is_empty():
            return ledger
        return ledger._with({**ledger.pods, uid: allocation}, allocation, 1)

    def remove(self, uid: str) -> NumaLedger:
        allocation = self.pods.get(uid)
        if allocation is None:
            return self
        pods = dict(self.pods)
        del pods[uid]
        return self._with(pods, allocation, -1)

    def _with(self, pods: Mapping[str, NumaAllocation], changed: NumaAllocation, by: int) -> NumaLedger:
        cpus = changed.cpus.bits
        step = CpuRefCounts.add if by > 0 else CpuRefCounts.remove
        inside, spanning = self.single_zone_pods, self.multi_zone_pods
        if cpus and self.topology is not None:
            zones = [zone.number for zone in self.topology.zones if zone.cpus & cpus]
            if len(zones) == 1:
                inside = _with_counts(inside, zones, by)
            else:
                spanning = _with_counts(spanning, zones, by)
        return NumaLedger(
            topology=self.topology,
            pods=pods,
            refcounts=step(self.refcounts, cpus),
            pcpu_exclusive=step(self.pcpu_exclusive, cpus)
            if changed.exclusive == CPU_EXCLUSIVE_PCPU_LEVEL
            else self.pcpu_exclusive,
            numa_exclusive=step(self.numa_exclusive, cpus)
            if changed.exclusive == CPU_EXCLUSIVE_NUMA_NODE_LEVEL
            else self.numa_exclusive,
            zone_amounts=add_keyed_amounts(self.zone_amounts, changed.zones, by)
            if changed.zones
            else self.zone_amounts,
            single_zone_pods=inside,
            multi_zone_pods=spanning,
        )

    def zone_status(self, zone: int) -> str:
        """Return whether pods have their CPUs in this NUMA node alone, in it and others, or not at all."""
        if self.multi_zone_pods.get(zone):
            return SHARED
        return SINGLE if self.single_zone_pods.get(zone) else IDLE

    def cpus_of(self, uid: str) -> CPUSet:
        allocation = self.pods.get(uid)
        return EMPTY if allocation is None else allocation.cpus


def total_zone_amounts(parts: Iterable[ZoneAmounts]) -> dict[int, Amounts]:
    total: dict[int, Amounts] = {}
    for part in parts:
        total = add_keyed_amounts(total, part)
    return total


def _with_counts(counts: Mapping[int, int], zones: Iterable[int], by: int) -> dict[int, int]:
    result = dict(counts)
    for zone in zones:
        value = result.get(zone, 0) + by
        if value:
            result[zone] = value
        else:
            result.pop(zone, None)
    return result


def parse_allocation(annotations: Mapping[str, str]) -> NumaAllocation | MalformedAnnotation | None:
    """Parse a pod's allocation; None when it has none. A spec that cannot be read requests no exclusivity."""
    status = cpu_codecs.parse_resource_status(annotations)
    if status is None or isinstance(status, MalformedAnnotation):
        return status
    try:
        cpus = CPUSet.parse(status.cpuset)
    except CPUSetError as error:
        return MalformedAnnotation(A_RESOURCE_STATUS, f"cpuset: {error}")
    zones: dict[int, Amounts] = {}
    for entry in status.numa_node_resources:
        amounts = dict(zones.get(entry.node, {}))
        for name, amount in to_units(parse(entry.resources)).items():
            amounts[name] = amounts.get(name, 0) + amount
        zones[entry.node] = {name: amount for name, amount in amounts.items() if amount}
    zones = {number: amounts for number, amounts in sorted(zones.items()) if amounts}
    spec = cpu_codecs.parse_resource_spec(annotations)
    exclusive = spec.preferred_cpu_exclusive_policy if isinstance(spec, cpu_codecs.ResourceSpec) else ""
    found = NumaAllocation(cpus=cpus, exclusive=exclusive if cpus.bits else "", zones=zones)
    return None if found.is_empty() else found


def to_resource_status(allocation: NumaAllocation) -> cpu_codecs.PodResourceStatus:
    return cpu_codecs.PodResourceStatus(
        cpuset=str(allocation.cpus),
        numa_node_resources=tuple(
            cpu_codecs.NUMANodeResource(node=number, resources=dict(to_wire(materialise(amounts))))
            for number, amounts in sorted(allocation.zones.items())
        ),
    )
