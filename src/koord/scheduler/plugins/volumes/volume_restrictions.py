"""VolumeRestrictions keeps pods apart that may not use one disk, or one ReadWriteOncePod claim, at the same time."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Literal

from koord.api.kubernetes.builtin_kinds import PERSISTENT_VOLUME_CLAIMS
from koord.api.kubernetes.volume import Volume
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ADD, DELETE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, PreFilterResult, Reject, Skip, reject, unresolvable
from koord.scheduler.plugins.volumes.pod_volumes import CLAIM_KIND, named_claims, names_claim, not_found_message

_MEMO = "volumes/disks"


def disks(pod: PodInfo) -> tuple[Volume, ...]:
    """Return the pod's inline disks that could conflict with another pod's."""
    known: tuple[Volume, ...] | None = pod.shape.memo.get(_MEMO)
    if known is None:
        known = pod.shape.memo[_MEMO] = tuple(
            v
            for v in pod.shape.spec.volumes
            if v.gce_persistent_disk is not None
            or v.aws_elastic_block_store is not None
            or v.iscsi is not None
            or v.rbd is not None
        )
    return known


def any_conflict(wanted: Iterable[Volume], held: Iterable[Volume]) -> bool:
    others = tuple(held)
    return any(_conflict(one, other) for one in wanted for other in others)


def _conflict(a: Volume, b: Volume) -> bool:
    """Return whether two mounts of one disk conflict. Readers may share a disk, except for EBS."""
    if a.gce_persistent_disk is not None and b.gce_persistent_disk is not None:
        one, other = a.gce_persistent_disk, b.gce_persistent_disk
        return one.pd_name == other.pd_name and not (one.read_only and other.read_only)
    if a.aws_elastic_block_store is not None and b.aws_elastic_block_store is not None:
        return a.aws_elastic_block_store.volume_id == b.aws_elastic_block_store.volume_id
    if a.iscsi is not None and b.iscsi is not None:
        return a.iscsi.iqn == b.iscsi.iqn and not (a.iscsi.read_only and b.iscsi.read_only)
    if a.rbd is not None and b.rbd is not None:
        image, held = a.rbd, b.rbd
        if image.read_only and held.read_only:
            return False
        same = (image.pool, image.image) == (held.pool, held.image)
        return same and not set(image.monitors).isdisjoint(held.monitors)
    return False


class ClaimUserCounts:
    def __init__(self, state: ClusterState) -> None:
        self._count: dict[tuple[str, str], int] = {}  # by namespace and claim
        state.add_placement_listener(self._on_placement)

    def count(self, namespace: str, claim: str) -> int:
        return self._count.get((namespace, claim), 0)

    def _on_placement(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        named = named_claims(pod)
        for claim in set(named) if named else ():
            key = (pod.namespace, claim)
            left = self._count.get(key, 0) + (1 if what == "add" else -1)
            if left:
                self._count[key] = left
            else:
                self._count.pop(key, None)


_ONE_POD = "ReadWriteOncePod"
_DISK_TAKEN = reject("node(s) had no available disk")
_CLAIM_TAKEN = reject(
    "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
)


class SinglePodClaims:
    """The pod's ReadWriteOncePod claims, with the number of placed pods that use each."""

    def __init__(self, users: dict[str, int]) -> None:
        self.users = users

    def copy(self) -> SinglePodClaims:
        return SinglePodClaims(dict(self.users))

    def count(self, pod: PodInfo, sign: int) -> None:
        for claim in self.users.keys() & set(named_claims(pod)):
            self.users[claim] += sign

    @property
    def is_in_use(self) -> bool:
        return any(count > 0 for count in self.users.values())


class VolumeRestrictions(Plugin):
    name = "VolumeRestrictions"
    scope = ROW
    wakes_on = (ClusterEvent("Pod", DELETE), ClusterEvent("Node", ADD), ClusterEvent("PersistentVolumeClaim", ADD))

    def __init__(self, handle: Handle) -> None:
        self._claims = handle.lister(PERSISTENT_VOLUME_CLAIMS)
        self._users = handle.state.derived(ClaimUserCounts)

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        if object_event.event.kind == "PersistentVolumeClaim":
            return names_claim(pod, object_event.new)
        if object_event.event.kind == "Node":
            return True
        gone: PodInfo = object_event.old
        if gone.namespace != pod.namespace:
            return False
        shared = not set(named_claims(pod)).isdisjoint(named_claims(gone))
        return shared or any_conflict(disks(pod), disks(gone))

    def signature(self, pod: PodInfo) -> Hashable:
        """Return the use of the pod's single-pod claims: the same for every node, so a change makes another class."""
        found = self._single_pod_claims(pod)
        if found is None or isinstance(found, str):
            return found
        return pod.namespace, tuple(found.users.items())

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Skip | PreFilterResult | Fault | None:
        found = self._single_pod_claims(pod)
        if isinstance(found, str):
            return unresolvable(not_found_message(CLAIM_KIND, found))
        if not disks(pod) and (found is None or not found.is_in_use):
            return SKIP
        cycle.write(self.name, found or SinglePodClaims({}))
        return None

    def add_pod(self, cycle: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        if other.namespace == pod.namespace:
            cycle.read(self.name, SinglePodClaims).count(other, 1)

    def remove_pod(self, cycle: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        if other.namespace == pod.namespace:
            cycle.read(self.name, SinglePodClaims).count(other, -1)

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        wanted = disks(pod)
        if wanted and any(any_conflict(wanted, disks(other)) for other in node.pods.values()):
            return _DISK_TAKEN
        return _CLAIM_TAKEN if cycle.read(self.name, SinglePodClaims).is_in_use else None

    def _single_pod_claims(self, pod: PodInfo) -> SinglePodClaims | str | None:
        """Return the single-pod claims, the name of a claim that does not exist, or None without claims."""
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
        return SinglePodClaims(users)
