"""NodeDeviceCache tracks who holds which devices on all nodes, from annotations of placed pods and assumed
allocations.

    Reserve           assume: counted at once
    bound and seen    the pod's own annotation is counted instead
    deleted, forgot   nothing is counted

Everything follows from Device objects, placed pods and assumed allocations; `rebuild_allocations`
recomputes it for comparison.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import msgspec

from koord.api.annotations import reservation_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, A_RESERVATION_ALLOCATED
from koord.api.koordinator.scheduling import Device
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import deterministic_bytes
from koord.scheduler.plugins.device_share.allocator import AllocatedDevices
from koord.scheduler.plugins.device_share.annotations import pod_device_amounts
from koord.scheduler.plugins.device_share.device_amounts import DeviceAmounts
from koord.scheduler.plugins.device_share.inventory import DeviceInventory, build_inventory, mark_all_unhealthy
from koord.scheduler.plugins.device_share.node_devices import DeviceLedger, NodeDevices

_INVENTORIES_KEPT = 20_000
_EVENTS_KEPT = 256
CLAIMED = "resource-claims"  # stands for a UID: the holder of devices that resource claims use
_RUNNING = "Running"  # the state holds no terminated pods


class AssumedDevices(msgspec.Struct, frozen=True):
    """Devices chosen for a pod that is not bound yet. `owners`: running pods whose devices are among these."""

    node_name: str
    allocation: AllocatedDevices
    reservation: str = ""
    owners: tuple[str, ...] = ()


class NodeDeviceCache:
    """The devices of all nodes; one for all profiles, got with `state.derived(NodeDeviceCache)`."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._inventory_ids: dict[bytes, int] = {}
        self._next_inventory_id = 0
        self._devices: dict[str, Device] = {}  # as last seen
        self.nodes: dict[str, NodeDevices] = {}  # by node name; of nodes that have or had a Device object
        self._without_device: dict[
            str, dict[str, tuple[DeviceAmounts, str]]
        ] = {}  # holdings of pods on nodes whose Device is not known yet
        self._orphans: dict[str, str] = {}  # nodes whose Device object is gone, with the UID of the node
        self.assumed: dict[str, AssumedDevices] = {}  # by uid
        self._reservation_of_owner: dict[
            str, str
        ] = {}  # by uid of an owner: the reservation that is assumed to take it over
        self.unreadable: dict[str, MalformedAnnotation] = {}  # by uid, of pods whose annotation cannot be read
        # Events for pods (pod, reason, message). The leader's controller publishes them; `on_event` notifies it.
        self.pending_events: deque[tuple[PodInfo, str, str]] = deque(maxlen=_EVENTS_KEPT)
        self.on_event: Callable[[], None] | None = None
        self.inventory_listeners: list[Callable[[str], None]] = []  # called with a node whose Device object changed
        state.add_placement_listener(self._on_placement, plain_adds=False)
        state.add_update_listener(self._on_pod_update)

    def for_node(self, node: NodeInfo) -> NodeDevices | None:
        """Return the node's devices; None if no Device object of this node was ever seen."""
        if self._orphans and node.name in self._orphans and self._orphans[node.name] != _uid(node):
            self._forget_orphan(node.name)  # another node of that name
        return self.nodes.get(node.name)

    # Devices -----------------------------------------------------------------------------------------------------

    def device_changed(self, old: Device | None, new: Device | None) -> None:
        """Handle a Device event. Each profile's plugin calls this; only the first of equal calls changes anything."""
        device = new if new is not None else old
        assert device is not None
        name = device.metadata.name
        if new is None:
            self._device_gone(name)
            return
        if self._devices.get(name) is new:
            return
        self._devices[name] = new
        self._orphans.pop(name, None)
        inventory = build_inventory(new)
        node_devices = self.nodes.get(name)
        if node_devices is None:
            node_devices = NodeDevices(DeviceLedger(inventory), self._inventory_id(inventory))
            for uid, (holdings, reservation) in self._without_device.pop(name, {}).items():
                node_devices = node_devices.with_allocation(uid, holdings, reservation)
        elif node_devices.inventory == inventory:
            return
        else:
            node_devices = node_devices.with_inventory(inventory, self._inventory_id(inventory))
        self._set(name, node_devices)
        for listener in self.inventory_listeners:
            listener(name)

    def _device_gone(self, name: str) -> None:
        """Stop giving the node's cards until its Device returns, but remember who holds them while the node exists."""
        self._devices.pop(name, None)
        node_devices = self.nodes.get(name)
        if node_devices is None:
            return
        node = self._state.node(name)
        self._orphans[name] = "" if node is None else _uid(node)
        gone = mark_all_unhealthy(node_devices.inventory)
        self._set(name, node_devices.with_inventory(gone, self._inventory_id(gone)))
        if node is None:
            self._forget_orphan(name)

    def _forget_orphan(self, name: str) -> None:
        """Drop the node's devices; pods that are still bound there keep what they hold."""
        del self._orphans[name]
        node_devices = self.nodes.pop(name)
        waiting = {
            uid: (held, node_devices.reservation_of_owner.get(uid, ""))
            for uid, held in node_devices.ledger.allocations.items()
        }
        if waiting:
            self._without_device[name] = waiting

    def _inventory_id(self, inventory: DeviceInventory) -> int:
        key = _inventory_key(inventory)
        known = self._inventory_ids.get(key)
        if known is None:
            if (
                len(self._inventory_ids) >= _INVENTORIES_KEPT
            ):  # numbers are never used again, so nothing is mistaken for another
                self._inventory_ids.clear()
            known = self._inventory_ids[key] = self._next_inventory_id
            self._next_inventory_id += 1
        return known

    # Promises ----------------------------------------------------------------------------------------------------

    def assume(self, uid: str, assumed_devices: AssumedDevices) -> None:
        self.assumed[uid] = assumed_devices
        for owner in assumed_devices.owners:
            self._reservation_of_owner[owner] = uid
            self._move_to_reservation(assumed_devices.node_name, owner, uid)
        self._allocate(
            assumed_devices.node_name, uid, assumed_devices.allocation.device_amounts, assumed_devices.reservation
        )

    def forget(self, uid: str) -> None:
        """Release what was assumed and not bound; otherwise there is nothing to release."""
        assumed_devices = self.assumed.pop(uid, None)
        if assumed_devices is not None:
            self._release(assumed_devices.node_name, uid)
            self._release_owners(assumed_devices)

    def _release_owners(self, assumed_devices: AssumedDevices) -> None:
        """Take the owners out of a reservation that does not come into being."""
        for owner in assumed_devices.owners:
            if self._reservation_of_owner.pop(owner, None) is not None:
                self._move_to_reservation(assumed_devices.node_name, owner, "")

    def _move_to_reservation(self, name: str, owner: str, reservation_uid: str) -> None:
        node_devices = self.nodes.get(name)
        held = node_devices.allocated_to(owner) if node_devices is not None else None
        if held is not None:
            self._release(name, owner)
            self._allocate(name, owner, held, reservation_uid)

    def set_claimed(self, name: str, holdings: DeviceAmounts) -> None:
        """Count these devices of a node as held, because resource claims use them; empty for none."""
        node_devices = self.nodes.get(name)
        if node_devices is None or (node_devices.allocated_to(CLAIMED) or {}) == holdings:
            return
        self._release(name, CLAIMED)
        if holdings:
            self._allocate(name, CLAIMED, holdings, "")

    # Pods --------------------------------------------------------------------------------------------------------

    def _on_placement(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        if what == "remove":
            if A_DEVICE_ALLOCATED in pod.annotations or pod.uid in self.assumed:
                assumed_devices = self.assumed.pop(pod.uid, None)
                self.unreadable.pop(pod.uid, None)
                self._release(node.name, pod.uid)
                if assumed_devices is not None:
                    self._release_owners(assumed_devices)
        elif A_DEVICE_ALLOCATED in pod.annotations and not self._state.is_assumed(pod.uid):
            self._read_annotation(pod)

    def _on_pod_update(self, before: PodInfo, after: PodInfo) -> None:
        """Replace the assumed allocation by the annotation of the pod once it is seen bound."""
        assumed_devices = self.assumed.get(after.uid)
        if assumed_devices is not None:
            owners = [
                owner for owner in assumed_devices.owners if self._reservation_of_owner.pop(owner, None) is not None
            ]
            self.forget(after.uid)
            for owner in owners:  # from now on their annotations name their reservation
                self._move_to_reservation(assumed_devices.node_name, owner, after.uid)
            if A_DEVICE_ALLOCATED in after.annotations:
                self._read_annotation(after)

    def _read_annotation(self, pod: PodInfo) -> None:
        held = pod_device_amounts(pod.annotations, pod.node_name, _RUNNING)
        if isinstance(held, MalformedAnnotation):
            self.unreadable[pod.uid] = held
            self._record_event(pod, "UnreadableDevices", f"no devices are counted as this pod's: {held}")
        elif held is not None:
            stated = _allocated_reservation(pod.annotations)
            if stated:
                self._reservation_of_owner.pop(pod.uid, None)
            self._allocate(pod.node_name, pod.uid, held, stated or self._reservation_of_owner.get(pod.uid, ""))

    def note_bound_without_device(self, pod: PodInfo, node_name: str) -> None:
        """Record an event for a pod bound to a node without Device, though others have one: likely an error."""
        if self.nodes:
            words = (
                f"node {node_name} has no Device object: its device plugin chooses the devices, and nobody counts them"
            )
            self._record_event(pod, "DevicesUncounted", words)

    def _record_event(self, pod: PodInfo, reason: str, words: str) -> None:
        self.pending_events.append((pod, reason, words))
        if self.on_event is not None:
            self.on_event()

    def _allocate(self, name: str, uid: str, holdings: DeviceAmounts, reservation: str) -> None:
        node_devices = self.nodes.get(name)
        if node_devices is None:
            self._without_device.setdefault(name, {})[uid] = (holdings, reservation)
        else:
            self._set(name, node_devices.with_allocation(uid, holdings, reservation))

    def _release(self, name: str, uid: str) -> None:
        node_devices = self.nodes.get(name)
        if node_devices is not None:
            self._set(name, node_devices.without_allocation(uid))
            return
        waiting = self._without_device.get(name)
        if waiting is not None:
            waiting.pop(uid, None)
            if not waiting:
                del self._without_device[name]

    def _set(self, name: str, node_devices: NodeDevices) -> None:
        self.nodes[name] = node_devices
        node = self._state.table.index.get(name)
        if node is not None:
            self._state.table.mark_changed(node.row)

    # For comparison ----------------------------------------------------------------------------------------------

    def iter_allocations(self) -> Iterator[tuple[str, str, DeviceAmounts]]:
        """Yield (node, uid, holdings) of every pod, also where no Device object lists the cards."""
        for name, node_devices in self.nodes.items():
            for uid, holdings in node_devices.ledger.allocations.items():
                yield name, uid, holdings
        for name, waiting in self._without_device.items():
            for uid, (holdings, _) in waiting.items():
                yield name, uid, holdings

    def rebuild_allocations(self) -> dict[tuple[str, str], DeviceAmounts]:
        """Recompute the holdings by node and uid from placed pods and assumed allocations alone."""
        found: dict[tuple[str, str], DeviceAmounts] = {}
        for pod in self._state.pods():
            assumed_devices = self.assumed.get(pod.uid)
            if assumed_devices is not None:
                found[assumed_devices.node_name, pod.uid] = assumed_devices.allocation.device_amounts
            elif not self._state.is_assumed(pod.uid):
                held = pod_device_amounts(pod.annotations, pod.node_name, _RUNNING)
                if held is not None and not isinstance(held, MalformedAnnotation):
                    found[pod.node_name, pod.uid] = held
        return found


def _uid(node: NodeInfo) -> str:
    return node.node.metadata.uid if node.node is not None else ""


def _allocated_reservation(annotations: Mapping[str, str]) -> str:
    if A_RESERVATION_ALLOCATED not in annotations:
        return ""
    inside = reservation_codecs.parse_reservation_allocated(annotations)
    return "" if inside is None or isinstance(inside, MalformedAnnotation) else inside.uid


def _inventory_key(inventory: DeviceInventory) -> bytes:
    """Return a key that is equal for inventories that give the same. Card names do not count: minors identify cards."""
    cards = [
        (c.type, c.minor, c.healthy, c.total, c.labels, c.placed, c.numa, c.pcie, c.virtual_functions)
        for minors in inventory.cards.values()
        for c in minors.values()
    ]
    partitions = None if inventory.partitions is None else [*sorted(inventory.partitions.items())]
    rest = (inventory.honors_partitions, inventory.vendor, inventory.model, inventory.has_planned_secondary_devices)
    return deterministic_bytes((cards, partitions, rest))
