"""Batch and mid resources of a node, which are lent beyond what pods requested.

Batch is what prod pods, the system and a safety margin leave of a node, or of one NUMA zone. Mid is what prod pods
reserved and will likely not use, and a part of what nobody requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from koord.api.config.slo.slo_documents import CALCULATE_BY_MAX_USAGE_REQUEST, CALCULATE_BY_REQUEST, CALCULATE_BY_USAGE
from koord.api.koordinator.protocol import BATCH, FREE, MID, PRIORITY_BANDS
from koord.manager.colocation import node_metric
from koord.manager.colocation.models import (
    NO_COMPUTE,
    ComputeResources,
    PodShare,
    cpu_fraction,
    floor_zero,
    memory_fraction,
)
from koord.manager.colocation.node_metric import DegradedMetric, HighPriorityConsumption, NodeMetricSample, NodeReserved
from koord.manager.colocation.strategy import ColocationRules
from koord.values.quantity import Quantity
from koord.values.resources import CPU, MEMORY

BATCH_DEGRADED = "degrade node resource because of abnormal nodeMetric, reason: degradedByBatchResource"

_GIGA = 9  # a power of ten
_POD_TERM_NAMES = {
    CALCULATE_BY_USAGE: "podHPUsed",
    CALCULATE_BY_REQUEST: "podHPRequest",
    CALCULATE_BY_MAX_USAGE_REQUEST: "podHPMaxUsedRequest",
}

BatchBound = Literal["formula", "threshold", "nothing left"]


class BatchFormula(msgspec.Struct, frozen=True, kw_only=True):
    """The formula of one resource, term by term: capacity less margin, less reserved or system usage, less pods."""

    resource: str
    policy: str
    capacity: Quantity
    margin: Quantity
    held: Quantity  # the larger of system usage and reservation; of the reservation alone when requests are counted
    pods: Quantity
    room: Quantity  # what the sum leaves; below zero when too much is taken
    limit_percent: int | None = None
    limit: Quantity | None = None
    result: Quantity

    @property
    def bound_by(self) -> BatchBound:
        """Return what determined the result."""
        if self.limit is not None and self.result == self.limit and self.limit < self.room:
            return "threshold"
        return "nothing left" if self.room.sign() < 0 else "formula"

    @property
    def held_name(self) -> str:
        if self.resource == CPU:
            return "systemUsageOrNodeReserved"
        return "nodeReserved" if self.policy == CALCULATE_BY_REQUEST else "systemUsage"

    @property
    def pods_name(self) -> str:
        if self.limit is not None and self.resource == MEMORY and self.policy == CALCULATE_BY_USAGE:
            return _POD_TERM_NAMES[CALCULATE_BY_MAX_USAGE_REQUEST]  # upstream prints this name here
        return _POD_TERM_NAMES[self.policy]

    def __str__(self) -> str:
        """Return upstream's sentence: milli-cores, or gigabytes rounded up."""
        sum_ = (
            f"nodeCapacity:{self._shown(self.capacity)} - nodeSafetyMargin:{self._shown(self.margin)}"
            f" - {self.held_name}:{self._shown(self.held)} - {self.pods_name}:{self._shown(self.pods)}"
        )
        if self.limit_percent is not None:
            ratio = self.limit_percent / 100
            sum_ = f"min(nodeCapacity:{self._shown(self.capacity)} * thresholdRatio:{ratio:g}, {sum_})"
        unit = "CPU(Milli-Core)" if self.resource == CPU else "Mem(GB)"
        return f"batchAllocatable[{unit}]:{self._shown(self.result)} = {sum_}"

    def _shown(self, amount: Quantity) -> int:
        return amount.milli_value() if self.resource == CPU else amount.scaled_value(_GIGA)


class BatchTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a formula may take its terms from."""

    capacity: ComputeResources
    margin: ComputeResources
    system_used: ComputeResources
    reserved: ComputeResources
    consumption: HighPriorityConsumption

    @property
    def system_or_reserved(self) -> ComputeResources:
        return self.system_used.maximum(self.reserved)


class ZoneBatch(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    terms: BatchTerms
    cpu: BatchFormula
    memory: BatchFormula


class BatchDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The batch decision. `cpu_milli` and `memory` are None when nothing is lent: then the resources are removed."""

    cpu_milli: int | None = None
    memory: Quantity | None = None
    withheld: str = ""  # why nothing is lent
    degraded: DegradedMetric | None = None
    terms: BatchTerms | None = None
    cpu_formula: BatchFormula | None = None
    memory_formula: BatchFormula | None = None
    reserved: NodeReserved | None = None
    zones: tuple[ZoneBatch, ...] = ()

    @property
    def message(self) -> str:
        return self.withheld or f"{self.cpu_formula}; {self.memory_formula}"


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    rules: ColocationRules
    capacity: ComputeResources
    reserved: NodeReserved
    sample: NodeMetricSample | DegradedMetric
    pods: Sequence[PodShare] = ()
    zones: Sequence[tuple[str, ComputeResources]] = ()  # name and capacity, in the topology's order


