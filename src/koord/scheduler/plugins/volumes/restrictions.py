"""VolumeRestrictions keeps pods apart that may not use one disk, or one ReadWriteOncePod claim, at the same
time.
"""

from __future__ import annotations

from collections.abc import Hashable

from koord.api.builtin import PERSISTENT_VOLUME_CLAIMS
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, DELETE, Event, Happened
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, Only, Reject, Skip, reject, unresolvable
from koord.scheduler.plugins.volumes.claims import MISSING_CLAIM, missing, named_claims, names
from koord.scheduler.plugins.volumes.disk import any_clash, disks
from koord.scheduler.plugins.volumes.users import ClaimUsers
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo

_ONE_POD = "ReadWriteOncePod"
_DISK_TAKEN = reject("node(s) had no available disk")
_CLAIM_TAKEN = reject(
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)


class Exclusive:
    """The pod's ReadWriteOncePod claims, with the number of placed pods that use each."""

    def __init__(self, users: dict[str, int]) -> None:
        self.users = users

    def copy(self) -> Exclusive:
        return Exclusive(dict(self.users))

    def count(self, pod: PodInfo, sign: int) -> None:
        for claim in self.users.keys() & set(named_claims(pod)):
            self.users[claim] += sign

    @property
    def taken(self) -> bool:
        return any(count > 0 for count in self.users.values())


class VolumeRestrictions(Plugin):
    name = "VolumeRestrictions"
    scope = ROW
    wakes_on = (Event("Pod", DELETE), Event("Node", ADD), Event("PersistentVolumeClaim", ADD))

    def __init__(self, handle: Handle) -> None:
        self._claims = handle.lister(PERSISTENT_VOLUME_CLAIMS)
        self._users = handle.state.derived(ClaimUsers)

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        if happened.event.kind == "PersistentVolumeClaim":
            return names(pod, happened.new)
        if happened.event.kind == "Node":
            return True
        gone: PodInfo = happened.old
        if gone.namespace != pod.namespace:
            return False
        shared = not set(named_claims(pod)).isdisjoint(named_claims(gone))
        return shared or any_clash(disks(pod), disks(gone))

    def signature(self, pod: PodInfo) -> Hashable:
        """Return the use of the pod's single-pod claims: it is the same for every node, so a change makes another
        class.
        """
        found = self._exclusive(pod)
        if found is None or isinstance(found, str):
            return found
        return pod.namespace, tuple(found.users.items())

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | Only | Fault | None:
        found = self._exclusive(pod)
        if isinstance(found, str):
            return unresolvable(missing(MISSING_CLAIM, found))
        if not disks(pod) and (found is None or not found.taken):
            return SKIP
        cycle.keep(self.name, found or Exclusive({}))
        return None

    def add_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        if other.namespace == pod.namespace:
            cycle.of(self.name, Exclusive).count(other, 1)

    def remove_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        if other.namespace == pod.namespace:
            cycle.of(self.name, Exclusive).count(other, -1)

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        wanted = disks(pod)
        if wanted and any(any_clash(wanted, disks(other)) for other in node.pods.values()):
            return _DISK_TAKEN
        return _CLAIM_TAKEN if cycle.of(self.name, Exclusive).taken else None

    def _exclusive(self, pod: PodInfo) -> Exclusive | str | None:
        """Return the single-pod claims, the name of a claim that does not exist, or None when the pod names no claims.

        """
        wanted = named_claims(pod)
        if not wanted:
            return None
        users: dict[str, int] = {}
        for name in wanted:
            claim = self._claims.get(pod.namespace, name)
            if claim is None:
                return name
            if _ONE_POD in claim.spec.access_modes:
                users[name] = self._users.count(pod.namespace, name)
        return Exclusive(users)
