"""Keep DeviceShare and resource claims from giving one card twice.

A device of a slice and a card of the node's Device object are one where an attribute that names hardware has the id of
the card: the UUID of a GPU, the PCI address of a network card. What claims use is counted as held in DeviceShare's
cache; what pods hold there is in use for claims. Nodes without a Device object have nothing to compare.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.plugins.device_share.cache import NodeDeviceCache
from koord.scheduler.plugins.device_share.device_amounts import DeviceAmounts
from koord.scheduler.plugins.device_share.node_devices import NodeDevices
from koord.scheduler.plugins.dynamic_resources.claim_cache import ClaimCache
from koord.scheduler.plugins.dynamic_resources.resource_slice_cache import (
    ClaimableDevice,
    DeviceId,
    ReachablePool,
    ResourceSliceCache,
)

_HARDWARE_NAMES = frozenset(("uuid", "pciBusID", "pcieBusID", "pciAddress"))
_NO_DEVICES: frozenset[DeviceId] = frozenset()


class ClaimedCards:
    """The cards that claims and pods share; one for all profiles, got with `state.derived(ClaimedCards)`."""

    def __init__(self, state: ClusterState) -> None:
        self._slices = state.derived(ResourceSliceCache)
        self._claims = state.derived(ClaimCache)
        self._cards = state.derived(NodeDeviceCache)
        self._held: dict[str, tuple[NodeDevices, tuple[ReachablePool, ...], frozenset[DeviceId]]] = {}
        self._slices.change_listeners.append(self._sync)
        self._cards.inventory_listeners.append(self._sync)

    def in_use(self, node: NodeInfo) -> Container[DeviceId]:
        """Return the devices that a claim on this node cannot get."""
        held = self.held_devices(node)
        return _EitherOf(self._claims.in_use, held) if held else self._claims.in_use

    def held_devices(self, node: NodeInfo) -> frozenset[DeviceId]:
        """Return the devices of slices on a node that are cards which pods hold."""
        node_devices = self._cards.for_node(node) if self._cards.nodes else None
        if node_devices is None or not node_devices.ledger.used:
            return _NO_DEVICES
        pools = self._slices.pools_of(node)
        known = self._held.get(node.name)
        if known is not None and known[0] is node_devices and known[1] is pools:
            return known[2]
        ids = {
            card.id.lower()
            for device_type, minors in node_devices.ledger.used.items()
            for minor, card in node_devices.inventory.of_type(device_type).items()
            if card.id and minor in minors
        }
        held = frozenset(device.id for device in _devices(pools) if hardware_ids(device) & ids)
        self._held[node.name] = (node_devices, pools, held)
        return held

    def _sync(self, node_name: str) -> None:
        """Count what claims use on a node as held in DeviceShare's cache, after either of them changed."""
        node_devices = self._cards.nodes.get(node_name)
        if node_devices is None:
            self._held.pop(node_name, None)
            return
        in_use = self._claims.in_use
        used = [device for device in self._slices.local_devices(node_name) if device.id in in_use]
        ids = frozenset[str]().union(*(hardware_ids(device) for device in used))
        holdings: DeviceAmounts = {}
        if ids:
            holdings = {
                device_type: minors
                for device_type, cards in node_devices.inventory.cards.items()
                if (minors := {minor: card.total for minor, card in cards.items() if card.id.lower() in ids})
            }
        self._cards.set_claimed(node_name, holdings)


class _EitherOf:
    __slots__ = ("_first", "_second")

    def __init__(self, first: Container[DeviceId], second: Container[DeviceId]) -> None:
        self._first, self._second = first, second

    def __contains__(self, device: object) -> bool:
        return device in self._first or device in self._second


def _devices(pools: Iterable[ReachablePool]) -> Iterable[ClaimableDevice]:
    return (device for each in pools for device in each.devices)


def hardware_ids(device: ClaimableDevice) -> frozenset[str]:
    """Return what a device says of the hardware that it is, in lower case."""
    return frozenset(
        attribute.string_value.lower()
        for name, attribute in device.spec.attributes.items()
        if attribute.string_value and name.rpartition("/")[2] in _HARDWARE_NAMES
    )
