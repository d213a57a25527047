"""The CPU and NUMA allocations of one node as an immutable value, so a dry run is a plain copy; and their
annotations.

Every sum is that of the allocations listed, in whatever order they came and went.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from koord.api.annotations.resource_spec import EXCLUSIVE_NUMA_NODE_LEVEL, EXCLUSIVE_PCPU_LEVEL
from koord.policy.topology.cpu_topology import CpuTopology, Invalid
from koord.policy.topology.tally import NOTHING_HELD, Tally
from koord.values.cpuset import EMPTY, CPUSet

Amounts = Mapping[str, int]
ZoneAmounts = Mapping[int, Amounts]

IDLE, SINGLE, SHARED = "idle", "single", "shared"


class Allocation(msgspec.Struct, frozen=True):
    """The allocation of one pod. `zones` are amounts by NUMA node as the pod requested them: not amplified."""

    cpus: CPUSet = EMPTY
    exclusive: str = ""
    zones: ZoneAmounts = {}

    def is_empty(self) -> bool:
        return not self.cpus.bits and not self.zones


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The allocations of one node with their sums.

    The exclusive counts are of holders that want their cores, or their NUMA nodes, for themselves. The zone
    counts are, by NUMA node, of pods whose CPUs lie all in it, and of pods whose CPUs also lie in others.
    """

    topology: CpuTopology | None = None
    pods: Mapping[str, Allocation] = {}
    held: Tally = NOTHING_HELD
    pcpu: Tally = NOTHING_HELD
    numa: Tally = NOTHING_HELD
    amounts: ZoneAmounts = {}
    inside: Mapping[int, int] = {}
    spanning: Mapping[int, int] = {}

    @staticmethod
    def over(topology: CpuTopology | Invalid | None, pods: Mapping[str, Allocation] | None = None) -> Ledger:
        """Build a ledger. Without a topology CPUs are still counted; only their location is unknown."""
        ledger = Ledger(topology=topology if isinstance(topology, CpuTopology) else None)
        for uid, allocation in (pods or {}).items():
            ledger = ledger.add(uid, allocation)
        return ledger

    def on(self, topology: CpuTopology | Invalid | None) -> Ledger:
        """Return the same allocations on a changed topology."""
        known = topology if isinstance(topology, CpuTopology) else None
        return self if known is self.topology else Ledger.over(known, self.pods)

    def add(self, uid: str, allocation: Allocation) -> Ledger:
        """Add or replace the allocation of a pod."""
        before = self.pods.get(uid)
        if before == allocation:
            return self
        ledger = self if before is None else self.remove(uid)
        if allocation.is_empty():
            return ledger
        return ledger._with({**ledger.pods, uid: allocation}, allocation, 1)

    def remove(self, uid: str) -> Ledger:
        allocation = self.pods.get(uid)
        if allocation is None:
            return self
        pods = dict(self.pods)
        del pods[uid]
        return self._with(pods, allocation, -1)

    def _with(self, pods: Mapping[str, Allocation], changed: Allocation, by: int) -> Ledger:
        cpus = changed.cpus.bits
        step = Tally.add if by > 0 else Tally.remove
        inside, spanning = self.inside, self.spanning
        if cpus and self.topology is not None:
            zones = [zone.number for zone in self.topology.zones if zone.cpus & cpus]
            if len(zones) == 1:
                inside = _counted(inside, zones, by)
            else:
                spanning = _counted(spanning, zones, by)
        return Ledger(
            topology=self.topology,
            pods=pods,
            held=step(self.held, cpus),
            pcpu=step(self.pcpu, cpus) if changed.exclusive == EXCLUSIVE_PCPU_LEVEL else self.pcpu,
            numa=step(self.numa, cpus) if changed.exclusive == EXCLUSIVE_NUMA_NODE_LEVEL else self.numa,
            amounts=summed(self.amounts, changed.zones, by) if changed.zones else self.amounts,
            inside=inside,
            spanning=spanning,
        )

    def status(self, zone: int) -> str:
        """Return whether pods have their CPUs in this NUMA node alone, in it and others, or not at all."""
        if self.spanning.get(zone):
            return SHARED
        return SINGLE if self.inside.get(zone) else IDLE

    def cpus_of(self, uid: str) -> CPUSet:
        allocation = self.pods.get(uid)
        return EMPTY if allocation is None else allocation.cpus


def summed(total: ZoneAmounts, change: ZoneAmounts, by: int = 1) -> dict[int, Amounts]:
    """Add amounts by NUMA node (`by` -1 subtracts); zeros are dropped."""
    result = dict(total)
    for zone, amounts in change.items():
        mine = dict(result.get(zone, {}))
        for name, amount in amounts.items():
            value = mine.get(name, 0) + by * amount
            if value:
                mine[name] = value
            else:
                mine.pop(name, None)
        if mine:
            result[zone] = mine
        else:
            result.pop(zone, None)
    return result


def sum_of(parts: Iterable[ZoneAmounts]) -> dict[int, Amounts]:
    total: dict[int, Amounts] = {}
    for part in parts:
        total = summed(total, part)
    return total


def _counted(counts: Mapping[int, int], zones: Iterable[int], by: int) -> dict[int, int]:
    result = dict(counts)
    for zone in zones:
        value = result.get(zone, 0) + by
        if value:
            result[zone] = value
        else:
            result.pop(zone, None)
    return result
