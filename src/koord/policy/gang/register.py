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

from koord.policy.gang.declaration import Member, Settings


class Gang:
    __slots__ = (
        "author",
        "bound",
        "doomed",
        "held",
        "id",
        "labelled",
        "members",
        "outlived",
        "pending",
        "pod_group",
        "settings",
        "waiting",
    )

    def __init__(self, gang_id: str) -> None:
        self.id = gang_id
        self.pod_group: Settings | None = None
        self.settings: Settings | None = None  # None: no pod or PodGroup has stated it yet
        self.author = ""  # the member whose annotations state it, by uid
        self.labelled = 0  # members that name a PodGroup
        self.outlived = 0  # members that have ended on a node
        self.members: dict[str, Member] = {}  # by uid, those that have ended included
        self.pending: dict[str, Member] = {}  # can be tried
        self.held: dict[str, Member] = {}  # without a node, and cannot be tried
        self.waiting: dict[str, str] = {}  # uid -> the node that it has and waits to be bound to
        self.doomed: set[str] = set()  # of those who wait: who cannot start any more, because it is being deleted
        self.bound: dict[str, str] = {}

    @property
    def group(self) -> tuple[str, ...]:
        return self.settings.group if self.settings is not None else (self.id,)

    @property
    def group_id(self) -> str:
        return ",".join(self.group)

    @property
    def collected(self) -> int:
        """Return the number of members that exist and could start, or have started."""
        return len(self.pending) + self.ready + len(self.bound)

    @property
    def ready(self) -> int:
        """Return the number of members that have a node, wait, and could start."""
        return len(self.waiting) - len(self.doomed)

    def unwait(self, uid: str) -> bool:
        self.doomed.discard(uid)
        return self.waiting.pop(uid, None) is not None

    @property
    def complete(self) -> bool:
        return self.settings is not None and self.collected >= self.settings.minimum


class Group:
    """Gangs that are scheduled together; most groups have one. Its three facts are this scheduler's own history."""

    __slots__ = ("binding", "gangs", "id", "joined", "ready", "representative", "satisfied")

    def __init__(self, group_id: str, gangs: tuple[str, ...]) -> None:
        self.id = group_id
        self.gangs = gangs
        self.joined = 0  # gangs that declare to be in it
        self.ready = False  # all its gangs are complete
        self.satisfied = False  # some member has been bound: it stays so
        self.representative = ""  # the member that queues for all of them, by uid
        self.binding: frozenset[str] = frozenset()  # those that were released together and are not all bound yet


class News(msgspec.Struct, frozen=True):
    """An event for waiting pods: a group became ready or satisfied, lost a possible representative, or ended."""

    group: str
    what: Literal["ready", "satisfied", "left", "ended"]


