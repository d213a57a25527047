"""The gang cache: which gangs exist, who is in them, and how far each member is.

It is a reducer over what the watch shows and what the scheduler does. Everything but the three facts of a
gang group can be rebuilt from the live objects.

    update_member, remove_member, update_pod_group  (the watch)
    mark_waiting, mark_pending, mark_bound          (the scheduler)

              mark_waiting          mark_bound, or the watch shows a node
      pending ---------->  waiting  ---------------------------------->  bound
         ^                    |
         +-- mark_pending ----+
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from koord.scheduler.plugins.coscheduling.gang_spec import GangMember, GangSpec


class Gang:
    __slots__ = (
        "bound",
        "deleting",
        "ended_on_node",
        "held",
        "id",
        "members",
        "pending",
        "pod_group",
        "pod_group_members",
        "spec",
        "spec_author",
        "waiting",
    )

    def __init__(self, gang_id: str) -> None:
        self.id = gang_id
        self.pod_group: GangSpec | None = None
        self.spec: GangSpec | None = None  # None: no pod or PodGroup has stated it yet
        self.spec_author = ""  # the member whose annotations state it, by uid
        self.pod_group_members = 0  # members that name a PodGroup
        self.ended_on_node = 0  # members that have ended on a node
        self.members: dict[str, GangMember] = {}  # by uid, those that have ended included
        self.pending: dict[str, GangMember] = {}  # can be tried
        self.held: dict[str, GangMember] = {}  # without a node, and cannot be tried
        self.waiting: dict[str, str] = {}  # uid -> the node that it has and waits to be bound to
        self.deleting: set[str] = set()  # of those who wait: who cannot start any more, because it is being deleted
        self.bound: dict[str, str] = {}

    @property
    def gang_group(self) -> tuple[str, ...]:
        return self.spec.gang_group if self.spec is not None else (self.id,)

    @property
    def gang_group_id(self) -> str:
        return ",".join(self.gang_group)

    @property
    def collected_members(self) -> int:
        """Return the number of members that exist and could start, or have started."""
        return len(self.pending) + self.ready_members + len(self.bound)

    @property
    def ready_members(self) -> int:
        """Return the number of members that have a node, wait, and could start."""
        return len(self.waiting) - len(self.deleting)

    def stop_waiting(self, uid: str) -> bool:
        self.deleting.discard(uid)
        return self.waiting.pop(uid, None) is not None

    @property
    def is_complete(self) -> bool:
        return self.spec is not None and self.collected_members >= self.spec.min_members


class GangGroup:
    """Gangs that are scheduled together; most groups have one. Its three facts are this scheduler's own history."""

    __slots__ = ("binding", "gangs", "id", "joined_gangs", "ready", "representative", "satisfied")

    def __init__(self, group_id: str, gangs: tuple[str, ...]) -> None:
        self.id = group_id
        self.gangs = gangs
        self.joined_gangs = 0  # gangs that declare to be in it
        self.ready = False  # all its gangs are complete
        self.satisfied = False  # some member has been bound: it stays so
        self.representative = ""  # the member that queues for all of them, by uid
        self.binding: frozenset[str] = frozenset()  # those that were released together and are not all bound yet


class GangGroupEvent(msgspec.Struct, frozen=True):
    """An event for waiting pods: a group became ready or satisfied, lost a possible representative, or ended."""

    group: str
    what: Literal["ready", "satisfied", "left", "ended"]


