"""VolumeBinding places a pod where its claims' volumes are, can be bound or can be provisioned.

It says what must be written for that; the scheduler writes it.
"""

from __future__ import annotations

from collections.abc import Hashable

from koord.api.builtin import CSI_NODES
from koord.api.config.scheduler.in_tree import VolumeBindingArgs
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, UPDATE, Event, Happened
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Codes, Plugin
from koord.scheduler.framework.verdict import CLUSTER, SKIP, Fault, Only, Reject, Skip, unresolvable
from koord.scheduler.framework.work import Errand
from koord.scheduler.plugins.volumes.claims import mentions, uses
from koord.scheduler.plugins.volumes.desk import REASONS, Desk, Needs
from koord.scheduler.plugins.volumes.progress import Progress
from koord.scheduler.plugins.volumes.provisioning import largest_volume
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, Rows

_DEFAULT_TIMEOUT_S = 600
_MIGRATED = "storage.alpha.kubernetes.io/migrated-plugins"


class VolumeBinding(Plugin):
    name = "VolumeBinding"
    scope = CLUSTER
    reads_pods = "nothing"
    wakes_on = (
        Event("StorageClass", ADD),
        Event("StorageClass", UPDATE),
        Event("PersistentVolumeClaim", ADD),
        Event("PersistentVolumeClaim", UPDATE),
        Event("PersistentVolume", ADD),
        Event("PersistentVolume", UPDATE),
        Event("Node", ADD),
        Event("Node", UPDATE, "labels"),
        Event("CSINode", ADD),
        Event("CSINode", UPDATE),
        Event("CSIDriver", UPDATE),
        Event("CSIStorageCapacity", ADD),
        Event("CSIStorageCapacity", UPDATE),
    )

    def __init__(self, args: VolumeBindingArgs | None, handle: Handle) -> None:
        told = args.bind_timeout_seconds if args is not None else None
        self._timeout_s = float(_DEFAULT_TIMEOUT_S if told is None else told)
        self._desk = Desk(handle)
        self._progress = Progress(handle)
        handle.lister(CSI_NODES)  # only watched, for the events

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        kind, old, new = happened.event.kind, happened.old, happened.new
        if kind == "PersistentVolumeClaim":
            return uses(pod, new)
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
        return self._desk.facts(pod) if mentions(pod) else None

    def epoch(self, cycle: Cycle) -> Hashable:
        """Return the binder's version for unbound claims. Bound claims are in the signature."""
        kept = cycle.kept.get(self.name)
        return self._desk.version if isinstance(kept, Needs) and kept.waiting else 0

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | Only | Fault | None:
        if not mentions(pod):
            return SKIP
        needs = self._desk.needs(pod)
        if not isinstance(needs, Needs):
            return needs
        cycle.keep(self.name, needs)
        return None

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        found = self._desk.served(cycle.of(self.name, Needs), node)
        return found if isinstance(found, Reject) else None

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        return self._desk.column(cycle.of(self.name, Needs), table, rows)

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        return unresolvable(*(reason for i, reason in enumerate(REASONS) if code >> i & 1))

    def reserve(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | Fault | None:
        """Decide again for this pod alone: its class may have been evaluated before other pods took volumes."""
        if not mentions(pod):
            return None
        needs = self._desk.needs(pod)
        if not isinstance(needs, Needs):
            return needs
        plan = self._desk.served(needs, node)
        if isinstance(plan, Reject):
            return plan
        if needs.waiting:
            self._desk.assumed.assume(pod.uid, plan.choice())
        return None

    def unreserve(self, cycle: Cycle, pod: PodInfo, node_name: str) -> None:
        self._desk.assumed.revert(pod.uid)

    def pre_bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> Errand | None:
        choice = self._desk.assumed.of(pod.uid)
        return None if choice is None else Errand(choice.writes(), self._timeout_s, lambda: self.bound(pod))

    def bound(self, pod: PodInfo) -> bool | Fault:
        """Return whether the pod can be bound now; called after the writes of `pre_bind` whenever a claim or volume
        changed.
        """
        choice = self._desk.assumed.of(pod.uid)
        return True if choice is None else self._progress.done(choice)
