"""This module converts allocations to and from the device-allocated annotation, builds the annotations with which a
pod gets its devices, and checks that they can still be given.

VendorAdapter adds what third-party device plugins read, and the node lock by which some of them serve one
pod at a time.

It also states what third-party device plugins read from a pod, and the node lock that some require.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from koord.api.annotations import device_codecs
from koord.api.annotations.codec import MalformedAnnotation, dump_json
from koord.api.annotations.device_codecs import (
    AllocatedDevice,
    AllocatedVirtualFunction,
    AllocationExtension,
    DeviceAllocations,
)
from koord.api.annotations.reservation_codecs import ReservationResizeAllocatable
from koord.api.koordinator import protocol
from koord.api.koordinator import scheduling as wire
from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, A_RESERVATION_RESIZE_ALLOCATABLE
from koord.api.koordinator.resource_name import DEPRECATED_DEVICES, GPU_CORE, GPU_MEMORY
from koord.api.kubernetes.builtin_kinds import NODES
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.verdict import BindEffect, Fault, ObjectPatch, PodPatch, PreBindActions
from koord.scheduler.plugins.device_share.allocator import AllocatedDevices
from koord.scheduler.plugins.device_share.device_amounts import Amounts, DeviceAmounts, vf_key
from koord.scheduler.plugins.device_share.inventory import DeviceInventory
from koord.scheduler.plugins.device_share.selection import SelectedDevice
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


_TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


def to_annotation(allocation: AllocatedDevices) -> DeviceAllocations:
    return {kind: tuple(_entry(one) for one in chosen) for kind, chosen in allocation.devices.items()}


def _entry(one: SelectedDevice) -> AllocatedDevice:
    extension = None
    if one.virtual_function is not None or one.template:
        function = one.virtual_function
        extension = AllocationExtension(
            vfs=() if function is None else (AllocatedVirtualFunction(minor=function.minor, bus_id=function.bus_id),),
            gpu_shared_resource_template=one.template,
        )
    resources = vector.to_wire(vector.materialise(one.amounts))
    return AllocatedDevice(minor=one.card.minor, resources=dict(resources), id=one.card.id, extension=extension)


def from_annotation(allocations: DeviceAllocations) -> DeviceAmounts:
    """Return the amounts that the annotation states. A device listed twice counts twice; nothing counts below zero."""
    held: dict[str, dict[int, Amounts]] = {}
    for kind, entries in allocations.items():
        minors = held.setdefault(kind, {})
        for entry in entries:
            sums = dict(minors.get(entry.minor, {}))
            for name, amount in vector.to_units(vector.parse(entry.resources)).items():
                if amount > 0:
                    current = DEPRECATED_DEVICES.get(name, name)
                    sums[current] = sums.get(current, 0) + amount
            for function in entry.extension.vfs if entry.extension is not None else ():
                if function.bus_id:
                    sums[vf_key(function.bus_id)] = 1
            if sums:
                minors[entry.minor] = sums
    return {kind: minors for kind, minors in held.items() if minors}


def pod_device_amounts(
    annotations: Mapping[str, str], node: str, phase: str
) -> DeviceAmounts | MalformedAnnotation | None:
    """Return the device amounts of a pod: only a pod that has a node and has not ended holds anything."""
    if not node or phase in _TERMINAL_PHASES:
        return None
    parsed = device_codecs.parse_device_allocated(annotations)
    if parsed is None or isinstance(parsed, MalformedAnnotation):
        return parsed
    return from_annotation(parsed) or None


def allocation_annotation(
    allocation: AllocatedDevices, inventory: DeviceInventory | None, node_name: str
) -> DeviceAllocations | Fault:
    """Return the allocation as annotation data, or a fault if a chosen card has failed since.

    `inventory`: the node's devices as they are now.
    """
    for kind, chosen in allocation.devices.items():
        cards = {} if inventory is None else inventory.of_type(kind)
        for one in chosen:
            now = cards.get(one.card.minor)
            if now is None or not now.healthy or now.id != one.card.id:
                return Fault(f"{kind} {one.card.minor} of node {node_name} was chosen and is not healthy any more")
    return to_annotation(allocation)


def device_allocated_patch(allocations: DeviceAllocations) -> PodPatch:
    return PodPatch({A_DEVICE_ALLOCATED: dump_json(allocations)})


def resize_annotations(allocation: AllocatedDevices) -> Mapping[str, str]:
    """Return the annotation with the sum of the chosen devices, which resizes a reservation that asked less exactly."""
    total: dict[str, int] = {}
    for chosen in allocation.devices.values():
        for one in chosen:
            for name, amount in one.amounts.items():
                total[name] = total.get(name, 0) + amount
    value = ReservationResizeAllocatable(resources=dict(vector.to_wire(vector.materialise(total))))
    return {A_RESERVATION_RESIZE_ALLOCATABLE: dump_json(value)}


class VendorAdapter:
    def __init__(self, handle: Handle) -> None:
        self._now = handle.now
        self._pods = handle.lister(PODS)

    def pre_bind_effect(
        self, allocations: DeviceAllocations, inventory: DeviceInventory, pod: PodInfo, node: NodeInfo
    ) -> BindEffect | Fault:
        now_s = self._now()
        adapted = build_vendor_patch(inventory, allocations, pod.labels, int(now_s * 1e9))
        if isinstance(adapted, str):
            return Fault(adapted)
        mark = PodPatch({**device_allocated_patch(allocations).annotations, **adapted.annotations}, adapted.labels)
        if not adapted.node_lock:
            return mark
        mine = NodeLock(datetime.fromtimestamp(now_s, UTC).replace(microsecond=0), pod.namespace, pod.name)
        write = self._lock_node(node, adapted.node_lock, mine)
        return write if isinstance(write, Fault) else PreBindActions((write,), 0.0, lambda: True, mark)

    def _lock_node(self, node: NodeInfo, key: str, mine: NodeLock) -> ObjectPatch | Fault:
        """Return the write that locks the node. It fails if the node changed: no other lock is overwritten."""
        if node.node is None:
            return Fault(f"node {node.name} is gone")
        meta = node.node.metadata
        value = meta.annotations.get(key)
        held = None if value is None else parse_node_lock(value)
        gone = isinstance(held, NodeLock) and self._pods.get(held.namespace, held.name) is None
        lock = acquire_node_lock(node.name, value, mine, holder_gone=gone)
        if isinstance(lock, str):
            return Fault(lock)
        patch = {"metadata": {"resourceVersion": meta.resource_version, "annotations": {key: str(lock)}}}
        return ObjectPatch(NODES, "", node.name, patch)
