"""Run the controllers of Coscheduling: the status of PodGroups, and of the ClusterNetworkTopology.

The phase of a PodGroup is a function of its members alone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

import msgspec

from koord.api.annotations.gang_codecs import gang_id
from koord.api.koordinator.custom_kinds import CLUSTER_NETWORK_TOPOLOGIES, POD_GROUPS
from koord.api.koordinator.scheduling import ClusterNetworkTopologyStatus
from koord.api.koordinator.sigs_scheduling import PodGroup, PodGroupStatus
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.model import to_dict
from koord.kube.controller.controller import Controller, Done, ReconcileResult, Requeue, WorkQueue
from koord.kube.events.recorder import object_reference
from koord.kube.informer.cache import object_key
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import TRANSIENT_ERRORS
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS, Pod
from koord.scheduler.controller import SchedulerController, SchedulerControllerContext
from koord.scheduler.plugins.coscheduling.gang_cache import Gang
from koord.scheduler.plugins.coscheduling.gang_spec import gang_id_of_pod
from koord.scheduler.plugins.coscheduling.network_planner import CLUSTER_TOPOLOGY_NAME
from koord.scheduler.plugins.coscheduling.network_plugin import NetworkCoscheduling
from koord.scheduler.plugins.coscheduling.network_topology import InvalidNetworkTopology, topology_details
from koord.scheduler.plugins.coscheduling.plugin import Coscheduling
from koord.scheduler.status_reporter import event_subject_of

_LOG = logging.getLogger(__name__)

_PERIOD_S = 10.0

PENDING, SCHEDULING, SCHEDULED = "Pending", "Scheduling", "Scheduled"
RUNNING, FINISHED, FAILED = "Running", "Finished", "Failed"
ENDED_PHASES = (FINISHED, FAILED)


class MemberPhase(msgspec.Struct, frozen=True):
    """MemberPhase holds what counts of a member for the phase."""

    phase: str
    bound: bool
    owner: str = ""  # namespace/name


def pod_group_phase(minimum: int, members: Sequence[MemberPhase]) -> str:
    """Compute the phase; the last rule that holds wins."""
    bound = sum(1 for m in members if m.bound)
    if minimum <= 0 or (not bound and len(members) < minimum):
        return PENDING
    running, succeeded, failed = (sum(1 for m in members if m.phase == p) for p in ("Running", "Succeeded", "Failed"))
    found = SCHEDULED if bound >= minimum else SCHEDULING
    if found == SCHEDULED and succeeded + running >= minimum:
        found = RUNNING
    if failed and failed + running + succeeded >= minimum:
        found = FAILED
    return FINISHED if succeeded >= minimum else found


def pod_group_status(
    before: PodGroupStatus, minimum: int, members: Sequence[MemberPhase], now: datetime
) -> PodGroupStatus:
    """Compute the status of the PodGroup.

    A phase Finished or Failed stays when its pods are cleaned up; it only changes when members live again.
    """
    if before.phase in ENDED_PHASES and all(m.phase in ("Succeeded", "Failed") for m in members):
        later = pod_group_phase(minimum, members)
        if later not in ENDED_PHASES:
            return before
    phase = pod_group_phase(minimum, members)
    started = before.schedule_start_time
    if phase == PENDING:
        started = None if not members else started
    elif started is None:
        started = now
    return PodGroupStatus(
        phase=phase,
        occupied_by=",".join(sorted({m.owner for m in members if m.owner})) or before.occupied_by,
        scheduled=sum(1 for m in members if m.bound),
        running=sum(1 for m in members if m.phase == "Running"),
        succeeded=sum(1 for m in members if m.phase == "Succeeded"),
        failed=sum(1 for m in members if m.phase == "Failed"),
        schedule_start_time=started,
    )


class NetworkTopologyController:
    """Write the network tree as the scheduler understood it into the status of the ClusterNetworkTopology that counts.

    It is checked every few seconds, and written when it differs.
    """

    name: ClassVar[str] = "network surveyor"
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("scheduling.koordinator.sh", ("clusternetworktopologies",), READ_VERBS),
        RbacRule("scheduling.koordinator.sh", ("clusternetworktopologies/status",), ("patch",)),
    )

    def __init__(self, context: SchedulerControllerContext) -> None:
        plugin = next(p for p in context.plugins if isinstance(p, NetworkCoscheduling))
        self._map = plugin.planner.network
        self._client, self._clock, self._recorder = context.client, context.clock, context.recorder
        self._quiet = RateLimitedLog(_LOG, context.clock)
        self._reported = ""
        self._written: tuple[object, str] | None = None  # the tree and the revision that show the same
        self.writes = 0

    async def run(self) -> None:
        while True:
            await self._reconcile()
            await self._clock.sleep(_PERIOD_S)

    async def _reconcile(self) -> None:
        topology = self._map.topologies.get("", CLUSTER_TOPOLOGY_NAME)
        tree = self._map.tree()
        if topology is None or tree is None:
            return
        if isinstance(tree, InvalidNetworkTopology):
            self._report_broken(tree.why)
            return
        self._reported = ""
        if self._written == (tree, topology.metadata.resource_version):
            return
        wanted = ClusterNetworkTopologyStatus(detail_status=topology_details(tree))
        if wanted == topology.status:
            self._written = (tree, topology.metadata.resource_version)
            return
        patch = {"status": {"detailStatus": to_dict(wanted).get("detailStatus", [])}}
        try:
            answer = await self._client.patch_object(
                CLUSTER_NETWORK_TOPOLOGIES, topology, patch, kind="merge", subresource="status"
            )
        except TRANSIENT_ERRORS as outage:
            self._quiet.warning("the status of the network topology was not written: %s", outage)
            return
        if isinstance(answer, ApiError):
            self._quiet.warning("the status of the network topology was not written: %s", answer.message)
            return
        self.writes += 1

    def _report_broken(self, why: str) -> None:
        """Record a broken topology once, until it is fixed or broken in another way."""
        topology = self._map.topologies.get("", CLUSTER_TOPOLOGY_NAME)
        if topology is not None and why != self._reported:
            self._reported = why
            about = object_reference(CLUSTER_NETWORK_TOPOLOGIES, topology)
            self._recorder.record(about, "Warning", "BrokenTopology", why, action="Surveying")


_DEBOUNCE_S = 0.25


class PodGroupController:
    """Keep the status of PodGroups: written when it differs from what the members say, with an event for every phase.

    Members come and go in bursts, so a PodGroup is reconciled a moment after the first change.
    """

    name: ClassVar[str] = "pod group keeper"
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("scheduling.sigs.k8s.io", ("podgroups",), (*READ_VERBS, "patch")),
    )

    def __init__(self, context: SchedulerControllerContext) -> None:
        plugin = context.plugins[0]
        assert isinstance(plugin, Coscheduling)
        self._gang_manager = plugin.gang_manager
        self._workers = plugin.controller_workers
        self._client, self._clock, self._recorder = context.client, context.clock, context.recorder
        self._pods = context.handle.lister(PODS)
        self._pod_groups = context.handle.lister(POD_GROUPS)
        self._queue: WorkQueue[tuple[str, str]] | None = None  # nobody works before this scheduler leads
        self._failures: dict[tuple[str, str], str] = {}  # what was told last of a failed round
        self.writes = 0
        self._pods.on_change(self._on_pod)
        self._gang_manager.reserve_pod_callbacks.append(self._on_pod)
        self._gang_manager.topology_ignored_callbacks.append(self._record_ignored_topology)
        self._pod_groups.on_change(self._on_pod_group)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if self._queue is None:
            return
        for pod in (old, new):
            gang = _gang_key_of_pod(pod) if pod is not None else None
            if gang is not None and self._pod_groups.get(*gang) is not None:
                self._queue.add_after(gang, _DEBOUNCE_S)

    def _on_pod_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is None and old is not None:
            self._failures.pop(object_key(old), None)
        elif new is not None and self._queue is not None:
            self._queue.add_after(object_key(new), _DEBOUNCE_S)

    async def run(self) -> None:
        queue = self._queue = WorkQueue(self._clock, name="pod-groups")
        for known in self._pod_groups.list():
            queue.add(object_key(known))
        try:
            await Controller("pod-groups", queue, self._reconcile, workers=self._workers).run()
        finally:
            self._queue = None

    async def _reconcile(self, key: tuple[str, str]) -> ReconcileResult:
        found = self._pod_groups.get(*key)
        if found is None or found.metadata.deletion_timestamp is not None:
            return Done()
        self._record_failure(key, found)
        now = datetime.fromtimestamp(int(self._clock.time()), UTC)
        wanted = pod_group_status(found.status, found.spec.min_member, self._members(gang_id(*key)), now)
        patch = pod_group_status_patch(found.status, wanted)
        if not patch:
            return Done()
        try:
            answer = await self._client.patch_object(POD_GROUPS, found, {"status": patch}, kind="merge")
        except TRANSIENT_ERRORS as outage:
            return Requeue(str(outage))
        if isinstance(answer, ApiError):
            return Done() if answer.not_found else Requeue(answer.message)
        self.writes += 1
        if wanted.phase != found.status.phase:
            self._record_phase(found, wanted)
        return Done()

    def _members(self, gang: str) -> list[MemberPhase]:
        known = self._gang_manager.gangs.gangs.get(gang)
        if known is None:
            return []
        seen = []
        for member in known.members.values():
            namespace, _, name = member.key.partition("/")
            pod = self._gang_manager.reserve_pods.get(member.uid) or self._pods.get(namespace, name)
            if pod is not None and pod.metadata.uid == member.uid:
                bound = bool(pod.spec.node_name) or member.uid in known.bound
                seen.append(MemberPhase(pod.status.phase, bound, _controller_owner(pod)))
        return seen

    # Words -------------------------------------------------------------------------------------------------------

    def _record_phase(self, found: PodGroup, status: PodGroupStatus) -> None:
        minimum = found.spec.min_member
        note = f"{status.scheduled} of at least {minimum} members have a node"
        if status.phase == PENDING:
            there = len(self._members(gang_id(*object_key(found))))
            note = f"{there} of at least {minimum} members are there"
        self._recorder.record(object_reference(POD_GROUPS, found), "Normal", status.phase, note, action="Scheduling")

    def _record_ignored_topology(self, gang: Gang, pod: PodInfo, message: str) -> None:
        """Record it with the PodGroup, or with a member of a gang that has none."""
        namespace, _, name = gang.id.partition("/")
        found = self._pod_groups.get(namespace, name)
        about = object_reference(POD_GROUPS, found) if found is not None else event_subject_of(pod)
        self._recorder.record(about, "Warning", "NetworkTopologyIgnored", message, action="Scheduling")

    def _record_failure(self, key: tuple[str, str], found: PodGroup) -> None:
        """Record why the gang was not scheduled, once for all members, and again only when the message changes."""
        gang = self._gang_manager.gangs.gangs.get(gang_id(*key))
        message = self._gang_manager.failure_messages.get(gang.gang_group_id, "") if gang is not None else ""
        if message != self._failures.get(key, ""):
            self._failures[key] = message
            if message:
                about = object_reference(POD_GROUPS, found)
                self._recorder.record(about, "Warning", "FailedScheduling", message, action="Scheduling")


def gang_controllers(context: SchedulerControllerContext) -> Sequence[SchedulerController]:
    keeper = PodGroupController(context)
    aware = any(isinstance(plugin, NetworkCoscheduling) for plugin in context.plugins)
    return (keeper, NetworkTopologyController(context)) if aware else (keeper,)


def pod_group_status_patch(before: PodGroupStatus, after: PodGroupStatus) -> dict[str, Any]:
    """Return a merge patch of the status; fields that are the default again are removed, as Go clients do."""
    old, new = to_dict(before), to_dict(after)
    changed = {name: value for name, value in new.items() if old.get(name) != value}
    return changed | {name: None for name in old if name not in new}


def _gang_key_of_pod(pod: Pod) -> tuple[str, str] | None:
    meta = pod.metadata
    gang = gang_id_of_pod(meta.namespace, meta.labels or {}, meta.annotations or {})
    if gang is None:
        return None
    namespace, _, name = gang.partition("/")
    return namespace, name


def _controller_owner(pod: Pod) -> str:
    controller = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
    return f"{pod.metadata.namespace}/{controller.name}" if controller is not None else ""
