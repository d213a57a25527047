"""VolumeBinding places a pod where its claims' volumes are, can be bound or can be provisioned.

It says what must be written for that; the scheduler writes it.

Score nodes by the storage that is left for a pod's volumes (feature gate StorageCapacityScoring).

utilization of a class = what the pod's claims request / what there is:
    the volumes that would be bound, if there are any on this node; else the capacity that the driver reports
score of a node = mean over the classes of the shape's value at that utilization
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import msgspec

from koord.api.config.scheduler.in_tree_args import UtilizationShapePoint, VolumeBindingArgs
from koord.api.kubernetes.builtin_kinds import CSI_NODES
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework import verdict
from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import MAX_SCORE, Codes, Plugin
from koord.scheduler.plugins.node_resources.fit import interpolate_shape
from koord.scheduler.plugins.volumes.pod_volumes import claim_references, storage_class_of, uses_claim
from koord.scheduler.plugins.volumes.pv_matcher import ProvisioningCheck, largest_volume, storage_quantity
from koord.scheduler.plugins.volumes.volume_binder import REASONS, BindingProgress, PodClaims, VolumeBinder, VolumePlan

_DEFAULT_TIMEOUT_S = 600
_MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"


class VolumeBinding(Plugin):
    name = "VolumeBinding"
    scope = verdict.CLUSTER
    reads_pods = "nothing"
    wakes_on = (
        ClusterEvent("StorageClass", ADD),
        ClusterEvent("StorageClass", UPDATE),
        ClusterEvent("PersistentVolumeClaim", ADD),
        ClusterEvent("PersistentVolumeClaim", UPDATE),
        ClusterEvent("PersistentVolume", ADD),
        ClusterEvent("PersistentVolume", UPDATE),
        ClusterEvent("Node", ADD),
        ClusterEvent("Node", UPDATE, "labels"),
        ClusterEvent("CSINode", ADD),
        ClusterEvent("CSINode", UPDATE),
        ClusterEvent("CSIDriver", UPDATE),
        ClusterEvent("CSIStorageCapacity", ADD),
        ClusterEvent("CSIStorageCapacity", UPDATE),
    )

    def __init__(self, args: VolumeBindingArgs | None, handle: Handle) -> None:
        told = args.bind_timeout_seconds if args is not None else None
        self._timeout_s = float(_DEFAULT_TIMEOUT_S if told is None else told)
        self._binder = VolumeBinder(handle)
        self._progress = BindingProgress(handle)
        handle.lister(CSI_NODES)  # only watched, for the events

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        kind, old, new = object_event.event.kind, object_event.old, object_event.new
        if kind == "PersistentVolumeClaim":
            return uses_claim(pod, new)
        if kind == "CSIDriver":
            inline = any(v.csi is not None and v.csi.driver == new.metadata.name for v in pod.shape.spec.volumes)
            return bool(inline and old.spec.storage_capacity and not new.spec.storage_capacity)
        if old is None:
            return True
        if kind == "StorageClass":
            return bool(old.allowed_topologies != new.allowed_topologies)
        if kind == "CSINode":
            return bool(old.metadata.annotations.get(_MIGRATED) != new.metadata.annotations.get(_MIGRATED))
        if kind == "CSIStorageCapacity":
            before, after = largest_volume(old), largest_volume(new)
            return after is not None and (before is None or after > before)
        return True

    def signature(self, pod: PodInfo) -> Hashable:
        return self._binder.signature(pod) if claim_references(pod) else None

    def epoch(self, cycle: CycleState) -> Hashable:
        """Return the binder's version for unbound claims. Bound claims are in the signature."""
        kept = cycle.plugin_data.get(self.name)
        return self._binder.version if isinstance(kept, PodClaims) and kept.unbound else 0

    def pre_filter(
        self, cycle: CycleState, pod: PodInfo
    ) -> verdict.Reject | verdict.Skip | verdict.PreFilterResult | verdict.Fault | None:
        if not claim_references(pod):
            return verdict.SKIP
        pod_claims = self._binder.pod_claims(pod)
        if not isinstance(pod_claims, PodClaims):
            return pod_claims
        cycle.write(self.name, pod_claims)
        return None

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> verdict.Reject | None:
        found = self._binder.find_pod_volumes(cycle.read(self.name, PodClaims), node)
        return found if isinstance(found, verdict.Reject) else None

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        return self._binder.find_pod_volumes_columns(cycle.read(self.name, PodClaims), table, rows)

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> verdict.Reject:
        return verdict.unresolvable(*(reason for i, reason in enumerate(REASONS) if code >> i & 1))

    def reserve(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> verdict.Reject | verdict.Fault | None:
        """Decide again for this pod alone: its class may have been evaluated before other pods took volumes."""
        if not claim_references(pod):
            return None
        pod_claims = self._binder.pod_claims(pod)
        if not isinstance(pod_claims, PodClaims):
            return pod_claims
        plan = self._binder.find_pod_volumes(pod_claims, node)
        if isinstance(plan, verdict.Reject):
            return plan
        if pod_claims.unbound:
            self._binder.assumed.assume(pod.uid, plan.to_pod_volumes())
        return None

    def unreserve(self, cycle: CycleState, pod: PodInfo, node_name: str) -> None:
        self._binder.assumed.revert(pod.uid)

    def pre_bind(self, cycle: CycleState, pod: PodInfo, node_name: str) -> verdict.PreBindActions | None:
        pod_volumes = self._binder.assumed.get(pod.uid)
        return (
            None
            if pod_volumes is None
            else verdict.PreBindActions(pod_volumes.writes(), self._timeout_s, lambda: self.is_bound(pod))
        )

    def is_bound(self, pod: PodInfo) -> bool | verdict.Fault:
        """Return whether the pod can be bound now; called after `pre_bind` whenever a claim or volume changed."""
        pod_volumes = self._binder.assumed.get(pod.uid)
        return True if pod_volumes is None else self._progress.is_complete(pod_volumes)


# Kubernetes' default with the gate: the more is left, the better.
DEFAULT_SHAPE = (UtilizationShapePoint(utilization=0, score=10), UtilizationShapePoint(utilization=100, score=0))


class StorageUse(msgspec.Struct, frozen=True):
    """Hold the bytes that a pod's claims of one storage class request on a node, and the bytes that are there."""

    requested: int
    capacity: int


def storage_score(uses: Mapping[str, StorageUse], curve: Sequence[int]) -> int:
    """Return the mean score of the storage classes, each by its utilization; 0 where none says anything."""
    if not uses:
        return 0
    total = sum(curve[_percent(use)] for use in uses.values())
    return (2 * total + len(uses)) // (2 * len(uses))  # to the nearest, halves up


def _percent(use: StorageUse) -> int:
    if use.capacity == 0 or use.requested > use.capacity:
        return MAX_SCORE
    return use.requested * MAX_SCORE // use.capacity


def storage_uses(plan: VolumePlan, provisioning: ProvisioningCheck, labels: Mapping[str, str]) -> dict[str, StorageUse]:
    """Return the use of storage by class: of the volumes to bind, or without any of those to provision.

    A class whose driver reports no capacity is left out.
    """
    uses: dict[str, StorageUse] = {}
    for volume, claim in plan.bind:
        name = volume.spec.storage_class_name
        before = uses.get(name, StorageUse(0, 0))
        uses[name] = StorageUse(
            before.requested + storage_quantity(claim.spec.resources.requests).value(),
            before.capacity + storage_quantity(volume.spec.capacity).value(),
        )
    for claim in () if plan.bind else plan.provision:
        capacity = provisioning.reported_capacity(claim, labels)
        if capacity is None:
            continue
        name = storage_class_of(claim)
        requested = uses[name].requested if name in uses else 0
        uses[name] = StorageUse(requested + storage_quantity(claim.spec.resources.requests).value(), capacity)
    return uses


class CapacityScoringVolumeBinding(VolumeBinding):
    """VolumeBinding that scores as well."""

    def __init__(self, args: VolumeBindingArgs | None, handle: Handle) -> None:
        super().__init__(args, handle)
        shape = (args.shape if args is not None else ()) or DEFAULT_SHAPE
        self._curve = [interpolate_shape(shape, percent) for percent in range(MAX_SCORE + 1)]

    def pre_score(
        self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]
    ) -> verdict.Skip | verdict.Fault | None:
        kept = cycle.plugin_data.get(self.name)
        return None if isinstance(kept, PodClaims) and kept.unbound else verdict.SKIP

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        plan = self._binder.find_pod_volumes(cycle.read(self.name, PodClaims), node)
        if isinstance(plan, verdict.Reject):
            return 0
        return storage_score(storage_uses(plan, self._binder.provisioning, node.labels), self._curve)


def new_volume_binding(args: VolumeBindingArgs | None, handle: Handle, *, scores_capacity: bool = False) -> Plugin:
    """Make the plugin as its gate has it."""
    return CapacityScoringVolumeBinding(args, handle) if scores_capacity else VolumeBinding(args, handle)
