"""Resources of accelerators and network cards: the sum over the healthy devices of a node's Device object."""

from __future__ import annotations

import msgspec

from koord.api.koordinator.device import GPU as GPU_TYPE
from koord.api.koordinator.device import RDMA as RDMA_TYPE
from koord.api.koordinator.protocol import L_GPU_DRIVER_VERSION, L_GPU_MODEL, L_GPU_VENDOR
from koord.api.koordinator.resource_name import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    NPU_CORE,
    NPU_CPU,
    NPU_DVPP,
    RDMA,
)
from koord.manager.colocation.models import ColocationDevice, ColocationDeviceInfo
from koord.values import resources as vector
from koord.values.quantity import Quantity

GPU_NAMES = (GPU, GPU_CORE, NPU_CORE, NPU_CPU, NPU_DVPP, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED)
RDMA_NAMES = (RDMA,)
GPU_LABELS = (L_GPU_VENDOR, L_GPU_MODEL, L_GPU_DRIVER_VERSION)

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
    if labels.get(L_GPU_VENDOR, "") in _SHOWN_AS_GPU and GPU_CORE in total:
        total[GPU] = total[GPU_CORE]
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
