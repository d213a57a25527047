"""Resources of accelerators and network cards: the sum over the healthy devices of a node's Device object.

`decide_node_removal` names what koord-manager and its webhooks have written of a node and nobody else has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from koord.api.annotations import node_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator import protocol
from koord.api.koordinator.protocol import A_THIRD_PARTY_ALLOCATIONS
from koord.api.koordinator.resource_name import (
    BATCH_CPU,
    BATCH_MEMORY,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    MID_CPU,
    MID_MEMORY,
    NPU_CORE,
    NPU_CPU,
    NPU_DVPP,
    RDMA,
)
from koord.api.koordinator.scheduling import GPU as GPU_TYPE
from koord.api.koordinator.scheduling import RDMA as RDMA_TYPE
from koord.api.koordinator.yarn import ALLOCATION_NAME
from koord.api.kubernetes.node import Node
from koord.manager.colocation.models import ColocationDevice, ColocationDeviceInfo
from koord.values import resources as vector
from koord.values.quantity import ZERO, Quantity

GPU_NAMES = (GPU, GPU_CORE, NPU_CORE, NPU_CPU, NPU_DVPP, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED)
RDMA_NAMES = (RDMA,)
GPU_LABELS = (protocol.L_GPU_VENDOR, protocol.L_GPU_MODEL, protocol.L_GPU_DRIVER_VERSION)

_WHOLE = 100  # a card is counted in percents
_SHOWN_AS_GPU = ("", "nvidia")  # other vendors' cores are not koordinator.sh/gpu


class DeviceResources(msgspec.Struct, frozen=True, kw_only=True):
    """The resources of one kind of device. `reset` removes all its names; else a name without an amount is kept."""

    amounts: dict[str, Quantity] = {}
    labels: dict[str, str] = {}
    reset: bool = False
    message: str = ""
    healthy: int = 0
    unhealthy: int = 0


def decide_gpu(device: ColocationDevice | None, *, shared: bool) -> DeviceResources:
    """Compute the GPU resources. `shared` also counts cards as koordinator.sh/gpu.shared."""
    healthy, unhealthy = _of_type(device, GPU_TYPE)
    if device is None or not healthy:
        return DeviceResources(reset=True, message="reset node gpu resources", unhealthy=unhealthy)
    total: dict[str, Quantity] = {}
    for card in healthy:
        total = vector.add(total, vector.parse(card.resources))
    labels = device.metadata.labels
    if labels.get(protocol.L_GPU_VENDOR, "") in _SHOWN_AS_GPU:
        total[GPU] = total.get(GPU_CORE, ZERO)
    if shared:
        total[GPU_SHARED] = Quantity.from_value(len(healthy) * _WHOLE)
    return DeviceResources(
        amounts=vector.mask(total, GPU_NAMES),
        labels={key: labels[key] for key in GPU_LABELS if key in labels},
        message="node gpu resources from device",
        healthy=len(healthy),
        unhealthy=unhealthy,
    )


def decide_rdma(device: ColocationDevice | None) -> DeviceResources:
    healthy, unhealthy = _of_type(device, RDMA_TYPE)
    if not healthy:
        return DeviceResources(reset=True, message="reset node rdma resources", unhealthy=unhealthy)
    return DeviceResources(
        amounts={RDMA: Quantity.from_value(len(healthy) * _WHOLE)},
        message="node rdma resources from device",
        healthy=len(healthy),
        unhealthy=unhealthy,
    )


def _of_type(device: ColocationDevice | None, kind: str) -> tuple[list[ColocationDeviceInfo], int]:
    every = [] if device is None else [info for info in device.spec.devices if info.type == kind]
    healthy = [info for info in every if info.health]
    return healthy, len(every) - len(healthy)


RESOURCES = (BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY, *GPU_NAMES, *RDMA_NAMES)
# The ratio of amplification may be an administrator's own, who then has no use for it without koord's webhook.
ANNOTATIONS = (
    protocol.A_CPU_NORMALIZATION_RATIO,
    protocol.A_ORIGIN_EXTENDED_ALLOCATABLE,
    protocol.A_RAW_ALLOCATABLE,
    protocol.A_RESOURCE_AMPLIFICATION_RATIO,
)


def decide_node_removal(node: Node) -> dict[str, Any]:
    """Return the merge patch of the node's status that removes what is there of it; empty when nothing is."""
    annotations: tuple[str, ...] = ANNOTATIONS
    if _is_yarns_alone(node.metadata.annotations):
        annotations = (*ANNOTATIONS, A_THIRD_PARTY_ALLOCATIONS)
    metadata = {
        "annotations": _nulls(node.metadata.annotations, annotations),
        "labels": _nulls(node.metadata.labels, GPU_LABELS),
    }
    status = {
        "capacity": _nulls(node.status.capacity, RESOURCES),
        "allocatable": _nulls(node.status.allocatable, RESOURCES),
    }
    parts = {"metadata": _filled(metadata), "status": _filled(status)}
    return _filled(parts)


def _is_yarns_alone(annotations: Mapping[str, str]) -> bool:
    """Return whether nobody but koord-yarn-operator says there what it holds."""
    listed = node_codecs.parse_third_party_allocations(annotations)
    if listed is None or isinstance(listed, MalformedAnnotation):
        return False
    return {one.name for one in listed.allocations} == {ALLOCATION_NAME}


def _nulls(present: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, None]:
    return {name: None for name in names if name in present}


def _filled(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if part}
