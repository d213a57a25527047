"""VolumeBinding places a pod where its claims' volumes are, can be bound or can be provisioned.

It says what must be written for that; the scheduler writes it.
"""

from __future__ import annotations

from collections.abc import Hashable

from koord.api.config.scheduler.in_tree_args import VolumeBindingArgs
from koord.api.kubernetes.builtin_kinds import CSI_NODES
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework import verdict
from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Codes, Plugin
from koord.scheduler.plugins.volumes.pod_volumes import claim_references, uses_claim
from koord.scheduler.plugins.volumes.provisioning import largest_volume
from koord.scheduler.plugins.volumes.volume_binder import REASONS, BindingProgress, PodClaims, VolumeBinder

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
