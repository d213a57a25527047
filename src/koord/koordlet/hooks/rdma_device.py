"""The RDMADeviceInject hook: the InfiniBand devices of the RDMA functions that the scheduler gave to a pod.

The plan names PCI functions; `koord.host.devices` finds their devices on the machine.
"""

from __future__ import annotations

import re

from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.device_codecs import AllocatedDevice, parse_device_allocated
from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED
from koord.koordlet.hooks.hook import NOTHING, ContainerContext, DeviceNode, HookPlan, NodeRules, RdmaFunction

NAME = "rdma device inject"
CONNECTION_MANAGER = DeviceNode(path="/dev/infiniband/rdma_cm")
_RDMA = "rdma"
# The address becomes part of a path on the host, so nothing else may pass.
_PCI_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


def decide_container(container: ContainerContext, rules: NodeRules) -> HookPlan:
    allocated = parse_device_allocated(container.pod.annotations)
    if isinstance(allocated, MalformedAnnotation):
        return HookPlan(problem=str(allocated))
    cards = (allocated or {}).get(_RDMA, ())
    if not cards or container.is_sandbox:
        return NOTHING
    addresses = [address for card in cards for address in _functions(card)]
    wrong = [address for address in addresses if not _PCI_ADDRESS.fullmatch(address)]
    if wrong:
        return HookPlan(problem=f"{A_DEVICE_ALLOCATED}: {wrong[0]!r} is not the address of a PCI function")
    return HookPlan(
        devices=(CONNECTION_MANAGER,), rdma=tuple(RdmaFunction(pci_address=one) for one in dict.fromkeys(addresses))
    )


def _functions(card: AllocatedDevice) -> tuple[str, ...]:
    """Return the addresses of the virtual functions, or of the whole card where the pod has no virtual function."""
    virtual = () if card.extension is None else card.extension.vfs
    return tuple(one.bus_id for one in virtual) or (card.id,)