def decide_batch(seen: BatchView) -> BatchDecision:
    sample = seen.sample
    if isinstance(sample, DegradedMetric):
        return BatchDecision(withheld=BATCH_DEGRADED, degraded=sample)
    system = sample.system_usage + sample.host_usage_above(PRIORITY_BANDS[BATCH].default)
    terms = _terms(
        seen, seen.capacity, system, seen.reserved.total, node_metric.node_consumption(seen.pods, sample.pods)
    )
    cpu, memory = _formulas(seen.rules, terms)
    return BatchDecision(
        cpu_milli=cpu.result.milli_value(),
        memory=memory.result,
        terms=terms,
        cpu_formula=cpu,
        memory_formula=memory,
        reserved=seen.reserved,
        zones=_zones(seen, sample, system),
    )


def _zones(seen: BatchView, sample: NodeMetricSample, system: ComputeResources) -> tuple[ZoneBatch, ...]:
    """Compute the zones. What belongs to none, the system and what is reserved, is taken from each in equal parts."""
    if not seen.zones:
        return ()
    count = len(seen.zones)
    system, kept = system.split(count), seen.reserved.total.split(count)
    decided = []
    for (name, capacity), consumption in zip(
        seen.zones, node_metric.zone_consumption(seen.pods, sample.pods, count), strict=True
    ):
        terms = _terms(seen, capacity, system, kept, consumption)
        cpu, memory = _formulas(seen.rules, terms)
        decided.append(ZoneBatch(name=name, terms=terms, cpu=cpu, memory=memory))
    return tuple(decided)


def _terms(
    seen: BatchView,
    capacity: ComputeResources,
    system: ComputeResources,
    kept: ComputeResources,
    consumption: HighPriorityConsumption,
) -> BatchTerms:
    rules = seen.rules
    # Above 100 percent the margin is below zero: the operator lends more than there is.
    margin = capacity.fraction((100 - rules.cpu_reclaim_percent) / 100, (100 - rules.memory_reclaim_percent) / 100)
    return BatchTerms(capacity=capacity, margin=margin, system_used=system, reserved=kept, consumption=consumption)


def _formulas(rules: ColocationRules, terms: BatchTerms) -> tuple[BatchFormula, BatchFormula]:
    both, taken = terms.system_or_reserved, terms.consumption
    cpu_pods = {CALCULATE_BY_USAGE: taken.used.cpu, CALCULATE_BY_MAX_USAGE_REQUEST: taken.larger.cpu}[rules.cpu_policy]
    memory_pods = {
        CALCULATE_BY_USAGE: taken.used.memory,
        CALCULATE_BY_MAX_USAGE_REQUEST: taken.larger.memory,
        CALCULATE_BY_REQUEST: taken.requested.memory,
    }
    cpu_limit, memory_limit = rules.batch_cpu_percent, rules.batch_memory_percent
    return (
        _formula(
            CPU,
            rules.cpu_policy,
            (terms.capacity.cpu, terms.margin.cpu, both.cpu, cpu_pods),
            cpu_limit,
            None if cpu_limit is None else cpu_fraction(terms.capacity.cpu, cpu_limit / 100),
        ),
        _formula(
            MEMORY,
            rules.memory_policy,
            (
                terms.capacity.memory,
                terms.margin.memory,
                terms.reserved.memory if rules.memory_policy == CALCULATE_BY_REQUEST else both.memory,
                memory_pods[rules.memory_policy],
            ),
            memory_limit,
            None if memory_limit is None else memory_fraction(terms.capacity.memory, memory_limit / 100),
        ),
    )


def _formula(
    resource: str,
    policy: str,
    numbers: tuple[Quantity, Quantity, Quantity, Quantity],
    limit_percent: int | None,
    limit: Quantity | None,
) -> BatchFormula:
    capacity, margin, kept, pods = numbers
    room = capacity - margin - kept - pods
    result = floor_zero(room)
    if limit is not None and limit < result:
        result = limit
    return BatchFormula(
        resource=resource,
        policy=policy,
        capacity=capacity,
        margin=margin,
        held=kept,
        pods=pods,
        room=room,
        limit_percent=limit_percent,
        limit=limit,
        result=result,
    )


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
