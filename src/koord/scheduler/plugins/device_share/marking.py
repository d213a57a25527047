"""What a pod carries so that its node gives it the devices that were chosen, or why it cannot be bound with them."""

from __future__ import annotations

from koord.api.annotations import device_allocated
from koord.api.protocol import A_DEVICE_ALLOCATED
from koord.policy.device.allocator import Allocation
from koord.policy.device.annotation import annotation_of
from koord.policy.device.inventory import DeviceInventory
from koord.scheduler.framework.verdict import Fault
from koord.scheduler.framework.work import Mark


def mark_of(allocation: Allocation, inventory: DeviceInventory | None, node_name: str) -> Mark | Fault:
    """`inventory`: the node's devices as they are now. A card that failed since it was chosen must not be given."""
    lost = lost_card(allocation, inventory)
    if lost is not None:
        return Fault(f"{lost} of node {node_name} was chosen and is not healthy any more")
    return Mark({A_DEVICE_ALLOCATED: device_allocated.dump(annotation_of(allocation))})


def lost_card(allocation: Allocation, inventory: DeviceInventory | None) -> str | None:
    for kind, chosen in allocation.devices.items():
        cards = {} if inventory is None else inventory.of(kind)
        for one in chosen:
            now = cards.get(one.card.minor)
            if now is None or not now.healthy or now.id != one.card.id:
                return f"{kind} {one.card.minor}"
    return None
