"""Keep which devices are in use: by claims that are allocated, and by allocations that are decided and not seen yet.

    Reserve            begin: the claim is pending, its devices are in use
    written            the claim counts as allocated at once, as the server answered it
    shown by watch     the claim's own status is counted instead
    undone before it was written, or deleted: nothing is counted

An allocation that was written stays until the watch shows it, even where the pod failed: the server has it.

Read who uses a claim, and make the writes of its status: allocate and reserve it, release it, deallocate it.

Keep DeviceShare and resource claims from giving one card twice.

A device of a slice and a card of the node's Device object are one where an attribute that names hardware has the id of
the card: the UUID of a GPU, the PCI address of a network card. What claims use is counted as held in DeviceShare's
cache; what pods hold there is in use for claims. Nodes without a Device object have nothing to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import msgspec

from koord.api.kubernetes.builtin_kinds import RESOURCE_CLAIMS
from koord.api.kubernetes.dynamic_resources import AllocationResult, ResourceClaim
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.verdict import Fault, StatusWrite
from koord.scheduler.plugins.device_share.cache import NodeDeviceCache
from koord.scheduler.plugins.device_share.device_amounts import DeviceAmounts
from koord.scheduler.plugins.device_share.node_devices import NodeDevices
from koord.scheduler.plugins.dynamic_resources.resource_slice_cache import (
    ClaimableDevice,
    DeviceId,
    ReachablePool,
    ResourceSliceCache,
)


class PendingAllocation(msgspec.Struct, frozen=True):
    """An allocation that the watch does not show yet."""

    pod_uid: str
    claim: ResourceClaim
    result: dict[str, Any]  # as written into the claim's status
    devices: tuple[DeviceId, ...]  # that nobody else may use


class ClaimCache:
    """The claims of the cluster; one for all profiles, got with `state.derived(ClaimCache)`."""

    def __init__(self, state: ClusterState) -> None:
        self._slices = state.derived(ResourceSliceCache)
        self._devices_by_claim: dict[str, tuple[DeviceId, ...]] = {}  # by uid, of claims that the watch shows
        self._pending: dict[str, PendingAllocation] = {}  # by uid of the claim
        self._written: dict[str, ResourceClaim] = {}  # by uid: as the server answered, until the watch shows that
        self._use_counts: dict[DeviceId, int] = {}
        self.releasing: set[tuple[str, str]] = set()  # uids of claims and of pods that are being taken off them

    @property
    def in_use(self) -> Mapping[DeviceId, int]:
        """Return the devices in use, with how many claims use each: more than one is somebody's mistake."""
        return self._use_counts

    # Claims as the watch shows them --------------------------------------------------------------------------------

    def claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """Handle an event. Each profile's plugin calls this; only the first of equal calls changes anything."""
        claim = new if new is not None else old
        assert claim is not None
        if old is not None and new is not None and old.metadata.uid != new.metadata.uid:
            self.claim_changed(old, None)
        uid = claim.metadata.uid
        written = self._written.get(uid)
        is_caught_up = new is None or (written is not None and _revision(new) >= _revision(written))
        if is_caught_up:
            self._written.pop(uid, None)
        if is_caught_up or (new is not None and new.status.allocation is not None):
            self._drop_pending(uid)
        self._replace(uid, () if new is None else exclusive_devices(new))

    def latest(self, shown: ResourceClaim) -> ResourceClaim:
        """Return the claim as it is known: as written, until the watch shows that."""
        return self._written.get(shown.metadata.uid, shown)

    # Allocations that are decided ----------------------------------------------------------------------------------

    def pending(self, claim_uid: str) -> PendingAllocation | None:
        """Return the allocation of a claim that is decided and not written."""
        return None if claim_uid in self._written else self._pending.get(claim_uid)

    def begin(self, allocation: PendingAllocation) -> None:
        self._drop_pending(allocation.claim.metadata.uid)
        self._pending[allocation.claim.metadata.uid] = allocation
        self._count(allocation.devices, 1)

    def note_written(self, shown: ResourceClaim | None, written: ResourceClaim) -> None:
        """Take the server's answer to a write of a claim, unless the watch shows as much already."""
        if shown is not None and _revision(shown) < _revision(written):
            self._written[written.metadata.uid] = written

    def undo(self, claim_uid: str, pod_uid: str) -> PendingAllocation | None:
        """Drop and return the pod's allocation of a claim; None where there is none, or it is written already."""
        pending = self.pending(claim_uid)
        if pending is None or pending.pod_uid != pod_uid:
            return None
        self._drop_pending(claim_uid)
        return pending

    def _drop_pending(self, uid: str) -> None:
        pending = self._pending.pop(uid, None)
        if pending is not None:
            self._count(pending.devices, -1)

    def _replace(self, uid: str, devices: tuple[DeviceId, ...]) -> None:
        before = self._devices_by_claim.get(uid, ())
        if before == devices:
            return
        self._count(before, -1)
        self._count(devices, 1)
        if devices:
            self._devices_by_claim[uid] = devices
        else:
            self._devices_by_claim.pop(uid, None)

    def _count(self, devices: Iterable[DeviceId], change: int) -> None:
        for device in devices:
            left = self._use_counts.get(device, 0) + change
            if left:
                self._use_counts[device] = left
            else:
                del self._use_counts[device]
        self._slices.devices_changed(devices)


