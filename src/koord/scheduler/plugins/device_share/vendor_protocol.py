"""This module states what third-party device plugins read from a pod, and the node lock that some require."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

import msgspec

from koord.api.annotations.device_codecs import AllocatedDevice, DeviceAllocations
from koord.api.koordinator import protocol
from koord.api.koordinator import scheduling as wire
from koord.api.koordinator.resource_name import GPU_CORE, GPU_MEMORY
from koord.scheduler.plugins.device_share.inventory import DeviceInventory
from koord.values import resources as vector
from koord.values import timestamp
from koord.values.go_format import quoted
from koord.values.timestamp import TimestampError

_ASCEND_DUO = "Ascend-310P3-300I-DUO"
_MIB = 1 << 20
_CAMBRICON_UNIT = 256 * _MIB

CORE_REQUIRED = "gpu core resource is required"
ONE_CARD_ONLY = "multiple gpu share is not supported on device side"


class VendorPatch(msgspec.Struct, frozen=True, kw_only=True):
    """The labels and annotations for one vendor. `node_lock` is the annotation to lock the node by; empty for none."""

    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    node_lock: str = ""


def build_vendor_patch(
    inventory: DeviceInventory, allocations: DeviceAllocations, labels: Mapping[str, str], now_ns: int
) -> VendorPatch | str:
    """Build the vendor's patch; a returned text says why the vendor's plugin could not serve the allocation."""
    annotations = {protocol.A_BIND_TIMESTAMP: str(now_ns)}
    gpus = allocations.get(wire.GPU, ())
    if not gpus:
        return VendorPatch(annotations=annotations)
    annotations[protocol.A_GPU_MINORS] = ",".join(str(gpu.minor) for gpu in gpus)
    isolated = labels.get(protocol.L_GPU_ISOLATION_PROVIDER) == protocol.GPU_ISOLATION_HAMI_CORE
    added = {protocol.L_HAMI_VGPU_NODE: inventory.node} if isolated else {}
    writer = _VENDOR_WRITERS.get(inventory.vendor)
    if writer is None:
        return VendorPatch(annotations=annotations, labels=added)
    more = writer(inventory, gpus, now_ns)
    if isinstance(more, str):
        return f'failed to adapt for GPU device plugin of vendor "{inventory.vendor}": {more}'
    lock = _VENDOR_LOCKS.get(inventory.vendor, "")
    return VendorPatch(annotations=annotations | more, labels=added, node_lock=lock)


_VendorAnnotations = dict[str, str] | str


def _huawei(inventory: DeviceInventory, gpus: tuple[AllocatedDevice, ...], now_ns: int) -> _VendorAnnotations:
    stamped = {protocol.A_PREDICATE_TIME: str(now_ns)}
    if inventory.model == _ASCEND_DUO:
        return stamped | {protocol.A_HUAWEI_ASCEND_310P: ",".join(f"Ascend310P-{gpu.minor}" for gpu in gpus)}
    sliced = gpus[0].extension
    if sliced is not None and sliced.gpu_shared_resource_template:
        return stamped | {protocol.A_HUAWEI_NPU_CORE: f"{gpus[0].minor}-{sliced.gpu_shared_resource_template}"}
    return stamped | {protocol.A_HUAWEI_NPU_CORE: ",".join(str(gpu.minor) for gpu in gpus)}


def _cambricon(inventory: DeviceInventory, gpus: tuple[AllocatedDevice, ...], now_ns: int) -> _VendorAnnotations:
    if len(gpus) > 1:
        return ONE_CARD_ONLY
    share = _core_and_memory(gpus[0], _CAMBRICON_UNIT)
    if isinstance(share, str):
        return share
    core, memory = share
    profile = f"{gpus[0].minor}_{core}_{memory // _CAMBRICON_UNIT}"
    return {protocol.A_CAMBRICON_ASSIGNED: protocol.FALSE, protocol.A_CAMBRICON_PROFILE: profile}


def _metax(inventory: DeviceInventory, gpus: tuple[AllocatedDevice, ...], now_ns: int) -> _VendorAnnotations:
    cards = []
    for gpu in gpus:
        share = _core_and_memory(gpu, _MIB)
        if isinstance(share, str):
            return share
        core, memory = share
        cards.append({"uuid": gpu.id, "compute": core, "vRam": memory // _MIB})
    return {protocol.A_METAX_ALLOCATED: msgspec.json.encode([cards]).decode()}


def _core_and_memory(gpu: AllocatedDevice, least_memory: int) -> tuple[int, int] | str:
    amounts = vector.to_units(vector.parse(gpu.resources))
    if GPU_CORE not in amounts:
        return CORE_REQUIRED
    memory = amounts.get(GPU_MEMORY, 0)
    if memory < least_memory:
        return f"gpu memory must not be less than {least_memory} bytes"
    return amounts[GPU_CORE], memory


_VENDOR_WRITERS: dict[str, Callable[[DeviceInventory, tuple[AllocatedDevice, ...], int], _VendorAnnotations]] = {
    "huawei": _huawei,
    "cambricon": _cambricon,
    "metax": _metax,
}
_VENDOR_LOCKS = {"cambricon": protocol.A_CAMBRICON_LOCK, "metax": protocol.A_HAMI_LOCK}


NODE_LOCK_EXPIRY = timedelta(minutes=5)


class NodeLock(msgspec.Struct, frozen=True):
    taken_at: datetime
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{timestamp.text(self.taken_at)},{self.namespace},{self.name}"


def parse_node_lock(value: str) -> NodeLock | str:
    """Parse the annotation; a returned text says what is wrong with it."""
    parts = value.split(",")
    if len(parts) != 3:
        return f"invalid node lock value {quoted(value)}"
    try:
        return NodeLock(timestamp.parse(parts[0]), parts[1], parts[2])
    except TimestampError as error:
        return f"invalid node lock value {quoted(value)}: {error}"


def acquire_node_lock(node: str, value: str | None, mine: NodeLock, *, holder_gone: bool) -> NodeLock | str:
    """Return the lock to write, or why the node cannot be locked now. `value` is the annotation as it is on the
    node.

    A lock is taken over when it has expired or its pod is gone.
    """
    if value is None:
        return mine
    held = parse_node_lock(value)
    if isinstance(held, str):
        return held
    own = (held.namespace, held.name) == (mine.namespace, mine.name)
    if own or holder_gone or mine.taken_at - held.taken_at > NODE_LOCK_EXPIRY:
        return mine
    return f"failed to lock node: node {quoted(node)} has been locked"
