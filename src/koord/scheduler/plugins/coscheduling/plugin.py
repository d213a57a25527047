"""Coscheduling gives the members of a gang their nodes together or not at all.

The rules of gangs are in `gang_spec`, `gang_cache` and `gang_round`; this module maps them to extension
points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from koord.api.config.scheduler.coscheduling import CoschedulingArgs
from koord.api.protocol import (
    A_BIND_GANG_GROUP_ID,
    A_BIND_GANG_GROUP_ID_DEPRECATED,
    A_BIND_GANG_MEMBER_COUNT,
    A_BIND_GANG_MEMBER_COUNT_DEPRECATED,
)
from koord.policy.gang import wording
from koord.policy.gang.declaration import Defaults, Member, gang_of
from koord.policy.gang.register import Gang, Group
from koord.policy.gang.round import Round, can_succeed, goes_alone, may_go
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.decision import Futile, Preempt
from koord.scheduler.framework.event import Event
from koord.scheduler.framework.handle import Handle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import Profile
from koord.scheduler.framework.refused import Refused
from koord.scheduler.framework.verdict import Reject, Wait, reject, unresolvable
from koord.scheduler.framework.work import Errand, Mark, Takeover, Work, Write
from koord.scheduler.plugins.coscheduling.company import REJECTOR, Company
from koord.scheduler.plugins.coscheduling.crew import prepared
from koord.scheduler.plugins.coscheduling.job_preemption import JobRules, Kinds, Room, alone, room_for
from koord.scheduler.preemption.plan import NEVER
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.wire import PODS
from koord.values import duration

_MARKS = (
    A_BIND_GANG_GROUP_ID,
    A_BIND_GANG_MEMBER_COUNT,
    A_BIND_GANG_GROUP_ID_DEPRECATED,
    A_BIND_GANG_MEMBER_COUNT_DEPRECATED,
)


class Coscheduling(Plugin):
    name = "Coscheduling"
    # No cluster event requeues a member that waits for its gang: GangManager activates it when the gang can proceed.
    wakes_on: ClassVar[tuple[Event, ...]] = ()

    def __init__(self, args: CoschedulingArgs, handle: Handle) -> None:
        """Take arguments that are already defaulted."""
        wait_s = duration.parse_seconds(args.default_timeout or "600s")
        self._defaults = Defaults(wait_s, args.default_match_policy or Defaults.policy)
        self.controller_workers = args.controller_workers or 1
        self._preempts = bool(args.enable_preemption)
        self._job_rules = JobRules()
        self._profile: Profile | None = None
        self._handle = handle
        self._state = handle.state
        self._pods = handle.lister(PODS)
        self._desk = handle.desk
        self.company = handle.state.derived(Company)
        self.company.join(handle, self._defaults)
        self._gangs = self.company.gangs

    # Queue -------------------------------------------------------------------------------------------------------

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        gang = self._gangs.of(pod.uid)
        if gang is None or gang.settings is None:
            return self._stranger(pod, gang)
        group = self._gangs.group_of(gang)
        if goes_alone(gang, group, self._defaults) or pod.gates:
            return None  # a pod with scheduling gates is held by them, and must not represent the group
        if not group.ready:
            return self._incomplete(group, gang, pod)
        round_ = self.company.running(group)
        if round_ is not None and pod.uid not in round_.attempted:
            return unresolvable(wording.being_tried(group.id))
        if pod.uid not in gang.pending:
            return unresolvable(wording.not_pending(pod.key))
        if group.representative in ("", pod.uid):
            group.representative = pod.uid
            return None
        other = self._gangs.of(group.representative)
        assert other is not None, "a representative is pending"
        return unresolvable(wording.represented(other.pending[group.representative].key, group.id))

    def _stranger(self, pod: PodInfo, gang: Gang | None) -> Reject | None:
        """Reject a pod whose gang is not known yet; return None for a pod of no gang."""
        if gang is not None:
            return unresolvable(wording.unsettled(gang.id, pod.key))
        gang_id = gang_of(pod.namespace, pod.labels, pod.annotations)
        return None if gang_id is None else unresolvable(wording.unknown(gang_id, pod.key))

    def _incomplete(self, group: Group, gang: Gang, pod: PodInfo) -> Reject:
        if group.representative == pod.uid:
            group.representative = ""
        return unresolvable(wording.incomplete(self._gangs, group, gang, pod.key))

    def next_pod(self) -> str | None:
        round_ = self.company.round
        if round_ is None:
            return None
        uid = round_.next(self._gangs)
        if uid is not None:
            return uid
        group = self._gangs.groups.get(round_.group)
        if group is None:
            self.company.end(wording.GANG_GONE)
        else:
            self.company.send_back(group, wording.ALL_TRIED)
            self.company.end(wording.ALL_TRIED)
        return None

    # An attempt --------------------------------------------------------------------------------------------------

    def begin(self, pod: PodInfo) -> Reject | None:
        company = self.company
        gang = self._gangs.of(pod.uid)
        if gang is None or gang.settings is None:
            self._disturb()
            return self._stranger(pod, gang)
        group = self._gangs.group_of(gang)
        if goes_alone(gang, group, self._defaults):
            self._disturb()
            return None
        if not group.ready:
            return self._incomplete(group, gang, pod)
        round_ = company.running(group)
        if round_ is None:
            self._give_up()
            company.start(group, pod.uid)
        else:
            round_.attempted.add(pod.uid)
        return None

    def _disturb(self) -> None:
        if self.company.round is not None:
            self.company.round.disturbed = True

    def _give_up(self) -> None:
        """End the previous round, whatever became of it: it is another group's turn."""
        round_ = self.company.round
        group = self._gangs.groups.get(round_.group) if round_ is not None else None
        if group is not None:
            self.company.send_back(group, wording.ALL_TRIED)
        self.company.end(wording.ALL_TRIED)

    def post_filter(self, cycle: Cycle, pod: PodInfo, refused: Refused) -> Preempt | Futile | None:
        """With `enablePreemption`, make room for all members at once; other plugins are not to evict for one of them.

        """
        if not self._preempts:
            return None
        gang = self._gangs.of(pod.uid)
        if gang is None:
            return alone(self.name, refused, self._job_rules)
        group = self._gangs.group_of(gang)
        if goes_alone(gang, group, self._defaults):
            return alone(self.name, refused, self._job_rules)
        round_ = self.company.running(group)
        if round_ is None or can_succeed(self._gangs, group, round_, self._defaults):
            return None
        if round_.whole:  # a plan that fails is made anew, and nobody is preempted for single members
            return Futile(final=True)
        members = self._infos(group, pod)
        began = self._handle.now()
        found = self._room(pod, refused, members)
        self.company.searched(group.id, isinstance(found, Room), self._handle.now() - began)
        if isinstance(found, str):
            self._nominate({member.uid: "" for member in members}, members, pod)
            return Futile((f"preemption: {found}",), final=True, nominate="")
        if isinstance(found, Futile):
            return found
        waiting = {uid: node for g in self._gangs.of_group(group) for uid, node in g.waiting.items()}
        self.company.promised.update(waiting)  # they are rejected, and keep a nomination for their nodes
        self._nominate(found.nodes, members, pod)
        lesser = {
            other.uid: None
            for node in set(found.nodes.values())
            for other in refused.nominator.on(node)
            if other.priority < pod.priority
        }
        size = len(waiting) + len(members)
        why = f"preempt success, alreadyWaitingForBound: {len(waiting)}/{size}"
        return Preempt(self.name, found.nodes[pod.uid], found.victims, tuple(lesser), why=why)

    def _nominate(self, nodes: Mapping[str, str], members: Sequence[PodInfo], but: PodInfo) -> None:
        for member in members:
            if member.uid != but.uid and not member.reserve:
                self._desk.nominate(member.key, member.uid, nodes[member.uid])

    def _room(self, pod: PodInfo, refused: Refused, members: Sequence[PodInfo]) -> Room | Futile | str:
        if pod.shape.spec.preemption_policy == "Never":
            return NEVER
        for member in members:
            node = refused.cycle.state.node(refused.nominator.node_of(member.uid) or member.nominated_node)
            leaving = node.pods.values() if node is not None else ()
            if any(other.preempted and self._job_rules.may_take(member, other) for other in leaving):
                return Futile(("preemption: not eligible due to terminating pod on the nominated node.",), final=True)
        assert self._profile is not None
        trials = prepared(self._profile, refused.cycle.state, members)
        if not isinstance(trials, dict):
            return f"not helpful: {trials.text if isinstance(trials, Reject) else trials.message}"
        return self._room_for(self._profile, refused, members, trials)

    def _room_for(self, profile: Profile, refused: Refused, members: Sequence[PodInfo], trials: Kinds) -> Room | str:
        return room_for(profile, refused, members, trials, self._job_rules)

    def _infos(self, group: Group, first: PodInfo) -> list[PodInfo]:
        """Return the members that still need a node, in their order."""
        return [info for m in self._gangs.pending(group) if (info := self._info(m, first)) is not None]

    def _info(self, member: Member, first: PodInfo) -> PodInfo | None:
        if member.uid == first.uid:
            return first
        if (stand_in := self.company.stand_ins.get(member.uid)) is not None:
            return self._state.info(stand_in)
        namespace, _, name = member.key.partition("/")
        pod = self._pods.get(namespace, name)
        return self._state.info(pod) if pod is not None and pod.metadata.uid == member.uid else None

    def meet(self, plugins: Sequence[Plugin]) -> None:
        if any(plugin.name == "Reservation" for plugin in plugins):
            self.company.join_reservations(self._handle)

    def enlist(self, profile: Profile) -> None:
        self._profile = profile

    def after_post_filter(self, cycle: Cycle, pod: PodInfo, refused: Refused) -> None:
        """Fail the whole group if the member that fits nowhere leaves too few, and report it once per member."""
        gang = self._gangs.of(pod.uid)
        if gang is None or gang.settings is None:
            return
        group = self._gangs.group_of(gang)
        early = refused.decision.pre_filter
        round_ = self.company.running(group)
        if goes_alone(gang, group, self._defaults) or (round_ is None and early is not None and early[0] == self.name):
            return
        if round_ is not None and can_succeed(self._gangs, group, round_, self._defaults):
            return
        message = self._failure(group, round_, pod, refused.decision.message())
        self.company.culprits[group.id] = pod.uid
        self.company.failures[group.id] = message
        self.company.send_back(group, message)
        told = f"0/{refused.decision.node_count} nodes are available: {message}."
        for member in self._gangs.pending(group):
            untried = round_ is not None and member.uid not in round_.attempted
            if untried and member.uid not in self.company.stand_ins:
                self._desk.remark(member.key, member.uid, told)
        self.company.end(wording.ALL_TRIED)

    def _failure(self, group: Group, round_: Round | None, pod: PodInfo, reason: str) -> str:
        waiting = len(self._gangs.waiting(group))
        node = round_.plan.get(pod.uid) if round_ is not None and round_.whole and round_.plan is not None else None
        if node is None:
            return wording.failed(group.id, pod.key, reason, waiting)
        return wording.batch_failed(waiting, len(self._gangs.pending(group)), pod.key, node, reason)

    # After the choice --------------------------------------------------------------------------------------------

    def permit(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | Wait | None:
        gang = self._gangs.of(pod.uid)
        if gang is None:
            stranger = gang_of(pod.namespace, pod.labels, pod.annotations)
            return None if stranger is None else reject("Gang not found")
        group = self._gangs.group_of(gang)
        self._gangs.hold(pod.uid, node.name)
        if not may_go(self._gangs, group, self._defaults):
            stated = gang.settings.wait_s if gang.settings is not None else 0.0
            return Wait(self._defaults.wait_s if stated is None else stated)
        waiting = self._gangs.waiting(group)
        group.binding = group.binding or frozenset(waiting)
        for uid in waiting:
            if uid != pod.uid:
                self._desk.allow(uid, self.name)
        if self.company.running(group) is not None:
            self.company.end(wording.SUCCEEDED)
            self.company.wake(group)  # there may be more members than the minimum
        return None

    def unreserve(self, cycle: Cycle, pod: PodInfo, node_name: str) -> None:
        gang = self._gangs.of(pod.uid)
        if gang is None:
            return
        group = self._gangs.group_of(gang)
        if pod.uid in group.binding and gang.waiting.get(pod.uid) == node_name:
            self.company.stranded[pod.uid] = node_name
        self._gangs.release(pod.uid)  # even if the gang's spec is gone
        if gang.settings is None or not gang.settings.strict or goes_alone(gang, group, self._defaults):
            return
        round_ = self.company.running(group)
        if round_ is not None and can_succeed(self._gangs, group, round_, self._defaults):
            return
        message = wording.unreserved(gang.id, pod.name)
        self.company.send_back(group, message)
        if round_ is not None:
            self.company.end(wording.ALL_TRIED)

    def pre_bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> Work | None:
        """Annotate members that are bound together with their group and number."""
        gang = self._gangs.of(pod.uid)
        group = self._gangs.group_of(gang) if gang is not None else None
        if group is not None and len(group.binding) > 1 and pod.uid in group.binding:
            count = str(len(group.binding))
            return Mark(dict(zip(_MARKS, (group.id, count, group.id, count), strict=True)))
        stale = [key for key in _MARKS if key in pod.annotations]
        if not stale or pod.reserve:
            return None
        patch = {"metadata": {"uid": pod.uid, "annotations": dict.fromkeys(stale)}}
        return Errand((Write(PODS, pod.namespace, pod.name, patch),), 0.0, lambda: True)

    def post_bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> None:
        self.company.hear(self._gangs.bind(pod.uid, node_name))

    def failed(self, pod: PodInfo, message: str, rejectors: frozenset[str]) -> Takeover | None:
        """Nominate the lost node again for a member whose binding failed while its gang starts: the gang needs it."""
        promised = self.company.promised.pop(pod.uid, None)  # victims are being evicted for the other members
        node = self.company.stranded.pop(pod.uid, None)
        if node is not None and not rejectors:
            return Takeover(nominate=node)
        return Takeover(nominate=promised) if promised is not None and REJECTOR in rejectors else None
