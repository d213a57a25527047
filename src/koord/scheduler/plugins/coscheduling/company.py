"""GangManager keeps the gangs of all profiles and the scheduling round that is under way.

It follows the watches of pods, PodGroups and Reservations, and activates a member when its group can
proceed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from koord.api.annotations.gang import ONCE_SATISFIED, gang_id
from koord.api.custom import POD_GROUPS, RESERVATIONS
from koord.api.koord_scheduling import Reservation
from koord.api.sigs_scheduling import PodGroup
from koord.policy.gang import wording
from koord.policy.gang.declaration import Defaults, gang_of, stated_by_pod_group
from koord.policy.gang.register import Gangs, Group, News
from koord.policy.gang.round import Round, policy_of
from koord.scheduler.framework.desk import Desk
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.coscheduling.membership import member_of
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.reserve import standing_for
from koord.scheduler.state.wire import PODS, Pod

# The plugin name that Koordinator reports for a rejected member, by which its nomination is kept or not.
REJECTOR = "JobRejectPlugin"

Ended = Callable[[str, int, float], None]  # reason, number of members tried, seconds
Searched = Callable[[str, bool, float], None]  # group, whether a preemption was found, seconds


class Company:
    """The gang state of one cluster state; get it with `state.derived(GangManager)`, then call `attach`."""

    def __init__(self, state: ClusterState) -> None:
        self.gangs = Gangs()
        self.round: Round | None = None
        self.defaults = Defaults()
        self.culprits: dict[str, str] = {}  # group -> uid of the member that failed its last round
        self.failures: dict[str, str] = {}  # group -> why its last round failed, until one succeeds
        self.stranded: dict[str, str] = {}  # uid -> the node that a member lost after its gang was permitted
        self.promised: dict[str, str] = {}  # uid -> the node that stays nominated for a member while victims leave
        self.watchers: list[Ended] = []
        self.searchers: list[Searched] = []
        self.batchers: list[Callable[[bool, float], None]] = []  # called with whether an uninterruptible plan succeeded
        self.reservers: list[Callable[[Pod | None, Pod | None], None]] = []  # called with reserve pods before and after
        self.leavers: list[Callable[[str], None]] = []  # called with groups that no longer exist
        self._desk = Desk()
        self._now: Callable[[], float] = lambda: 0.0
        self._joined = False
        self._reserving = False
        self.stand_ins: dict[str, Pod] = {}  # uid -> the reserve pod of a Reservation that is a member

    def join(self, handle: Handle, defaults: Defaults) -> None:
        if self._joined:
            return
        self._joined = True
        self.defaults = defaults
        self._desk = handle.desk
        self._now = handle.now
        handle.lister(POD_GROUPS).on_change(self._on_pod_group)
        handle.lister(PODS).on_change(self._on_pod)

    def join_reservations(self, handle: Handle) -> None:
        """Follow Reservations too: where they are scheduled, they can be gang members by their own or their template's
        labels.
        """
        if not self._reserving:
            self._reserving = True
            handle.lister(RESERVATIONS).on_change(self._on_reservation)

    # What the watch shows ----------------------------------------------------------------------------------------

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and (new is None or old.metadata.uid != new.metadata.uid):
            self.stranded.pop(old.metadata.uid, None)
            self.promised.pop(old.metadata.uid, None)
            self.hear(self.gangs.gone(old.metadata.uid))
        if new is None:
            return
        member = member_of(new)
        self.hear(self.gangs.seen(member) if member is not None else self.gangs.gone(new.metadata.uid))

    def _on_reservation(self, old: Reservation | None, new: Reservation | None) -> None:
        before = self.stand_ins.pop(old.metadata.uid, None) if old is not None else None
        now = standing_for(new) if new is not None and _may_be_member(new) else None
        if now is not None:
            self.stand_ins[now.metadata.uid] = now
        if before is not None or now is not None:
            self._on_pod(before, now)
            for listener in self.reservers:
                listener(before, now)

    def _on_pod_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        seen = new or old
        assert seen is not None
        meta = seen.metadata
        settings = stated_by_pod_group(new) if new is not None else None
        self.hear(self.gangs.pod_group(gang_id(meta.namespace, meta.name), settings))

    def hear(self, news: Iterable[News]) -> None:
        """Activate the members that a change concerns.

        One member represents the others, except where each member is scheduled on its own from now on.
        """
        for item in news:
            group = self.gangs.groups.get(item.group)
            if group is None:
                self.culprits.pop(item.group, None)
                self.failures.pop(item.group, None)
                for leaver in self.leavers:
                    leaver(item.group)
            elif item.what == "satisfied":
                self._desk.activate(
                    [
                        uid
                        for gang in self.gangs.of_group(group)
                        if policy_of(gang, self.defaults) == ONCE_SATISFIED
                        for uid in gang.pending
                    ]
                )
            elif self.round is None or self.round.group != group.id:
                self.wake(group)

    def wake(self, group: Group) -> None:
        """Activate one pending member to represent the group, preferably the one that did not fit the last time."""
        if not group.ready or group.representative:
            return
        culprit = self.culprits.get(group.id, "")
        line = sorted(self.gangs.pending(group), key=lambda member: member.uid != culprit)
        for member in line:
            self._desk.activate((member.uid,))  # if it is in the queue, its PreEnqueue makes it the representative
            if self._is_represented(group):
                return

    def _is_represented(self, group: Group) -> bool:
        return bool(group.representative)

    def searched(self, group: str, found: bool, took_s: float) -> None:
        for searcher in self.searchers:
            searcher(group, found, took_s)

    # The round ---------------------------------------------------------------------------------------------------

    def start(self, group: Group, first: str) -> Round:
        group.representative = ""
        self.round = Round(group.id, first, self._now())
        return self.round

    def running(self, group: Group) -> Round | None:
        return self.round if self.round is not None and self.round.group == group.id else None

    def send_back(self, group: Group, message: str) -> None:
        """Reject the members of the group that wait at Permit, so that they give back their nodes."""
        round_ = self.running(group)
        quiet = round_ is not None and not round_.disturbed
        for uid in self.gangs.waiting(group):
            self._desk.refuse(uid, REJECTOR, message, quiet=quiet)

    def end(self, reason: str) -> None:
        round_, self.round = self.round, None
        if round_ is None:
            return
        if reason == wording.SUCCEEDED:
            self.culprits.pop(round_.group, None)
            self.failures.pop(round_.group, None)
        took = self._now() - round_.began
        if round_.whole:
            for batcher in self.batchers:
                batcher(reason == wording.SUCCEEDED, took)
        for watcher in self.watchers:
            watcher(reason, len(round_.attempted), took)


def _may_be_member(reservation: Reservation) -> bool:
    """Return whether the Reservation may be a gang member, before a reserve pod is built for it: nearly none is."""
    meta, template = reservation.metadata, reservation.spec.template
    own = gang_of("", meta.labels or {}, meta.annotations or {})
    if own is not None or template is None:
        return own is not None
    return gang_of("", template.metadata.labels or {}, template.metadata.annotations or {}) is not None