class Gangs:
    def __init__(self) -> None:
        self.gangs: dict[str, Gang] = {}
        self.groups: dict[str, Group] = {}
        self._of: dict[str, str] = {}  # uid -> gang
        self._listing: dict[str, set[str]] = {}  # gang -> the groups that name it
        self._joined: dict[str, str] = {}  # gang -> the group that it is in

    # What the watch shows ----------------------------------------------------------------------------------------

    def seen(self, member: Member) -> list[News]:
        news: list[News] = []
        if self._of.get(member.uid, member.gang) != member.gang:
            news += self.gone(member.uid)
        gang = self.gangs.get(member.gang)
        if gang is None:
            gang = self.gangs[member.gang] = Gang(member.gang)
        elif gang.members.get(member.uid) == member:
            return news
        elif self._only_confirmed(gang, member):
            gang.members[member.uid] = member
            return news
        lost = self._drop(gang, member.uid, keep_wait=not member.node and not member.ended)
        self._of[member.uid] = gang.id
        gang.members[member.uid] = member
        gang.labelled += member.labelled
        gang.outlived += member.ended and bool(member.node)
        self._place(gang, member)
        self._settle_settings(gang, member.uid)
        stays = member.uid in gang.pending or member.uid in gang.bound
        return news + self._stirred(gang, left=lost and not stays)

    def gone(self, uid: str) -> list[News]:
        gang = self.gangs.get(self._of.pop(uid, ""))
        if gang is None:
            return []
        lost = self._drop(gang, uid, keep_wait=False)
        self._settle_settings(gang, uid)
        return self._stirred(gang, left=lost)

    def pod_group(self, gang_id: str, settings: Settings | None) -> list[News]:
        """Set the spec of the PodGroup; None: there is no such PodGroup (any more)."""
        gang = self.gangs.get(gang_id)
        if gang is None:
            if settings is None:
                return []
            gang = self.gangs[gang_id] = Gang(gang_id)
        if gang.pod_group == settings:
            return []
        gang.pod_group = settings
        self._settle_settings(gang, "")
        return self._stirred(gang)

    # What the scheduler does -------------------------------------------------------------------------------------

    def hold(self, uid: str, node: str) -> bool:
        """Record that the member has a node and waits for the others. Return False when it is not pending."""
        gang = self.of(uid)
        if gang is None or gang.pending.pop(uid, None) is None:
            return False
        gang.waiting[uid] = node
        self._lost_representative(self.group_of(gang))
        return True

    def release(self, uid: str) -> None:
        """Record that the member lost that node, whatever has become of it meanwhile."""
        gang = self.of(uid)
        if gang is None or not gang.unwait(uid):
            return
        self._place(gang, gang.members[uid])
        self._calm(gang)

    def bind(self, uid: str, node: str) -> list[News]:
        gang = self.of(uid)
        if gang is None or gang.members[uid].ended:
            return []
        gang.pending.pop(uid, None)
        gang.held.pop(uid, None)
        gang.unwait(uid)
        gang.bound[uid] = node
        return self._stirred(gang)

    # Reading -----------------------------------------------------------------------------------------------------

    def of(self, uid: str) -> Gang | None:
        return self.gangs.get(self._of.get(uid, ""))

    def group_of(self, gang: Gang) -> Group:
        return self.groups[self._joined[gang.id]]

    def of_group(self, group: Group) -> Iterator[Gang]:
        """Yield those gangs of the group that exist."""
        for gang_id in group.gangs:
            gang = self.gangs.get(gang_id)
            if gang is not None:
                yield gang

    def waiting(self, group: Group) -> list[str]:
        return [uid for gang in self.of_group(group) for uid in gang.waiting]

    def pending(self, group: Group) -> list[Member]:
        """Return the pending members in the order in which they are tried: gang by gang."""
        return [m for gang in self.of_group(group) for m in sorted(gang.pending.values(), key=lambda m: m.order)]

    def _only_confirmed(self, gang: Gang, member: Member) -> bool:
        """Return whether the watch only confirms a known binding: this is common, and changes nothing."""
        before = gang.members.get(member.uid)
        if before is None or member.ended or gang.bound.get(member.uid) != member.node:
            return False
        return (before.labelled, before.stated, before.ended) == (member.labelled, member.stated, False)

    # Inside ------------------------------------------------------------------------------------------------------

    def _place(self, gang: Gang, member: Member) -> None:
        uid = member.uid
        if member.ended:
            return
        if member.node or uid in gang.bound:  # a view from before the binding does not undo it
            gang.unwait(uid)
            gang.bound[uid] = member.node or gang.bound[uid]
        elif uid in gang.waiting:
            (gang.doomed.discard if member.free else gang.doomed.add)(uid)
        else:
            (gang.pending if member.free else gang.held)[uid] = member

    def _drop(self, gang: Gang, uid: str, *, keep_wait: bool) -> bool:
        """Remove the member and return whether it was pending or waiting."""
        before = gang.members.pop(uid, None)
        if before is None:
            return False
        gang.labelled -= before.labelled
        gang.outlived -= before.ended and bool(before.node)
        tried = gang.pending.pop(uid, None) is not None
        gang.held.pop(uid, None)
        if not keep_wait:
            tried = gang.unwait(uid) or tried
            gang.bound.pop(uid, None)
        return tried

    def _settle_settings(self, gang: Gang, uid: str) -> None:
        """Choose the spec: that of a PodGroup where one exists or is named; else that of the oldest member that states
        one.
        """
        if gang.pod_group is not None or gang.labelled:
            gang.author, gang.settings = "", gang.pod_group
            return
        author, member = gang.members.get(gang.author), gang.members.get(uid)
        if author is None or author.stated is None or gang.author == uid:
            stating = (m for m in gang.members.values() if m.stated is not None)
            author = min(stating, key=_seniority, default=None)
        elif member is not None and member.stated is not None and _seniority(member) < _seniority(author):
            author = member
        gang.author = author.uid if author is not None else ""
        gang.settings = author.stated if author is not None else None

    def _stirred(self, gang: Gang, *, left: bool = False) -> list[News]:
        """Refresh the groups that a changed gang is in or named by, and return the events."""
        ended = self._join(gang)
        news: list[News] = [] if ended is None else [News(ended, "ended")]
        own = self._joined.get(gang.id)
        touched = {*self._listing.get(gang.id, ()), *(() if own is None else (own,))}
        for group_id in sorted(touched):
            group = self.groups[group_id]
            was, group.ready = group.ready, self._is_ready(group)
            if group.ready and not was:
                news.append(News(group_id, "ready"))
            if group_id != own:
                continue
            if not group.satisfied and (gang.bound or gang.outlived):
                group.satisfied = True
                news.append(News(group_id, "satisfied"))
            if self._lost_representative(group) or (left and group.ready):
                news.append(News(group_id, "left"))
        self._calm(gang)
        return news

    def _lost_representative(self, group: Group) -> bool:
        if not group.representative or any(group.representative in gang.pending for gang in self.of_group(group)):
            return False
        group.representative = ""
        return True

    def _calm(self, gang: Gang) -> None:
        group = self.groups.get(self._joined.get(gang.id, ""))
        if group is not None and group.binding and not any(other.waiting for other in self.of_group(group)):
            group.binding = frozenset()

    def _is_ready(self, group: Group) -> bool:
        found = [self.gangs.get(gang_id) for gang_id in group.gangs]
        return all(gang is not None and gang.complete for gang in found)

    def _join(self, gang: Gang) -> str | None:
        """Move the gang to its group; return the group that ends because its last gang left it."""
        ended: str | None = None
        exists = bool(gang.members) or gang.pod_group is not None
        now, before = gang.group_id if exists else None, self._joined.get(gang.id)
        if now == before:
            return None
        if before is not None:
            del self._joined[gang.id]
            group = self.groups[before]
            if self._of.get(group.representative) == gang.id:
                group.representative = ""
            self._lost_representative(group)  # it may have been the very member whose going ended the gang
            group.joined -= 1
            if group.joined:  # what the one that leaves had started is not theirs
                group.satisfied = any(
                    (other.bound or other.outlived) and self._joined.get(other.id) == before
                    for other in self.of_group(group)
                )
            else:
                ended = before
                for named in self.groups.pop(before).gangs:
                    self._listing[named].discard(before)
                    if not self._listing[named]:
                        del self._listing[named]
        if now is None:
            del self.gangs[gang.id]
            return ended
        self._joined[gang.id] = now
        if now not in self.groups:
            self.groups[now] = Group(now, gang.group)
            for named in gang.group:
                self._listing.setdefault(named, set()).add(now)
        self.groups[now].joined += 1
        return ended


def _seniority(member: Member) -> tuple[float, str]:
    return member.created, member.key
