"""What third-party device plugins read from a pod to serve its cards, and the node lock that some of them
require. Patching is left to others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from koord.api import device as wire
from koord.api.annotations.device_allocated import Allocations, DeviceAllocation
from koord.api.protocol import (
    A_BIND_TIMESTAMP,
    A_CAMBRICON_ASSIGNED,
    A_CAMBRICON_LOCK,
    A_CAMBRICON_PROFILE,
    A_GPU_MINORS,
    A_HAMI_LOCK,
    A_HUAWEI_ASCEND_310P,
    A_HUAWEI_NPU_CORE,
    A_METAX_ALLOCATED,
    A_PREDICATE_TIME,
    FALSE,
    GPU_ISOLATION_HAMI_CORE,
    L_GPU_ISOLATION_PROVIDER,
    L_HAMI_VGPU_NODE,
)
from koord.api.resource_name import GPU_CORE, GPU_MEMORY
from koord.policy.device.inventory import DeviceInventory
from koord.values import resources as vector

_ASCEND_DUO = "Ascend-310P3-300I-DUO"
_MIB = 1 << 20
_CAMBRICON_UNIT = 256 * _MIB

CORE_REQUIRED = "gpu core resource is required"
ONE_CARD_ONLY = "multiple gpu share is not supported on device side"


class Adaptation(msgspec.Struct, frozen=True, kw_only=True):
    """The labels and annotations for one vendor. `node_lock` is the annotation to lock the node by first; empty for
    none.
    """

    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    node_lock: str = ""


def adapt(
    inventory: DeviceInventory, allocations: Allocations, labels: Mapping[str, str], now_ns: int
) -> Adaptation | str:
    """Build the vendor's patch; a returned text says why the vendor's plugin could not serve the allocation."""
    annotations = {A_BIND_TIMESTAMP: str(now_ns)}
    gpus = allocations.get(wire.GPU, ())
    if not gpus:
        return Adaptation(annotations=annotations)
    annotations[A_GPU_MINORS] = ",".join(str(gpu.minor) for gpu in gpus)
    isolated = labels.get(L_GPU_ISOLATION_PROVIDER) == GPU_ISOLATION_HAMI_CORE
    added = {L_HAMI_VGPU_NODE: inventory.node} if isolated else {}
    writer = _WRITERS.get(inventory.vendor)
    if writer is None:
        return Adaptation(annotations=annotations, labels=added)
    more = writer(inventory, gpus, now_ns)
    if isinstance(more, str):
        return f'failed to adapt for GPU device plugin of vendor "{inventory.vendor}": {more}'
    lock = _LOCKS.get(inventory.vendor, "")
    return Adaptation(annotations=annotations | more, labels=added, node_lock=lock)


_Written = dict[str, str] | str


def _huawei(inventory: DeviceInventory, gpus: tuple[DeviceAllocation, ...], now_ns: int) -> _Written:
    stamped = {A_PREDICATE_TIME: str(now_ns)}
    if inventory.model == _ASCEND_DUO:
        return stamped | {A_HUAWEI_ASCEND_310P: ",".join(f"Ascend310P-{gpu.minor}" for gpu in gpus)}
    sliced = gpus[0].extension
    if sliced is not None and sliced.gpu_shared_resource_template:
        return stamped | {A_HUAWEI_NPU_CORE: f"{gpus[0].minor}-{sliced.gpu_shared_resource_template}"}
    return stamped | {A_HUAWEI_NPU_CORE: ",".join(str(gpu.minor) for gpu in gpus)}


def _cambricon(inventory: DeviceInventory, gpus: tuple[DeviceAllocation, ...], now_ns: int) -> _Written:
    if len(gpus) > 1:
        return ONE_CARD_ONLY
    share = _share(gpus[0], _CAMBRICON_UNIT)
    if isinstance(share, str):
        return share
    core, memory = share
    profile = f"{gpus[0].minor}_{core}_{memory // _CAMBRICON_UNIT}"
    return {A_CAMBRICON_ASSIGNED: FALSE, A_CAMBRICON_PROFILE: profile}


def _metax(inventory: DeviceInventory, gpus: tuple[DeviceAllocation, ...], now_ns: int) -> _Written:
    cards = []
    for gpu in gpus:
        share = _share(gpu, _MIB)
        if isinstance(share, str):
            return share
        core, memory = share
        cards.append({"uuid": gpu.id, "compute": core, "vRam": memory // _MIB})
    return {A_METAX_ALLOCATED: msgspec.json.encode([cards]).decode()}


def _share(gpu: DeviceAllocation, least_memory: int) -> tuple[int, int] | str:
    amounts = vector.to_units(vector.parse(gpu.resources))
    if GPU_CORE not in amounts:
        return CORE_REQUIRED
    memory = amounts.get(GPU_MEMORY, 0)
    if memory < least_memory:
        return f"gpu memory must not be less than {least_memory} bytes"
    return amounts[GPU_CORE], memory


_WRITERS: dict[str, Callable[[DeviceInventory, tuple[DeviceAllocation, ...], int], _Written]] = {
    "huawei": _huawei,
    "cambricon": _cambricon,
    "metax": _metax,
}
_LOCKS = {"cambricon": A_CAMBRICON_LOCK, "metax": A_HAMI_LOCK}
