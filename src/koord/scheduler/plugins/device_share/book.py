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

from koord.api.annotations import reservation_allocated
from koord.api.annotations.codec import Malformed
from koord.api.device import Device
from koord.api.protocol import A_DEVICE_ALLOCATED, A_RESERVATION_ALLOCATED
from koord.policy.device.allocator import Allocation
from koord.policy.device.annotation import held_by
from koord.policy.device.holding import Holdings
from koord.policy.device.inventory import DeviceInventory, inventory_of, without_health
from koord.policy.device.ledger import DeviceLedger
from koord.scheduler.plugins.device_share.site import Site
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.wire import signature

_KINDS_KEPT = 20_000
_REMARKS_KEPT = 256
_RUNNING = "Running"  # the state holds no terminated pods


class Promise(msgspec.Struct, frozen=True):
    """Devices chosen for a pod that is not bound yet. `owners`: running pods whose devices are among these."""

    node_name: str
    allocation: Allocation
    reservation: str = ""
    guests: tuple[str, ...] = ()


class Book:
    """The devices of all nodes; one for all profiles, got with `state.derived(NodeDeviceCache)`."""
    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._kinds: dict[bytes, int] = {}
        self._kinds_made = 0
        self._devices: dict[str, Device] = {}  # as last seen
        self.sites: dict[str, Site] = {}  # by node name; of nodes that have or had a Device object
        self._waiting: dict[str, dict[str, tuple[Holdings, str]]] = {}  # holdings of pods on nodes whose Device is not known yet
        self._orphans: dict[str, str] = {}  # nodes whose Device object is gone, with the UID of the node
        self.promises: dict[str, Promise] = {}  # by uid
        self._hosts: dict[str, str] = {}  # by uid of an owner: the reservation that is assumed to take it over
        self.unreadable: dict[str, Malformed] = {}  # by uid, of pods whose annotation cannot be read
        # Events for pods (pod, reason, message). The leader's controller publishes them; `on_event` notifies it.
        self.remarks: deque[tuple[PodInfo, str, str]] = deque(maxlen=_REMARKS_KEPT)
        self.heard: Callable[[], None] | None = None
        state.listen(self._placed)
        state.follow(self._updated)

    def of(self, node: NodeInfo) -> Site | None:
        """Return the node's devices; None if no Device object of this node was ever seen."""
        if self._orphans and node.name in self._orphans and self._orphans[node.name] != _uid(node):
            self._forget_orphan(node.name)  # another node of that name
        return self.sites.get(node.name)

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
        inventory = inventory_of(new)
        site = self.sites.get(name)
        if site is None:
            site = Site(DeviceLedger(inventory), self._kind(inventory))
            for uid, (holdings, reservation) in self._waiting.pop(name, {}).items():
                site = site.taken(uid, holdings, reservation)
        elif site.inventory == inventory:
            return
        else:
            site = site.over(inventory, self._kind(inventory))
        self._set(name, site)

    def _device_gone(self, name: str) -> None:
        """Stop giving the node's cards until its Device returns, but remember who holds them while the node exists."""
        self._devices.pop(name, None)
        site = self.sites.get(name)
        if site is None:
            return
        node = self._state.node(name)
        self._orphans[name] = "" if node is None else _uid(node)
        gone = without_health(site.inventory)
        self._set(name, site.over(gone, self._kind(gone)))
        if node is None:
            self._forget_orphan(name)

    def _forget_orphan(self, name: str) -> None:
        """Drop the node's devices; pods that are still bound there keep what they hold."""
        del self._orphans[name]
        site = self.sites.pop(name)
        waiting = {uid: (held, site.tenants.get(uid, "")) for uid, held in site.ledger.allocations.items()}
        if waiting:
            self._waiting[name] = waiting

    def _kind(self, inventory: DeviceInventory) -> int:
        key = _shown(inventory)
        known = self._kinds.get(key)
        if known is None:
            if len(self._kinds) >= _KINDS_KEPT:  # numbers are never used again, so nothing is mistaken for another
                self._kinds.clear()
            known = self._kinds[key] = self._kinds_made
            self._kinds_made += 1
        return known

    # Promises ----------------------------------------------------------------------------------------------------

    def promise(self, uid: str, promise: Promise) -> None:
        self.promises[uid] = promise
        for guest in promise.guests:
            self._hosts[guest] = uid
            self._move(promise.node_name, guest, uid)
        self._take(promise.node_name, uid, promise.allocation.holdings, promise.reservation)

    def withdraw(self, uid: str) -> None:
        """Release what was assumed and not bound; otherwise there is nothing to release."""
        promise = self.promises.pop(uid, None)
        if promise is not None:
            self._free(promise.node_name, uid)
            self._let_go(promise)

    def _let_go(self, promise: Promise) -> None:
        """Take the owners out of a reservation that does not come into being."""
        for guest in promise.guests:
            if self._hosts.pop(guest, None) is not None:
                self._move(promise.node_name, guest, "")

    def _move(self, name: str, guest: str, host: str) -> None:
        site = self.sites.get(name)
        held = site.held(guest) if site is not None else None
        if held is not None:
            self._free(name, guest)
            self._take(name, guest, held, host)

    # Pods --------------------------------------------------------------------------------------------------------

    def _placed(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        if what == "remove":
            if A_DEVICE_ALLOCATED in pod.annotations or pod.uid in self.promises:
                promise = self.promises.pop(pod.uid, None)
                self.unreadable.pop(pod.uid, None)
                self._free(node.name, pod.uid)
                if promise is not None:
                    self._let_go(promise)
        elif A_DEVICE_ALLOCATED in pod.annotations and not self._state.is_assumed(pod.uid):
            self._read(pod)

    def _updated(self, before: PodInfo, after: PodInfo) -> None:
        """Replace the assumed allocation by the annotation of the pod once it is seen bound."""
        promise = self.promises.get(after.uid)
        if promise is not None:
            guests = [guest for guest in promise.guests if self._hosts.pop(guest, None) is not None]
            self.withdraw(after.uid)
            for guest in guests:  # from now on their annotations name their reservation
                self._move(promise.node_name, guest, after.uid)
            if A_DEVICE_ALLOCATED in after.annotations:
                self._read(after)

    def _read(self, pod: PodInfo) -> None:
        held = held_by(pod.annotations, pod.node_name, _RUNNING)
        if isinstance(held, Malformed):
            self.unreadable[pod.uid] = held
            self._remark(pod, "UnreadableDevices", f"no devices are counted as this pod's: {held}")
        elif held is not None:
            stated = _reservation_of(pod.annotations)
            if stated:
                self._hosts.pop(pod.uid, None)
            self._take(pod.node_name, pod.uid, held, stated or self._hosts.get(pod.uid, ""))

    def bound_blindly(self, pod: PodInfo, node_name: str) -> None:
        """Record an event for a pod bound to a node without a Device object, though other nodes have one: most likely
        an error.
        """
        if self.sites:
            words = (
                f"node {node_name} has no Device object: its device plugin chooses the devices, and nobody counts them"
            )
            self._remark(pod, "DevicesUncounted", words)

    def _remark(self, pod: PodInfo, reason: str, words: str) -> None:
        self.remarks.append((pod, reason, words))
        if self.heard is not None:
            self.heard()

    def _take(self, name: str, uid: str, holdings: Holdings, reservation: str) -> None:
        site = self.sites.get(name)
        if site is None:
            self._waiting.setdefault(name, {})[uid] = (holdings, reservation)
        else:
            self._set(name, site.taken(uid, holdings, reservation))

    def _free(self, name: str, uid: str) -> None:
        site = self.sites.get(name)
        if site is not None:
            self._set(name, site.freed(uid))
            return
        waiting = self._waiting.get(name)
        if waiting is not None:
            waiting.pop(uid, None)
            if not waiting:
                del self._waiting[name]

    def _set(self, name: str, site: Site) -> None:
        self.sites[name] = site
        node = self._state.table.index.get(name)
        if node is not None:
            self._state.table.note(node.row)

    # For comparison ----------------------------------------------------------------------------------------------

    def held(self) -> Iterator[tuple[str, str, Holdings]]:
        """Yield (node, uid, holdings) of every pod, also where no Device object lists the cards."""
        for name, site in self.sites.items():
            for uid, holdings in site.ledger.allocations.items():
                yield name, uid, holdings
        for name, waiting in self._waiting.items():
            for uid, (holdings, _) in waiting.items():
                yield name, uid, holdings

    def rebuilt(self) -> dict[tuple[str, str], Holdings]:
        """Recompute the holdings by node and uid from placed pods and assumed allocations alone."""
        found: dict[tuple[str, str], Holdings] = {}
        for pod in self._state.pods():
            promise = self.promises.get(pod.uid)
            if promise is not None:
                found[promise.node_name, pod.uid] = promise.allocation.holdings
            elif not self._state.is_assumed(pod.uid):
                held = held_by(pod.annotations, pod.node_name, _RUNNING)
                if held is not None and not isinstance(held, Malformed):
                    found[pod.node_name, pod.uid] = held
        return found


def _uid(node: NodeInfo) -> str:
    return node.node.metadata.uid if node.node is not None else ""


def _reservation_of(annotations: Mapping[str, str]) -> str:
    if A_RESERVATION_ALLOCATED not in annotations:
        return ""
    inside = reservation_allocated.parse(annotations)
    return "" if inside is None or isinstance(inside, Malformed) else inside.uid


def _shown(inventory: DeviceInventory) -> bytes:
    """Return a key that is equal for inventories that give the same. Card names do not count: minors identify
    cards.
    """
    cards = [
        (c.type, c.minor, c.healthy, c.total, c.labels, c.placed, c.numa, c.pcie, c.functions)
        for minors in inventory.cards.values()
        for c in minors.values()
    ]
    partitions = None if inventory.partitions is None else [*sorted(inventory.partitions.items())]
    rest = (inventory.honours_partitions, inventory.vendor, inventory.model, inventory.well_planned)
    return signature((cards, partitions, rest))
