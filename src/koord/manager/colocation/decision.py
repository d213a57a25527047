"""Everything that is decided about one node at one moment, with the terms of each part.

What of it must be written to the node is decided in `node_patch`. Its topology object has the batch resources of NUMA
zones: the size of the zones, and the desired entries.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from koord.api.config.slo.slo_documents import (
    ColocationStrategy,
    CPUNormalizationStrategy,
    ResourceAmplificationStrategy,
)
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY
from koord.api.model import to_dict
from koord.manager.colocation import models, strategy
from koord.manager.colocation.device_resources import DeviceResources, decide_gpu, decide_rdma
from koord.manager.colocation.models import ColocationTopology, ComputeResources, amplify_cpu, differs_by_more_than
from koord.manager.colocation.node_metric import DegradedMetric, evaluate_metric, node_reserved
from koord.manager.colocation.normalization import (
    AmplificationDecision,
    CpuNormalizationDecision,
    decide_amplification,
    decide_normalization,
    unknown_normalization,
)
from koord.manager.colocation.overcommitment import (
    BatchDecision,
    BatchView,
    MidDecision,
    MidView,
    ZoneBatch,
    decide_batch,
    decide_mid,
)
from koord.values.quantity import Quantity
from koord.values.resources import CPU, MEMORY

DISABLED = "node colocation is disabled in Config, reason: DisableInConfig"

CPU_NORMALIZATION = "CPUNormalization"
RESOURCE_AMPLIFICATION = "ResourceAmplification"
MID_RESOURCE = "MidResource"
BATCH_RESOURCE = "BatchResource"
GPU_DEVICE_RESOURCE = "GPUDeviceResource"
RDMA_DEVICE_RESOURCE = "RDMADeviceResource"
RESOURCE_PLUGINS = (
    CPU_NORMALIZATION,
    RESOURCE_AMPLIFICATION,
    MID_RESOURCE,
    BATCH_RESOURCE,
    GPU_DEVICE_RESOURCE,
    RDMA_DEVICE_RESOURCE,
)

_FIELDS = ("capacity", "allocatable", "available")

PlainObject = dict[str, Any]


def zone_capacities(topology: ColocationTopology | None) -> tuple[tuple[str, ComputeResources], ...]:
    """Return name and size of each zone, in order; none when no zone states its CPU or memory.

    A zone counts by its place in the list: its name may state another number.
    """
    if topology is None:
        return ()
    sizes = [
        (zone.name, {r.name: r.allocatable for r in zone.resources if r.name in (CPU, MEMORY)})
        for zone in topology.zones
    ]
    if not any(size for _, size in sizes):
        return ()
    return tuple((name, ComputeResources.parse(size)) for name, size in sizes)


def should_write_zones(
    topology: ColocationTopology | None,
    decided: Sequence[ZoneBatch],
    ratio: float | None,
    threshold: float,
    *,
    overdue: bool,
) -> bool:
    """Return whether the zones must be written. With `overdue` any difference is enough, however small."""
    if topology is None or not decided:
        return False
    zones = [to_dict(zone) for zone in topology.zones]
    return revise_zones(zones, decided, ratio, threshold, overdue=overdue) is not None


def revise_zones(
    zones: Sequence[PlainObject], decided: Sequence[ZoneBatch], ratio: float | None, threshold: float, *, overdue: bool
) -> list[PlainObject] | None:
    """Return the zones as desired, everything else in them kept; None when they are so, or are not those decided on."""
    if [zone.get("name") for zone in zones] != [zone.name for zone in decided]:
        return None
    made, changed = [], False
    for zone, wanted in zip(zones, decided, strict=True):
        resources, differ = _entries(zone.get("resources") or [], _amounts(wanted, ratio), threshold, overdue)
        made.append({**zone, "resources": resources} if differ else zone)
        changed = changed or differ
    return made if changed else None


def _amounts(zone: ZoneBatch, ratio: float | None) -> dict[str, Quantity]:
    return {
        BATCH_CPU: amplify_cpu(Quantity.from_value(zone.cpu.result.milli_value()), ratio),
        BATCH_MEMORY: zone.memory.result,
    }


def _entries(
    entries: Sequence[PlainObject], wanted: dict[str, Quantity], threshold: float, overdue: bool
) -> tuple[list[PlainObject], bool]:
    made, changed, missing = [], False, dict(wanted)
    for entry in entries:
        amount = missing.pop(entry.get("name", ""), None)
        if amount is None:
            made.append(entry)
            continue
        stale = {field: str(amount) for field in _FIELDS if _must_change(entry.get(field), amount, threshold, overdue)}
        made.append({**entry, **stale})
        changed = changed or bool(stale)
    if missing:
        made += [{"name": name, **dict.fromkeys(_FIELDS, str(amount))} for name, amount in missing.items()]
        made.sort(key=lambda entry: str(entry.get("name", "")))
    return made, changed or bool(missing)


def _must_change(old: Any, new: Quantity, threshold: float, overdue: bool) -> bool:
    before = None if old is None else Quantity.parse(old)
    return before != new if overdue else differs_by_more_than(before, new, threshold)


class ColocationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """ColocationSettings holds what the ConfigMap and the program's flags say, for every node."""

    colocation: strategy.LayeredStrategy[ColocationStrategy]
    normalization: strategy.LayeredStrategy[CPUNormalizationStrategy] | None  # None: not readable yet
    amplification: strategy.LayeredStrategy[ResourceAmplificationStrategy] | None
    parts: Collection[str] = RESOURCE_PLUGINS
    gpu_shared: bool = False