class GangCache:
    def __init__(self) -> None:
        self.gangs: dict[str, Gang] = {}
        self.groups: dict[str, GangGroup] = {}
        self._gang_by_pod: dict[str, str] = {}  # uid -> gang
        self._groups_naming: dict[str, set[str]] = {}  # gang -> the groups that name it
        self._group_by_gang: dict[str, str] = {}  # gang -> the group that it is in

    # What the watch shows ----------------------------------------------------------------------------------------

    def update_member(self, member: GangMember) -> list[GangGroupEvent]:
        events: list[GangGroupEvent] = []
        if self._gang_by_pod.get(member.uid, member.gang) != member.gang:
            events += self.remove_member(member.uid)
        gang = self.gangs.get(member.gang)
        if gang is None:
            gang = self.gangs[member.gang] = Gang(member.gang)
        elif gang.members.get(member.uid) == member:
            return events
        elif self._confirms_binding(gang, member):
            gang.members[member.uid] = member
            return events
        lost = self._drop(gang, member.uid, keep_wait=not member.node and not member.ended)
        self._gang_by_pod[member.uid] = gang.id
        gang.members[member.uid] = member
        gang.pod_group_members += member.names_pod_group
        gang.ended_on_node += member.ended and bool(member.node)
        self._place(gang, member)
        self._refresh_spec(gang, member.uid)
        stays = member.uid in gang.pending or member.uid in gang.bound
        return events + self._refresh_groups(gang, left=lost and not stays)

    def remove_member(self, uid: str) -> list[GangGroupEvent]:
        gang = self.gangs.get(self._gang_by_pod.pop(uid, ""))
        if gang is None:
            return []
        lost = self._drop(gang, uid, keep_wait=False)
        self._refresh_spec(gang, uid)
        return self._refresh_groups(gang, left=lost)

    def update_pod_group(self, gang_id: str, settings: GangSpec | None) -> list[GangGroupEvent]:
        """Set the spec of the PodGroup; None: there is no such PodGroup (any more)."""
        gang = self.gangs.get(gang_id)
        if gang is None:
            if settings is None:
                return []
            gang = self.gangs[gang_id] = Gang(gang_id)
        if gang.pod_group == settings:
            return []
        gang.pod_group = settings
        self._refresh_spec(gang, "")
        return self._refresh_groups(gang)

    # What the scheduler does -------------------------------------------------------------------------------------

    def mark_waiting(self, uid: str, node: str) -> bool:
        """Record that the member has a node and waits for the others. Return False when it is not pending."""
        gang = self.gang_of_pod(uid)
        if gang is None or gang.pending.pop(uid, None) is None:
            return False
        gang.waiting[uid] = node
        self._lost_representative(self.group_of_gang(gang))
        return True

    def mark_pending(self, uid: str) -> None:
        """Record that the member lost that node, whatever has become of it meanwhile."""
        gang = self.gang_of_pod(uid)
        if gang is None or not gang.stop_waiting(uid):
            return
        self._place(gang, gang.members[uid])
        self._clear_binding(gang)

    def mark_bound(self, uid: str, node: str) -> list[GangGroupEvent]:
        gang = self.gang_of_pod(uid)
        if gang is None or gang.members[uid].ended:
            return []
        gang.pending.pop(uid, None)
        gang.held.pop(uid, None)
        gang.stop_waiting(uid)
        gang.bound[uid] = node
        return self._refresh_groups(gang)

    # Reading -----------------------------------------------------------------------------------------------------

    def gang_of_pod(self, uid: str) -> Gang | None:
        return self.gangs.get(self._gang_by_pod.get(uid, ""))

    def group_of_gang(self, gang: Gang) -> GangGroup:
        return self.groups[self._group_by_gang[gang.id]]

    def gangs_in_group(self, group: GangGroup) -> Iterator[Gang]:
        """Yield those gangs of the group that exist."""
        for gang_id in group.gangs:
            gang = self.gangs.get(gang_id)
            if gang is not None:
                yield gang

    def waiting_in_group(self, group: GangGroup) -> list[str]:
        return [uid for gang in self.gangs_in_group(group) for uid in gang.waiting]

    def pending_in_group(self, group: GangGroup) -> list[GangMember]:
        """Return the pending members in the order in which they are tried: gang by gang."""
        return [m for gang in self.gangs_in_group(group) for m in sorted(gang.pending.values(), key=lambda m: m.order)]

    def _confirms_binding(self, gang: Gang, member: GangMember) -> bool:
        """Return whether the watch only confirms a known binding: this is common, and changes nothing."""
        before = gang.members.get(member.uid)
        if before is None or member.ended or gang.bound.get(member.uid) != member.node:
            return False
        return (before.names_pod_group, before.spec, before.ended) == (member.names_pod_group, member.spec, False)

    # Inside ------------------------------------------------------------------------------------------------------

    def _place(self, gang: Gang, member: GangMember) -> None:
        uid = member.uid
        if member.ended:
            return
        if member.node or uid in gang.bound:  # a view from before the binding does not undo it
            gang.stop_waiting(uid)
            gang.bound[uid] = member.node or gang.bound[uid]
        elif uid in gang.waiting:
            (gang.deleting.discard if member.is_schedulable else gang.deleting.add)(uid)
        else:
            (gang.pending if member.is_schedulable else gang.held)[uid] = member

    def _drop(self, gang: Gang, uid: str, *, keep_wait: bool) -> bool:
        """Remove the member and return whether it was pending or waiting."""
        before = gang.members.pop(uid, None)
        if before is None:
            return False
        gang.pod_group_members -= before.names_pod_group
        gang.ended_on_node -= before.ended and bool(before.node)
        tried = gang.pending.pop(uid, None) is not None
        gang.held.pop(uid, None)
        if not keep_wait:
            tried = gang.stop_waiting(uid) or tried
            gang.bound.pop(uid, None)
        return tried

    def _refresh_spec(self, gang: Gang, uid: str) -> None:
        """Choose the spec: that of the PodGroup that exists or is named, else of the oldest member with one."""
        if gang.pod_group is not None or gang.pod_group_members:
            gang.spec_author, gang.spec = "", gang.pod_group
            return
        author, member = gang.members.get(gang.spec_author), gang.members.get(uid)
        if author is None or author.spec is None or gang.spec_author == uid:
            stating = (m for m in gang.members.values() if m.spec is not None)
            author = min(stating, key=_seniority, default=None)
        elif member is not None and member.spec is not None and _seniority(member) < _seniority(author):
            author = member
        gang.spec_author = author.uid if author is not None else ""
        gang.spec = author.spec if author is not None else None

    def _refresh_groups(self, gang: Gang, *, left: bool = False) -> list[GangGroupEvent]:
        """Refresh the groups that a changed gang is in or named by, and return the events."""
        ended = self._update_group(gang)
        events: list[GangGroupEvent] = [] if ended is None else [GangGroupEvent(ended, "ended")]
        own = self._group_by_gang.get(gang.id)
        touched = {*self._groups_naming.get(gang.id, ()), *(() if own is None else (own,))}
        for group_id in sorted(touched):
            group = self.groups[group_id]
            was, group.ready = group.ready, self._is_ready(group)
            if group.ready and not was:
                events.append(GangGroupEvent(group_id, "ready"))
            if group_id != own:
                continue
            if not group.satisfied and (gang.bound or gang.ended_on_node):
                group.satisfied = True
                events.append(GangGroupEvent(group_id, "satisfied"))
            if self._lost_representative(group) or (left and group.ready):
                events.append(GangGroupEvent(group_id, "left"))
        self._clear_binding(gang)
        return events

    def _lost_representative(self, group: GangGroup) -> bool:
        if not group.representative or any(group.representative in gang.pending for gang in self.gangs_in_group(group)):
            return False
        group.representative = ""
        return True

    def _clear_binding(self, gang: Gang) -> None:
        group = self.groups.get(self._group_by_gang.get(gang.id, ""))
        if group is not None and group.binding and not any(other.waiting for other in self.gangs_in_group(group)):
            group.binding = frozenset()

    def _is_ready(self, group: GangGroup) -> bool:
        found = [self.gangs.get(gang_id) for gang_id in group.gangs]
        return all(gang is not None and gang.is_complete for gang in found)

    def _update_group(self, gang: Gang) -> str | None:
        """Move the gang to its group; return the group that ends because its last gang left it."""
        ended: str | None = None
        exists = bool(gang.members) or gang.pod_group is not None
        now, before = gang.gang_group_id if exists else None, self._group_by_gang.get(gang.id)
        if now == before:
            return None
        if before is not None:
            del self._group_by_gang[gang.id]
            group = self.groups[before]
            if self._gang_by_pod.get(group.representative) == gang.id:
                group.representative = ""
            self._lost_representative(group)  # it may have been the very member whose going ended the gang
            group.joined_gangs -= 1
            if group.joined_gangs:  # what the one that leaves had started is not theirs
                group.satisfied = any(
                    (other.bound or other.ended_on_node) and self._group_by_gang.get(other.id) == before
                    for other in self.gangs_in_group(group)
                )
            else:
                ended = before
                for named in self.groups.pop(before).gangs:
                    self._groups_naming[named].discard(before)
                    if not self._groups_naming[named]:
                        del self._groups_naming[named]
        if now is None:
            del self.gangs[gang.id]
            return ended
        self._group_by_gang[gang.id] = now
        if now not in self.groups:
            self.groups[now] = GangGroup(now, gang.gang_group)
            for named in gang.gang_group:
                self._groups_naming.setdefault(named, set()).add(now)
        self.groups[now].joined_gangs += 1
        return ended


def _seniority(member: GangMember) -> tuple[float, str]:
    return member.created, member.key
