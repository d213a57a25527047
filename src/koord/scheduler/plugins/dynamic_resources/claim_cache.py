"""Keep which devices are in use: by claims that are allocated, and by allocations that are decided and not seen yet.

    Reserve            begin: the claim is pending, its devices are in use
    written            the claim counts as allocated at once, as the server answered it
    shown by watch     the claim's own status is counted instead
    undone before it was written, or deleted: nothing is counted

An allocation that was written stays until the watch shows it, even where the pod failed: the server has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from koord.api.kubernetes.dynamic_resources import ResourceClaim
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.plugins.dynamic_resources.resource_slice_cache import DeviceId, ResourceSliceCache


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
