"""GangManager keeps the gangs of all profiles and the scheduling round of a gang group that is under way.

It follows the watches of pods, PodGroups and Reservations, and activates a member when its group can proceed.

    first member popped -> it and then the other members, one after another, each gets a node and waits
        | enough of every gang wait          -> all are released together
        | too few are left to be enough      -> the waiting pods are rejected at once, and nobody else is tried
        | nobody is left to be tried         -> the waiting pods are rejected

Nothing else is scheduled between the first and the last step, so no two groups hold resources that the other needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from koord.api.annotations.gang_codecs import (
    ONCE_SATISFIED,
    ONLY_WAITING,
    WAITING_AND_RUNNING,
    gang_id,
    is_defined_by_pod_group,
    parse_network_topology_index,
)
from koord.api.koordinator.custom_kinds import POD_GROUPS, RESERVATIONS
from koord.api.koordinator.scheduling import Reservation
from koord.api.koordinator.sigs_scheduling import PodGroup
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS, Pod, is_terminal, reserve_pod_of
from koord.scheduler.framework.handle import Handle, SchedulerActions
from koord.scheduler.plugins.coscheduling import gang_spec, messages
from koord.scheduler.plugins.coscheduling.gang_cache import Gang, GangCache, GangGroup, GangGroupEvent


class GangRound:
    """One scheduling round of a gang group: whom it has tried, who is next, and whether it can still succeed."""

    __slots__ = ("_queue", "all_or_nothing", "attempted", "disturbed", "group", "plan", "started_s")

    def __init__(self, group: str, first: str, began: float = 0.0) -> None:
        self.group = group
        self.attempted = {first}  # uids
        self.started_s = began
        self.disturbed = False  # another pod was tried meanwhile
        self.plan: dict[str, str] | None = None  # uid -> node, where all are planned at once
        self.all_or_nothing = False  # the plan is carried out in one go: it holds for all of them, or it does not hold
        self._queue: list[str] | None = None

    def next_member(self, gangs: GangCache) -> str | None:
        """Return the next member to try and record it as tried."""
        group = gangs.groups.get(self.group)
        if group is None:
            return None
        for _ in range(2):  # once more for those who came after the line was made
            while self._queue:
                uid = self._queue.pop()
                gang = gangs.gang_of_pod(uid)
                if uid not in self.attempted and gang is not None and uid in gang.pending:
                    self.attempted.add(uid)
                    return uid
            self._queue = [m.uid for m in reversed(gangs.pending_in_group(group)) if m.uid not in self.attempted]
        return None


def match_policy_of(gang: Gang, defaults: gang_spec.GangDefaults) -> str:
    return (gang.spec.match_policy if gang.spec is not None else None) or defaults.match_policy


def schedules_individually(gang: Gang, group: GangGroup, defaults: gang_spec.GangDefaults) -> bool:
    """Return whether members are scheduled as ordinary pods: they started once and the policy is OnceSatisfied."""
    return group.satisfied and match_policy_of(gang, defaults) == ONCE_SATISFIED


def has_enough_members(gang: Gang, group: GangGroup, defaults: gang_spec.GangDefaults, more: int = 0) -> bool:
    """Return whether the waiting members of a gang may be released, if `more` were to wait with them."""
    if gang.spec is None:
        return False
    policy = match_policy_of(gang, defaults)
    there = gang.ready_members + more
    if policy == WAITING_AND_RUNNING:
        there += len(gang.bound)
    elif policy != ONLY_WAITING and group.satisfied:
        return True
    return there >= gang.spec.min_members


def can_release_group(gangs: GangCache, group: GangGroup, defaults: gang_spec.GangDefaults) -> bool:
    found = [gangs.gangs.get(gang_id) for gang_id in group.gangs]
    return all(gang is not None and has_enough_members(gang, group, defaults) for gang in found)


def can_succeed(gangs: GangCache, group: GangGroup, round_: GangRound, defaults: gang_spec.GangDefaults) -> bool:
    """Return whether the members not yet tried could make every gang of the group complete."""
    for member_gang in group.gangs:
        gang = gangs.gangs.get(member_gang)
        if gang is None:
            return False
        left = sum(1 for uid in gang.pending if uid not in round_.attempted)
        if not has_enough_members(gang, group, defaults, left):
            return False
    return True


def member_from_pod(pod: Pod) -> gang_spec.GangMember | None:
    """Return the gang member that the pod is; None for a pod that is in no gang."""
    meta = pod.metadata
    labels, annotations = meta.labels or {}, meta.annotations or {}
    gang = gang_spec.gang_id_of_pod(meta.namespace, labels, annotations)
    if gang is None:
        return None
    labelled = is_defined_by_pod_group(labels)
    index = parse_network_topology_index(annotations)
    return gang_spec.GangMember(
        uid=meta.uid,
        key=f"{meta.namespace}/{meta.name}",
        gang=gang,
        names_pod_group=labelled,
        spec=None if labelled else gang_spec.gang_spec_of_pod(gang, labels, annotations),
        created=meta.creation_timestamp.timestamp() if meta.creation_timestamp is not None else 0.0,
        node=pod.spec.node_name,
        is_schedulable=not pod.spec.scheduling_gates and meta.deletion_timestamp is None,
        ended=is_terminal(pod),
        index=index if isinstance(index, int) else None,
    )


# The plugin name that Koordinator reports for a rejected member, by which its nomination is kept or not.
JOB_REJECT_PLUGIN = "JobRejectPlugin"

RoundEndedCallback = Callable[[str, str, int, float], None]  # group, reason, number of members tried, seconds
SearchDoneCallback = Callable[[str, bool, float], None]  # group, whether a preemption was found, seconds
BatchDoneCallback = Callable[[bool, float], None]  # whether an uninterruptible plan succeeded, seconds
ReservePodCallback = Callable[[Pod | None, Pod | None], None]  # a reserve pod before and after
TopologyIgnoredCallback = Callable[[Gang, PodInfo, str], None]  # the gang, the member that is tried, what to tell
GroupRemovedCallback = Callable[[str], None]  # a group that no longer exists
GroupReadyCallback = Callable[[str], None]  # a group of which enough members are there


class GangManager:
    """The gang state of one cluster state; get it with `state.derived(GangManager)`, then call `attach`."""

    def __init__(self, state: ClusterState) -> None:
        self.gangs = GangCache()
        self.round: GangRound | None = None
        self._invalidate_idle = state.invalidate_idle
        self.defaults = gang_spec.GangDefaults()
        self.failed_members: dict[str, str] = {}  # group -> uid of the member that failed its last round
        self.failure_messages: dict[str, str] = {}  # group -> why its last round failed, until one succeeds
        self.waiting_classes: dict[str, set[str]] = {}  # group -> uids of members that sleep for others like them
        self.lost_nodes: dict[str, str] = {}  # uid -> the node that a member lost after its gang was permitted
        self.kept_nominations: dict[str, str] = {}  # uid -> the node that stays nominated while victims leave
        self.round_ended_callbacks: list[RoundEndedCallback] = []
        self.search_done_callbacks: list[SearchDoneCallback] = []
        self.batch_done_callbacks: list[BatchDoneCallback] = []
        self.reserve_pod_callbacks: list[ReservePodCallback] = []
        self.topology_ignored_callbacks: list[TopologyIgnoredCallback] = []
        self.ignored_topologies: dict[str, str] = {}  # gang -> what is told of its rules for the network
        self.group_removed_callbacks: list[GroupRemovedCallback] = []
        self.group_ready_callbacks: list[GroupReadyCallback] = []
        self._actions = SchedulerActions()
        self._now: Callable[[], float] = lambda: 0.0
        self._attached = False
        self._reservations_attached = False
        self.reserve_pods: dict[str, Pod] = {}  # uid -> the reserve pod of a Reservation that is a member

    def attach(self, handle: Handle, defaults: gang_spec.GangDefaults) -> None:
        if self._attached:
            return
        self._attached = True
        self.defaults = defaults
        self._actions = handle.actions
        self._now = handle.now
        handle.lister(POD_GROUPS).on_change(self._on_pod_group)
        handle.lister(PODS).on_change(self._on_pod)

    def attach_reservations(self, handle: Handle) -> None:
        """Follow Reservations too, which can be gang members by their own or their template's labels."""
        if not self._reservations_attached:
            self._reservations_attached = True
            handle.lister(RESERVATIONS).on_change(self._on_reservation)

    # What the watch shows ----------------------------------------------------------------------------------------

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and (new is None or old.metadata.uid != new.metadata.uid):
            self.lost_nodes.pop(old.metadata.uid, None)
            self.kept_nominations.pop(old.metadata.uid, None)
            self.handle_gang_changes(self.gangs.remove_member(old.metadata.uid))
        if new is None:
            return
        member = member_from_pod(new)
        self.handle_gang_changes(
            self.gangs.update_member(member) if member is not None else self.gangs.remove_member(new.metadata.uid)
        )

    def _on_reservation(self, old: Reservation | None, new: Reservation | None) -> None:
        before = self.reserve_pods.pop(old.metadata.uid, None) if old is not None else None
        now = reserve_pod_of(new) if new is not None and _may_be_member(new) else None
        if now is not None:
            self.reserve_pods[now.metadata.uid] = now
        if before is not None or now is not None:
            self._on_pod(before, now)
            for callback in self.reserve_pod_callbacks:
                callback(before, now)

    def _on_pod_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        seen = new or old
        assert seen is not None
        meta = seen.metadata
        settings = gang_spec.gang_spec_of_pod_group(new) if new is not None else None
        self.handle_gang_changes(self.gangs.update_pod_group(gang_id(meta.namespace, meta.name), settings))

    def handle_gang_changes(self, news: Iterable[GangGroupEvent]) -> None:
        """Activate the members that a change concerns: one for all of them unless each is scheduled on its own."""
        for item in news:
            group = self.gangs.groups.get(item.group)
            if item.what == "ready":
                for ready_callback in self.group_ready_callbacks:
                    ready_callback(item.group)
            if group is None:
                self.failed_members.pop(item.group, None)
                self.failure_messages.pop(item.group, None)
                self.waiting_classes.pop(item.group, None)
                for member_gang in item.group.split(","):
                    self.ignored_topologies.pop(member_gang, None)
                for callback in self.group_removed_callbacks:
                    callback(item.group)
            elif item.what == "satisfied":
                self._actions.activate(
                    [
                        uid
                        for gang in self.gangs.gangs_in_group(group)
                        if match_policy_of(gang, self.defaults) == ONCE_SATISFIED
                        for uid in gang.pending
                    ]
                )
            elif self.round is None or self.round.group != group.id:
                self.activate_representative(group)

    def activate_representative(self, group: GangGroup) -> None:
        """Activate one pending member to represent the group, preferably the one that did not fit the last time."""
        if not group.ready or group.representative:
            return
        failed_member = self.failed_members.get(group.id, "")
        line = sorted(self.gangs.pending_in_group(group), key=lambda member: member.uid != failed_member)
        for member in line:
            self._actions.activate((member.uid,))  # if it is in the queue, its PreEnqueue makes it the representative
            if self._is_represented(group):
                return

    def activate_member(self, group: GangGroup, uid: str) -> None:
        """Activate a member to represent the group, unless another one does."""
        if group.ready and not group.representative:
            self.failed_members[group.id] = uid
            self._actions.activate((uid,))

    def _is_represented(self, group: GangGroup) -> bool:
        return bool(group.representative)

    def report_ignored_topology(self, gang: Gang, pod: PodInfo, message: str) -> None:
        """Tell once that the gang's rules for the network do not count."""
        if self.ignored_topologies.get(gang.id) != message:
            self.ignored_topologies[gang.id] = message
            for callback in self.topology_ignored_callbacks:
                callback(gang, pod, message)

    def report_search(self, group: str, found: bool, took_s: float) -> None:
        for callback in self.search_done_callbacks:
            callback(group, found, took_s)

    # The round ---------------------------------------------------------------------------------------------------

    def start_round(self, group: GangGroup, first: str) -> GangRound:
        group.representative = ""
        self.round = GangRound(group.id, first, self._now())
        self._invalidate_idle()
        return self.round

    def running_round(self, group: GangGroup) -> GangRound | None:
        return self.round if self.round is not None and self.round.group == group.id else None

    def reject_waiting_members(self, group: GangGroup, message: str) -> None:
        """Reject the members of the group that wait at Permit, so that they give back their nodes."""
        round_ = self.running_round(group)
        quiet = round_ is not None and not round_.disturbed
        for uid in self.gangs.waiting_in_group(group):
            self._actions.reject(uid, JOB_REJECT_PLUGIN, message, quiet=quiet)

    def end_round(self, reason: str) -> None:
        round_, self.round = self.round, None
        if round_ is None:
            return
        self._invalidate_idle()
        if reason == messages.GANG_SUCCEEDED:
            self.failed_members.pop(round_.group, None)
            self.failure_messages.pop(round_.group, None)
            self.waiting_classes.pop(round_.group, None)
        took = self._now() - round_.started_s
        if round_.all_or_nothing:
            for batch_callback in self.batch_done_callbacks:
                batch_callback(reason == messages.GANG_SUCCEEDED, took)
        for round_callback in self.round_ended_callbacks:
            round_callback(round_.group, reason, len(round_.attempted), took)


def _may_be_member(reservation: Reservation) -> bool:
    """Return whether the Reservation may be a gang member, before a reserve pod is built for it: nearly none is."""
    meta, template = reservation.metadata, reservation.spec.template
    own = gang_spec.gang_id_of_pod("", meta.labels or {}, meta.annotations or {})
    if own is not None or template is None:
        return own is not None
    return gang_spec.gang_id_of_pod("", template.metadata.labels or {}, template.metadata.annotations or {}) is not None
