"""This module converts allocations to and from the device-allocated annotation, builds the annotations with which a
pod gets its devices, and checks that they can still be given.

VendorAdapter adds what third-party device plugins read, and the node lock by which some of them serve one
pod at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from koord.api.annotations import device_codecs
from koord.api.annotations.codec import MalformedAnnotation, dump_json
from koord.api.annotations.device_codecs import (
    AllocatedDevice,
    AllocatedVirtualFunction,
    AllocationExtension,
    DeviceAllocations,
)
from koord.api.annotations.reservation_codecs import ReservationResizeAllocatable
from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, A_RESERVATION_RESIZE_ALLOCATABLE
from koord.api.koordinator.resource_name import DEPRECATED_DEVICES
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
from koord.scheduler.plugins.device_share.vendor_protocol import (
    NodeLock,
    acquire_node_lock,
    build_vendor_patch,
    parse_node_lock,
)
from koord.values import resources as vector

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
