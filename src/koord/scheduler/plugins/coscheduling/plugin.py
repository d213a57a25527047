"""Coscheduling gives the members of a gang their nodes together or not at all.

The rules of gangs are in `gang_spec`, `gang_cache` and `gang_manager`; this module maps them to extension points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from koord.api.config.scheduler.koordinator_args import CoschedulingArgs
from koord.api.koordinator import protocol
from koord.api.kubernetes.builtin_kinds import POD_DISRUPTION_BUDGETS
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_model import PODS
from koord.scheduler.framework import verdict
from koord.scheduler.framework.cluster_event import ClusterEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.decision import PostFilterRejection, PreemptionPlan
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.post_filter import PostFilterContext
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.runtime import run_admit
from koord.scheduler.plugins.coscheduling import messages
from koord.scheduler.plugins.coscheduling.gang_cache import Gang, GangGroup
from koord.scheduler.plugins.coscheduling.gang_manager import (
    JOB_REJECT_PLUGIN,
    GangManager,
    GangRound,
    can_release_group,
    can_succeed,
    schedules_individually,
)
from koord.scheduler.plugins.coscheduling.gang_spec import GangDefaults, GangMember, gang_id_of_pod
from koord.scheduler.plugins.coscheduling.job_preemption import (
    JobPreemption,
    JobPreemptionRules,
    TrialsByClass,
    find_job_preemption,
    preempt_for_single_pod,
    review_by_extenders,
)
from koord.scheduler.plugins.coscheduling.node_capacity import run_pre_filters
from koord.scheduler.preemption.evaluator import NEVER
from koord.scheduler.preemption.extender_review import PreemptionReview, VictimProposal
from koord.scheduler.preemption.victims import DisruptionBudgetLister
from koord.values import duration

_BIND_ANNOTATIONS = (
    protocol.A_BIND_GANG_GROUP_ID,
    protocol.A_BIND_GANG_MEMBER_COUNT,
    protocol.A_BIND_GANG_GROUP_ID_DEPRECATED,
    protocol.A_BIND_GANG_MEMBER_COUNT_DEPRECATED,
)


class Coscheduling(Plugin):
    name = "Coscheduling"
    # No cluster event requeues a member that waits for its gang: GangManager activates it when the gang can proceed.
    wakes_on: ClassVar[tuple[ClusterEvent, ...]] = ()
    idle_without_keys: ClassVar[tuple[Callable[..., Any], ...]] = (Plugin.permit,)
    idle_by_labels = (Plugin.begin_attempt,)

    def __init__(self, args: CoschedulingArgs, handle: Handle, *, patches_pending_members: bool = True) -> None:
        """Take defaulted arguments. `patches_pending_members`: tell untried members why the gang failed."""
        self._patches_pending_members = patches_pending_members
        wait_s = duration.parse_seconds(args.default_timeout or "600s")
        self._defaults = GangDefaults(wait_s, args.default_match_policy or GangDefaults.match_policy)
        self.controller_workers = args.controller_workers or 1
        self._preempts = bool(args.enable_preemption)
        self._job_rules = JobPreemptionRules()
        if self._preempts:
            self._job_rules = JobPreemptionRules(DisruptionBudgetLister(handle.lister(POD_DISRUPTION_BUDGETS)).current)
        self._profile: SchedulerProfile | None = None
        self._handle = handle
        self._state = handle.state
        self._pods = handle.lister(PODS)
        self._actions = handle.actions
        self.gang_manager = handle.state.derived(GangManager)
        self.gang_manager.attach(handle, self._defaults)
        self._gangs = self.gang_manager.gangs

    # Queue -------------------------------------------------------------------------------------------------------

    def pre_enqueue(self, pod: PodInfo) -> verdict.Reject | None:
        gang = self._gangs.gang_of_pod(pod.uid)
        if gang is None or gang.spec is None:
            return self._reject_unknown_gang(pod, gang)
        group = self._gangs.group_of_gang(gang)
        if schedules_individually(gang, group, self._defaults) or pod.gates:
            return None  # a pod with scheduling gates is held by them, and must not represent the group
        if not group.ready:
            return self._reject_incomplete_gang(group, gang, pod)
        round_ = self.gang_manager.running_round(group)
        if round_ is not None and pod.uid not in round_.attempted:
            return verdict.unresolvable(messages.group_is_scheduling(group.id))
        if pod.uid not in gang.pending:
            return verdict.unresolvable(messages.member_not_pending(pod.key))
        if group.representative in ("", pod.uid):
            group.representative = pod.uid
            return None
        other = self._gangs.gang_of_pod(group.representative)
        assert other is not None, "a representative is pending"
        return verdict.unresolvable(messages.has_representative(other.pending[group.representative].key, group.id))

    def _reject_unknown_gang(self, pod: PodInfo, gang: Gang | None) -> verdict.Reject | None:
        """Reject a pod whose gang is not known yet; return None for a pod of no gang."""
        if gang is not None:
            return verdict.unresolvable(messages.gang_not_initialized(gang.id, pod.key))
        gang_id = gang_id_of_pod(pod.namespace, pod.labels, pod.annotations)
        return None if gang_id is None else verdict.unresolvable(messages.gang_not_found(gang_id, pod.key))

    def _reject_incomplete_gang(self, group: GangGroup, gang: Gang, pod: PodInfo) -> verdict.Reject:
        if group.representative == pod.uid:
            group.representative = ""
        return verdict.unresolvable(messages.group_incomplete(self._gangs, group, gang, pod.key))

    def next_pod(self) -> str | None:
        round_ = self.gang_manager.round
        if round_ is None:
            return None
        uid = round_.next_member(self._gangs)
        if uid is not None:
            return uid
        group = self._gangs.groups.get(round_.group)
        if group is None:
            self.gang_manager.end_round(messages.GANG_NOT_FOUND)
        else:
            self.gang_manager.reject_waiting_members(group, messages.ALL_MEMBERS_ATTEMPTED)
            self.gang_manager.end_round(messages.ALL_MEMBERS_ATTEMPTED)
        return None

    @property
    def is_in_round(self) -> bool:
        return self.gang_manager.round is not None

    # An attempt --------------------------------------------------------------------------------------------------

    def is_idle_for(self, pod: PodInfo) -> bool:
        """Return whether there is no round that another pod could disturb."""
        return self.gang_manager.round is None

    def begin_attempt(self, pod: PodInfo) -> verdict.Reject | None:
        gang_manager = self.gang_manager
        if not pod.has_koordinator_keys:  # of no gang
            if gang_manager.round is not None:
                gang_manager.round.disturbed = True
            return None
        gang = self._gangs.gang_of_pod(pod.uid)
        if gang is None or gang.spec is None:
            self._mark_round_disturbed()
            return self._reject_unknown_gang(pod, gang)
        group = self._gangs.group_of_gang(gang)
        if schedules_individually(gang, group, self._defaults):
            self._mark_round_disturbed()
            return None
        if not group.ready:
            return self._reject_incomplete_gang(group, gang, pod)
        round_ = gang_manager.running_round(group)
        if round_ is None:
            self._abandon_round()
            gang_manager.start_round(group, pod.uid)
            self._check_network_topology(group, pod)
        else:
            round_.attempted.add(pod.uid)
        return None

    def _check_network_topology(self, group: GangGroup, pod: PodInfo) -> None:
        """Tell of gangs with rules for the network that these are ignored here."""
        for gang in self._gangs.gangs_in_group(group):
            rules = gang.spec.network_topology if gang.spec is not None else None
            if rules is not None and rules.gather_strategy:
                self.gang_manager.report_ignored_topology(gang, pod, messages.topology_ignored(pod.scheduler))

    def _mark_round_disturbed(self) -> None:
        if self.gang_manager.round is not None:
            self.gang_manager.round.disturbed = True

    def _abandon_round(self) -> None:
        """End the previous round, whatever became of it: it is another group's turn."""
        round_ = self.gang_manager.round
        group = self._gangs.groups.get(round_.group) if round_ is not None else None
        if group is not None:
            self.gang_manager.reject_waiting_members(group, messages.ALL_MEMBERS_ATTEMPTED)
        self.gang_manager.end_round(messages.ALL_MEMBERS_ATTEMPTED)

    def post_filter(
        self, cycle: CycleState, pod: PodInfo, refused: PostFilterContext
    ) -> PreemptionPlan | PostFilterRejection | verdict.Fault | None:
        """With `enablePreemption`, make room for all members at once; no other plugin evicts for one of them."""
        if not self._preempts:
            return None
        gang = self._gangs.gang_of_pod(pod.uid)
        if gang is None:
            return preempt_for_single_pod(self.name, refused, self._job_rules)
        group = self._gangs.group_of_gang(gang)
        if schedules_individually(gang, group, self._defaults):
            return preempt_for_single_pod(self.name, refused, self._job_rules)
        round_ = self.gang_manager.running_round(group)
        if round_ is None or can_succeed(self._gangs, group, round_, self._defaults):
            return None
        if refused.not_admitted_by:  # evictions anywhere are of no use to a pod that its quota refuses
            return None
        if round_.all_or_nothing:  # a plan that fails is made anew, and nobody is preempted for single members
            return PostFilterRejection(final=True)
        members = self._pending_pods(group, pod)
        began = self._handle.now()
        found = self._find_preemption(pod, refused, members)
        if isinstance(found, JobPreemption) and refused.review is not None:
            reviewed = self._review(found, members, refused.review)
            if isinstance(reviewed, tuple):
                refused.proposals = reviewed
                return None
            found = reviewed
        self.gang_manager.report_search(group.id, isinstance(found, JobPreemption), self._handle.now() - began)
        if isinstance(found, str):
            self._nominate({member.uid: "" for member in members}, members, pod)
            return PostFilterRejection((f"preemption: {found}",), final=True, nominate="")
        if isinstance(found, PostFilterRejection):
            return found
        waiting = {uid: node for g in self._gangs.gangs_in_group(group) for uid, node in g.waiting.items()}
        self.gang_manager.kept_nominations.update(waiting)  # they are rejected, and keep a nomination for their nodes
        self._nominate(found.nodes, members, pod)
        lesser = {
            other.uid: None
            for node in set(found.nodes.values())
            for other in refused.nominator.pods_on(node)
            if other.priority < pod.priority
        }
        victims = found.victims(self._job_rules)
        why = (
            f"{len(members)} pod(s) of gang {group.id} have no node and {len(waiting)} wait for them; all fit without "
            f"{len(victims)} pod(s) of priority at most {max((one.priority for one in victims), default=0)}"
        )
        return PreemptionPlan(self.name, found.nodes[pod.uid], victims, tuple(lesser), why=why)

    def _nominate(self, nodes: Mapping[str, str], members: Sequence[PodInfo], but: PodInfo) -> None:
        for member in members:
            if member.uid != but.uid and not member.is_reserve_pod:
                self._actions.nominate(member.key, member.uid, nodes[member.uid])

    def _find_preemption(
        self, pod: PodInfo, refused: PostFilterContext, members: Sequence[PodInfo]
    ) -> JobPreemption | PostFilterRejection | str:
        if refused.review is not None and refused.review.error:
            return PostFilterRejection((f"preemption: {refused.review.error}",), final=True)
        if pod.shape.spec.preemption_policy == "Never":
            return NEVER
        for member in members:
            node = refused.cycle.state.node(refused.nominator.node_of(member.uid) or member.nominated_node)
            leaving = node.pods.values() if node is not None else ()
            if any(other.preempted and self._job_rules.may_preempt(member, other) for other in leaving):
                return PostFilterRejection(
                    ("preemption: not eligible due to terminating pod on the nominated node.",), final=True
                )
        assert self._profile is not None
        for member in members:
            against = run_admit(self._profile.hooks_for(member).admit, CycleState(refused.cycle.state), member)
            if against is not None and isinstance(against.answer, verdict.Reject):
                return f"not helpful: {against.answer.text}"
        trials = run_pre_filters(self._profile, refused.cycle.state, members)
        if not isinstance(trials, dict):
            answer = trials.answer
            return (
                f"not helpful: {answer.message if isinstance(answer, verdict.Fault) else answer.text if answer else ''}"
            )
        return self._search_preemption(self._profile, refused, members, trials)

    def _search_preemption(
        self, profile: SchedulerProfile, refused: PostFilterContext, members: Sequence[PodInfo], trials: TrialsByClass
    ) -> JobPreemption | str:
        return find_job_preemption(profile, refused, members, trials, self._job_rules)

    def _review(
        self, found: JobPreemption, members: Sequence[PodInfo], review: PreemptionReview
    ) -> JobPreemption | tuple[VictimProposal, ...] | str:
        assert self._profile is not None
        return review_by_extenders(self._profile, found, members, review)

    def _pending_pods(self, group: GangGroup, first: PodInfo) -> list[PodInfo]:
        """Return the members that still need a node, in their order."""
        return [
            info for m in self._gangs.pending_in_group(group) if (info := self._pod_of_member(m, first)) is not None
        ]

    def _pod_of_member(self, member: GangMember, first: PodInfo) -> PodInfo | None:
        if member.uid == first.uid:
            return first
        if (reserve_pod := self.gang_manager.reserve_pods.get(member.uid)) is not None:
            return self._state.pod_info(reserve_pod)
        namespace, _, name = member.key.partition("/")
        pod = self._pods.get(namespace, name)
        return self._state.pod_info(pod) if pod is not None and pod.metadata.uid == member.uid else None

    def set_profile(self, profile: SchedulerProfile) -> None:
        self._profile = profile
        if any(plugin.name == "Reservation" for plugin in profile.plugins()):
            self.gang_manager.attach_reservations(self._handle)

    def after_post_filter(self, cycle: CycleState, pod: PodInfo, refused: PostFilterContext) -> None:
        """Fail the whole group if the member that fits nowhere leaves too few, and report it once per member."""
        gang = self._gangs.gang_of_pod(pod.uid)
        if gang is None or gang.spec is None:
            return
        group = self._gangs.group_of_gang(gang)
        early = refused.decision.pre_filter
        round_ = self.gang_manager.running_round(group)
        if schedules_individually(gang, group, self._defaults) or (
            round_ is None and early is not None and early[0] == self.name
        ):
            return
        if round_ is not None and can_succeed(self._gangs, group, round_, self._defaults):
            return
        message = self._failure_message(group, round_, pod, refused.decision.message())
        self.gang_manager.failed_members[group.id] = pod.uid
        self.gang_manager.failure_messages[group.id] = message
        self.gang_manager.reject_waiting_members(group, message)
        told = f"0/{refused.decision.node_count} nodes are available: {message}."
        for member in self._gangs.pending_in_group(group) if self._patches_pending_members else ():
            untried = round_ is not None and member.uid not in round_.attempted
            if untried and member.uid not in self.gang_manager.reserve_pods:
                self._actions.report_unschedulable(member.key, member.uid, told)
        self.gang_manager.end_round(messages.ALL_MEMBERS_ATTEMPTED)

    def _failure_message(self, group: GangGroup, round_: GangRound | None, pod: PodInfo, reason: str) -> str:
        waiting = len(self._gangs.waiting_in_group(group))
        node = (
            round_.plan.get(pod.uid)
            if round_ is not None and round_.all_or_nothing and round_.plan is not None
            else None
        )
        if node is None:
            return messages.group_rejected(group.id, pod.key, reason, waiting)
        return messages.batch_failed(waiting, len(self._gangs.pending_in_group(group)), pod.key, node, reason)

    # After the choice --------------------------------------------------------------------------------------------

    def permit(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> verdict.Reject | verdict.Wait | None:
        gang = self._gangs.gang_of_pod(pod.uid)
        if gang is None:
            declared_gang = gang_id_of_pod(pod.namespace, pod.labels, pod.annotations)
            return None if declared_gang is None else verdict.reject("Gang not found")
        group = self._gangs.group_of_gang(gang)
        self._gangs.mark_waiting(pod.uid, node.name)
        if not can_release_group(self._gangs, group, self._defaults):
            stated = gang.spec.wait_time_s if gang.spec is not None else 0.0
            return verdict.Wait(self._defaults.wait_time_s if stated is None else stated)
        waiting = self._gangs.waiting_in_group(group)
        group.binding = group.binding or frozenset(waiting)
        for uid in waiting:
            if uid != pod.uid:
                self._actions.allow(uid, self.name)
        if self.gang_manager.running_round(group) is not None:
            self.gang_manager.end_round(messages.GANG_SUCCEEDED)
            self.gang_manager.activate_representative(group)  # there may be more members than the minimum
        return None

    def unreserve(self, cycle: CycleState, pod: PodInfo, node_name: str) -> None:
        gang = self._gangs.gang_of_pod(pod.uid)
        if gang is None:
            return
        group = self._gangs.group_of_gang(gang)
        if pod.uid in group.binding and gang.waiting.get(pod.uid) == node_name:
            self.gang_manager.lost_nodes[pod.uid] = node_name
        self._gangs.mark_pending(pod.uid)  # even if the gang's spec is gone
        if gang.spec is None or not gang.spec.strict or schedules_individually(gang, group, self._defaults):
            return
        round_ = self.gang_manager.running_round(group)
        if round_ is not None and can_succeed(self._gangs, group, round_, self._defaults):
            return
        message = messages.member_unreserved(gang.id, pod.name)
        self.gang_manager.reject_waiting_members(group, message)
        if round_ is not None:
            self.gang_manager.end_round(messages.ALL_MEMBERS_ATTEMPTED)

    def pre_bind(self, cycle: CycleState, pod: PodInfo, node_name: str) -> verdict.BindEffect | None:
        """Annotate members that are bound together with their group and number."""
        gang = self._gangs.gang_of_pod(pod.uid)
        group = self._gangs.group_of_gang(gang) if gang is not None else None
        if group is not None and len(group.binding) > 1 and pod.uid in group.binding:
            count = str(len(group.binding))
            marks = dict(zip(_BIND_ANNOTATIONS, (group.id, count, group.id, count), strict=True))
            return verdict.PodPatch(marks, bound_with_others=True)
        stale = [key for key in _BIND_ANNOTATIONS if key in pod.annotations]
        if not stale or pod.is_reserve_pod:
            return None
        patch = {"metadata": {"uid": pod.uid, "annotations": dict.fromkeys(stale)}}
        return verdict.PreBindActions((verdict.ObjectPatch(PODS, pod.namespace, pod.name, patch),), 0.0, lambda: True)

    def post_bind(self, cycle: CycleState, pod: PodInfo, node_name: str) -> None:
        self.gang_manager.handle_gang_changes(self._gangs.mark_bound(pod.uid, node_name))

    def on_attempt_failed(
        self, pod: PodInfo, message: str, rejectors: frozenset[str]
    ) -> verdict.FailureOverride | None:
        """Nominate the lost node again for a member whose binding failed while its gang starts: the gang needs it."""
        kept = self.gang_manager.kept_nominations.pop(pod.uid, None)  # victims are being evicted for other members
        node = self.gang_manager.lost_nodes.pop(pod.uid, None)
        if node is not None and not rejectors:
            return verdict.FailureOverride(nominate=node)
        return verdict.FailureOverride(nominate=kept) if kept is not None and JOB_REJECT_PLUGIN in rejectors else None
