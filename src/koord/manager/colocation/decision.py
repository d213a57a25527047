"""Everything that is decided about one node at one moment, with the terms of each part.

What of it must be written is decided in `node_patch` (the node) and `numa_zones` (its topology).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec

from koord.api.config.slo.colocation import ColocationStrategy
from koord.api.config.slo.slo_documents import CPUNormalizationStrategy, ResourceAmplificationStrategy
from koord.manager.colocation import models, strategy
from koord.manager.colocation.batch import BatchDecision, BatchView, decide_batch
from koord.manager.colocation.device_resources import DeviceResources, decide_gpu, decide_rdma
from koord.manager.colocation.mid import MidDecision, MidView, decide_mid
from koord.manager.colocation.models import ComputeResources
from koord.manager.colocation.node_metric import DegradedMetric, evaluate_metric
from koord.manager.colocation.normalization import (
    AmplificationDecision,
    CpuNormalizationDecision,
    decide_amplification,
    decide_normalization,
    unknown_normalization,
)
from koord.manager.colocation.numa_zones import zone_capacities
from koord.manager.colocation.reserved_usage import node_reserved

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