def exclusive_devices(claim: ResourceClaim) -> tuple[DeviceId, ...]:
    """Return the devices of a claim that nobody else may use: access as an administrator takes none."""
    allocation = claim.status.allocation
    results = allocation.devices.results if allocation is not None else ()
    return tuple((each.driver, each.pool, each.device) for each in results if not each.admin_access)


def _revision(claim: ResourceClaim) -> int:
    """Return the resource version as a number, as Kubernetes 1.35 lets clients compare them."""
    text = claim.metadata.resource_version
    return int(text) if text.isdecimal() else 0


FINALIZER = "resource.kubernetes.io/delete-protection"
MAX_CONSUMERS = 256


def key(claim: ResourceClaim) -> str:
    return f"{claim.metadata.namespace}/{claim.metadata.name}"


def is_reserved_for(claim: ResourceClaim, pod_uid: str) -> bool:
    return any(consumer.uid == pod_uid for consumer in claim.status.reserved_for)


def has_room(claim: ResourceClaim) -> bool:
    """Return whether one more pod may use an allocated claim."""
    return len(claim.status.reserved_for) < MAX_CONSUMERS


def is_used_by_nobody_but(claim: ResourceClaim, pod_uid: str) -> bool:
    return all(consumer.uid == pod_uid for consumer in claim.status.reserved_for)


def as_allocated(claim: ResourceClaim) -> ResourceClaim:
    """Return the claim as it would be with devices, for an event that says that they are free again."""
    return msgspec.structs.replace(claim, status=msgspec.structs.replace(claim.status, allocation=AllocationResult()))


def reservation(
    claim: ResourceClaim, pod: PodInfo, result: dict[str, Any] | None, on_written: Callable[[ResourceClaim], None]
) -> StatusWrite:
    """Reserve a claim for a pod; `result` is the allocation to write with it, None where it has one already."""

    def make_status(live: ResourceClaim) -> dict[str, Any] | Fault | None:
        if live.metadata.deletion_timestamp is not None:
            return Fault(f"claim {key(live)} got deleted in the meantime")
        if is_reserved_for(live, pod.uid):
            return None
        if result is not None and live.status.allocation is not None:
            return Fault(f"claim {key(live)} got allocated elsewhere in the meantime")
        if result is None and live.status.allocation is None:
            return Fault(f"claim {key(live)} got deallocated elsewhere in the meantime")
        if not has_room(live):
            return Fault(f"claim {key(live)} is in use by {MAX_CONSUMERS} others")
        consumer = {"resource": "pods", "name": pod.name, "uid": pod.uid}
        users = [*msgspec.to_builtins(live.status.reserved_for), consumer]
        return {"reservedFor": users} if result is None else {"allocation": result, "reservedFor": users}

    return _status_write(
        claim,
        make_status,
        lambda live: is_reserved_for(live, pod.uid),
        finalizer=FINALIZER if result is not None else "",
        on_written=on_written,
    )


def release(
    claim: ResourceClaim,
    pod_uid: str,
    on_written: Callable[[ResourceClaim], None],
    on_failed: Callable[[Fault], None],
) -> StatusWrite:
    """Take a pod off the users of a claim."""

    def make_status(live: ResourceClaim) -> dict[str, Any] | None:
        if not is_reserved_for(live, pod_uid):
            return None
        users = [consumer for consumer in live.status.reserved_for if consumer.uid != pod_uid]
        return {"reservedFor": msgspec.to_builtins(users) or None}

    return _status_write(
        claim,
        make_status,
        lambda live: not is_reserved_for(live, pod_uid),
        on_written=on_written,
        on_failed=on_failed,
    )


def deallocation(claim: ResourceClaim, pod_uid: str) -> StatusWrite:
    """Give back the devices of a claim that nobody but the pod uses."""

    def make_status(live: ResourceClaim) -> dict[str, Any] | Fault | None:
        if live.status.allocation is None:
            return None
        if not is_used_by_nobody_but(live, pod_uid):
            return Fault(f"claim {key(live)} got reserved for others in the meantime")
        return {"allocation": None, "reservedFor": None, "devices": None}

    return _status_write(claim, make_status, lambda live: live.status.allocation is None)


def _status_write(
    claim: ResourceClaim,
    make_status: Callable[[ResourceClaim], dict[str, Any] | Fault | None],
    is_written: Callable[[ResourceClaim], bool],
    *,
    finalizer: str = "",
    on_written: Callable[[ResourceClaim], None] | None = None,
    on_failed: Callable[[Fault], None] | None = None,
) -> StatusWrite:
    meta = claim.metadata
    return StatusWrite(
        RESOURCE_CLAIMS,
        meta.namespace,
        meta.name,
        meta.uid,
        make_status,
        is_written,
        finalizer=finalizer,
        known=claim,
        on_written=on_written,
        on_failed=on_failed,
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