class ColocationNodeView(msgspec.Struct, frozen=True, kw_only=True):
    now: datetime
    node: models.ColocationNode
    metric: models.ColocationNodeMetric | None = None
    pods: Sequence[models.PodShare] = ()
    topology: models.ColocationTopology | None = None
    device: models.ColocationDevice | None = None


class ColocationDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on one node. A part that is None is not decided here and leaves the node as it is."""

    resolved: strategy.ResolvedStrategy
    rules: strategy.ColocationRules
    normalization: CpuNormalizationDecision | None = None
    amplification: AmplificationDecision | None = None
    mid: MidDecision | None = None
    batch: BatchDecision | None = None
    gpu: DeviceResources | None = None
    rdma: DeviceResources | None = None
    of_plugins: Mapping[str, Quantity | None] = {}  # resources that plugins of other packages decided

    @property
    def enabled(self) -> bool:
        return self.resolved.enabled

    @property
    def degraded(self) -> DegradedMetric | None:
        """Return why nothing is lent although the node is enabled."""
        for part in (self.batch, self.mid):
            if part is not None and part.degraded is not None:
                return part.degraded
        return None

    @property
    def outcomes(self) -> dict[str, bool]:
        """Return, by the name of each decided part, whether it came to a result."""
        parts = {
            CPU_NORMALIZATION: self.normalization and not self.normalization.error,
            RESOURCE_AMPLIFICATION: self.amplification and not self.amplification.error,
            MID_RESOURCE: self.mid and self.mid.degraded is None,
            BATCH_RESOURCE: self.batch and self.batch.degraded is None,
            GPU_DEVICE_RESOURCE: self.gpu and True,
            RDMA_DEVICE_RESOURCE: self.rdma and True,
        }
        return {part: bool(fine) for part, fine in parts.items() if fine is not None}

    @property
    def messages(self) -> dict[str, str]:
        """Return one sentence per part, by its name."""
        said = {
            CPU_NORMALIZATION: self.normalization and self.normalization.error,
            RESOURCE_AMPLIFICATION: self.amplification and self.amplification.error,
            MID_RESOURCE: self.mid and self.mid.message,
            BATCH_RESOURCE: self.batch and self.batch.message,
            GPU_DEVICE_RESOURCE: self.gpu and self.gpu.message,
            RDMA_DEVICE_RESOURCE: self.rdma and self.rdma.message,
        }
        return {part: message for part, message in said.items() if message}


def decide_colocation(seen: ColocationNodeView, settings: ColocationSettings) -> ColocationDecision:
    meta = seen.node.metadata
    resolved = strategy.resolve_strategy(settings.colocation, meta.labels, meta.annotations)
    numbers, parts = strategy.colocation_rules(resolved.strategy), settings.parts
    if not resolved.enabled:
        # The resources go, and so does the amplification; what devices and normalization left stays where it is.
        return ColocationDecision(
            resolved=resolved,
            rules=numbers,
            normalization=CpuNormalizationDecision() if CPU_NORMALIZATION in parts else None,
            amplification=AmplificationDecision() if RESOURCE_AMPLIFICATION in parts else None,
            mid=MidDecision(withheld=DISABLED) if MID_RESOURCE in parts else None,
            batch=BatchDecision(withheld=DISABLED) if BATCH_RESOURCE in parts else None,
        )
    capacity = ComputeResources.parse(seen.node.status.capacity)
    kept = node_reserved(capacity, ComputeResources.parse(seen.node.status.allocatable), meta.annotations)
    sample = evaluate_metric(seen.metric, seen.now, numbers.degrade_minutes)
    topology = seen.topology
    return ColocationDecision(
        resolved=resolved,
        rules=numbers,
        normalization=_normalization(seen, settings) if CPU_NORMALIZATION in parts else None,
        amplification=decide_amplification(settings.amplification, meta.labels, meta.annotations)
        if RESOURCE_AMPLIFICATION in parts and settings.amplification is not None
        else None,
        mid=decide_mid(MidView(rules=numbers, capacity=capacity, reserved=kept, sample=sample, pods=seen.pods))
        if MID_RESOURCE in parts
        else None,
        batch=decide_batch(
            BatchView(
                rules=numbers,
                capacity=capacity,
                reserved=kept,
                sample=sample,
                pods=seen.pods,
                zones=zone_capacities(topology),
            )
        )
        if BATCH_RESOURCE in parts
        else None,
        gpu=decide_gpu(seen.device, shared=settings.gpu_shared) if GPU_DEVICE_RESOURCE in parts else None,
        rdma=decide_rdma(seen.device) if RDMA_DEVICE_RESOURCE in parts else None,
    )


def _normalization(seen: ColocationNodeView, settings: ColocationSettings) -> CpuNormalizationDecision:
    meta, topology = seen.node.metadata, seen.topology
    if settings.normalization is None:
        return unknown_normalization(meta.annotations)
    annotations = None if topology is None else topology.metadata.annotations
    return decide_normalization(settings.normalization, meta.labels, annotations)


def enabled_plugins(stated: Sequence[str]) -> tuple[str, ...]:
    """Parse `--noderesource-plugins`: names, `-Name` leaves one out, `*` is all the others; a name beats the star."""
    return tuple(part for part in RESOURCE_PLUGINS if part in stated or (f"-{part}" not in stated and "*" in stated))
