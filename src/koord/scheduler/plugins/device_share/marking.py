"""This module builds the annotations with which a pod gets its devices, and checks that they can still be
given.

VendorAdapter adds what third-party device plugins read, and the node lock by which some of them serve one
pod at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from koord.api.annotations import device_allocated
from koord.api.annotations.device_allocated import Allocations
from koord.api.annotations.reservation_options import ResizeAllocatable, dump_resize
from koord.api.builtin import NODES
from koord.api.protocol import A_DEVICE_ALLOCATED, A_RESERVATION_RESIZE_ALLOCATABLE
from koord.policy.device.allocator import Allocation
from koord.policy.device.annotation import annotation_of
from koord.policy.device.inventory import DeviceInventory
from koord.policy.device.node_lock import NodeLock, claim, parse
from koord.policy.device.vendor import adapt
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.verdict import Fault
from koord.scheduler.framework.work import Errand, Mark, Work, Write
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.wire import PODS
from koord.values import resources as vector


def given(allocation: Allocation, inventory: DeviceInventory | None, node_name: str) -> Allocations | Fault:
    """Return the allocation as annotation data, or a fault if a chosen card has failed since.

    `inventory`: the node's devices as they are now.
    """
    for kind, chosen in allocation.devices.items():
        cards = {} if inventory is None else inventory.of(kind)
        for one in chosen:
            now = cards.get(one.card.minor)
            if now is None or not now.healthy or now.id != one.card.id:
                return Fault(f"{kind} {one.card.minor} of node {node_name} was chosen and is not healthy any more")
    return annotation_of(allocation)


def mark_of(allocations: Allocations) -> Mark:
    return Mark({A_DEVICE_ALLOCATED: device_allocated.dump(allocations)})


def resized(allocation: Allocation) -> Mapping[str, str]:
    """Return the annotation with the sum of the chosen devices, which resizes a reservation that asked less
    exactly.
    """
    total: dict[str, int] = {}
    for chosen in allocation.devices.values():
        for one in chosen:
            for name, amount in one.amounts.items():
                total[name] = total.get(name, 0) + amount
    value = ResizeAllocatable(resources=dict(vector.to_wire(vector.materialise(total))))
    return {A_RESERVATION_RESIZE_ALLOCATABLE: dump_resize(value)}


class Vendors:
    def __init__(self, handle: Handle) -> None:
        self._now = handle.now
        self._pods = handle.lister(PODS)

    def work(self, allocations: Allocations, inventory: DeviceInventory, pod: PodInfo, node: NodeInfo) -> Work | Fault:
        now_s = self._now()
        adapted = adapt(inventory, allocations, pod.labels, int(now_s * 1e9))
        if isinstance(adapted, str):
            return Fault(adapted)
        mark = Mark({**mark_of(allocations).annotations, **adapted.annotations}, adapted.labels)
        if not adapted.node_lock:
            return mark
        mine = NodeLock(datetime.fromtimestamp(now_s, UTC).replace(microsecond=0), pod.namespace, pod.name)
        write = self._locked(node, adapted.node_lock, mine)
        return write if isinstance(write, Fault) else Errand((write,), 0.0, lambda: True, mark)

    def _locked(self, node: NodeInfo, key: str, mine: NodeLock) -> Write | Fault:
        """Return the write that locks the node. It fails if the node changed meanwhile, so no other lock is
        overwritten.
        """
        if node.node is None:
            return Fault(f"node {node.name} is gone")
        meta = node.node.metadata
        value = meta.annotations.get(key)
        held = None if value is None else parse(value)
        gone = isinstance(held, NodeLock) and self._pods.get(held.namespace, held.name) is None
        lock = claim(node.name, value, mine, holder_gone=gone)
        if isinstance(lock, str):
            return Fault(lock)
        patch = {"metadata": {"resourceVersion": meta.resource_version, "annotations": {key: str(lock)}}}
        return Write(NODES, "", node.name, patch)
