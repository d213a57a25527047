"""Mid resources: what prod pods reserved and will likely not use, and a part of what nobody requested."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from koord.api.koordinator.protocol import BATCH, FREE, MID, PRIORITY_BANDS
from koord.manager.colocation.models import NO_COMPUTE, ComputeResources, PodShare
from koord.manager.colocation.node_metric import DegradedMetric, NodeMetricSample, NodeReserved
from koord.manager.colocation.strategy import ColocationRules

MID_DEGRADED = "degrade node Mid resource because of abnormal nodeMetric, reason: degradedByMidResource"

_BELOW_PROD = (MID, BATCH, FREE)

MidBound = Literal["reclaimable", "unused", "threshold", "static"]


class MidAmount(msgspec.Struct, frozen=True, kw_only=True):
    """The formula of one resource in integers: milli-cores, or bytes. Terms that static mode does not use are zero."""

    capacity: int
    prod_reclaimable: int = 0
    unused: int = 0  # capacity less the node's usage
    unallocated: int = 0
    unallocated_share: int = 0
    static_share: int = 0
    limit: int  # the threshold's part of capacity
    result: int

    def __str__(self) -> str:
        if self.static_share:
            return f"{self.result} = min(threshold:{self.limit}, static:{self.static_share})"
        return (
            f"{self.result} = min(threshold:{self.limit}, max(0, min(prodReclaimable:{self.prod_reclaimable},"
            f" nodeUnused:{self.unused})) + unallocatedShare:{self.unallocated_share})"
        )

    @property
    def bound_by(self) -> MidBound:
        """Return what determined the result."""
        wanted = max(0, min(self.prod_reclaimable, self.unused)) + self.unallocated_share + self.static_share
        if self.limit < wanted:
            return "threshold"
        if self.static_share:
            return "static"
        return "unused" if self.unused < self.prod_reclaimable else "reclaimable"


class MidDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The mid decision. `cpu` and `memory` are None when nothing is lent: then the resources are removed."""

    cpu: MidAmount | None = None
    memory: MidAmount | None = None
    withheld: str = ""  # why nothing is lent
    degraded: DegradedMetric | None = None

    @property
    def message(self) -> str:
        if self.cpu is None or self.memory is None:
            return self.withheld
        return f"midAllocatable[CPU(Milli-Core)]:{self.cpu}; midAllocatable[Mem(B)]:{self.memory}"


class MidView(msgspec.Struct, frozen=True, kw_only=True):
    rules: ColocationRules
    capacity: ComputeResources
    reserved: NodeReserved
    sample: NodeMetricSample | DegradedMetric
    pods: Sequence[PodShare] = ()


def decide_mid(seen: MidView) -> MidDecision:
    if isinstance(seen.sample, DegradedMetric):
        return MidDecision(withheld=MID_DEGRADED, degraded=seen.sample)
    if seen.rules.mid_static:
        cpu, memory = _static(seen)
    else:
        cpu, memory = _reclaimed(seen, seen.sample)
    return MidDecision(cpu=cpu, memory=memory)


def _static(seen: MidView) -> tuple[MidAmount, MidAmount]:
    rules = seen.rules
    cpu, memory = seen.capacity.cpu.milli_value(), seen.capacity.memory.value()

    def part(capacity: int, percent: int, most: int) -> MidAmount:
        share, limit = int(capacity * (percent / 100)), int(capacity * (most / 100))
        return MidAmount(capacity=capacity, static_share=share, limit=limit, result=min(share, limit))

    return (
        part(cpu, rules.mid_static_cpu_percent, rules.mid_cpu_percent),
        part(memory, rules.mid_static_memory_percent, rules.mid_memory_percent),
    )


def _reclaimed(seen: MidView, sample: NodeMetricSample) -> tuple[MidAmount, MidAmount]:
    rules, capacity = seen.rules, seen.capacity
    reclaimable = sample.prod_reclaimable or NO_COMPUTE
    unused = NO_COMPUTE if sample.node_usage is None else capacity - sample.node_usage
    system = sample.system_usage + sample.host_usage_above(PRIORITY_BANDS[MID].default)
    asked = NO_COMPUTE
    for pod in seen.pods:
        if pod.priority_class not in _BELOW_PROD:
            asked += pod.request
    unallocated = (capacity - system.maximum(seen.reserved.total) - asked).floor_zero()

    def amount(capacity: int, reclaimable: int, unused: int, unallocated: int, most: int) -> MidAmount:
        share = int(unallocated * (rules.mid_unallocated_percent / 100))
        limit = int(capacity * (most / 100))
        return MidAmount(
            capacity=capacity,
            prod_reclaimable=reclaimable,
            unused=unused,
            unallocated=unallocated,
            unallocated_share=share,
            limit=limit,
            result=min(max(0, min(reclaimable, unused)) + share, limit),
        )

    return (
        amount(
            capacity.cpu.milli_value(),
            reclaimable.cpu.milli_value(),
            unused.cpu.milli_value(),
            unallocated.cpu.milli_value(),
            rules.mid_cpu_percent,
        ),
        amount(
            capacity.memory.value(),
            reclaimable.memory.value(),
            unused.memory.value(),
            unallocated.memory.value(),
            rules.mid_memory_percent,
        ),
    )
