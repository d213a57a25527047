"""One scheduling round of a gang group: whom it has tried, who is next, and whether it can still succeed.

    first member popped -> it and then the other members, one after another, each gets a node and waits
        | enough of every gang wait          -> all are released together
        | too few are left to be enough      -> the waiting pods are rejected at once, and nobody else is tried
        | nobody is left to be tried         -> the waiting pods are rejected

Nothing else is scheduled between the first and the last step, so no two groups hold resources that the
other needs.
"""

from __future__ import annotations

from koord.api.annotations.gang_codecs import ONCE_SATISFIED, ONLY_WAITING, WAITING_AND_RUNNING
from koord.scheduler.plugins.coscheduling.gang_cache import Gang, GangCache, GangGroup
from koord.scheduler.plugins.coscheduling.gang_spec import GangDefaults


class GangRound:
    __slots__ = ("_queue", "all_or_nothing", "attempted", "disturbed", "failure", "first", "group", "plan", "started_s")

    def __init__(self, group: str, first: str, began: float = 0.0) -> None:
        self.group = group
        self.first = first  # uids
        self.attempted = {first}
        self.started_s = began
        self.disturbed = False  # another pod was tried meanwhile
        self.failure = ""  # why it cannot succeed any more
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


def match_policy_of(gang: Gang, defaults: GangDefaults) -> str:
    return (gang.spec.match_policy if gang.spec is not None else None) or defaults.match_policy


def schedules_individually(gang: Gang, group: GangGroup, defaults: GangDefaults) -> bool:
    """Return whether members are scheduled as ordinary pods: the minimum has started once and the policy is
    OnceSatisfied.
    """
    return group.satisfied and match_policy_of(gang, defaults) == ONCE_SATISFIED


def has_enough_members(gang: Gang, group: GangGroup, defaults: GangDefaults, more: int = 0) -> bool:
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


def can_release_group(gangs: GangCache, group: GangGroup, defaults: GangDefaults) -> bool:
    found = [gangs.gangs.get(gang_id) for gang_id in group.gangs]
    return all(gang is not None and has_enough_members(gang, group, defaults) for gang in found)


def can_succeed(gangs: GangCache, group: GangGroup, round_: GangRound, defaults: GangDefaults) -> bool:
    """Return whether the members not yet tried could make every gang of the group complete."""
    for gang_id in group.gangs:
        gang = gangs.gangs.get(gang_id)
        if gang is None:
            return False
        left = sum(1 for uid in gang.pending if uid not in round_.attempted)
        if not has_enough_members(gang, group, defaults, left):
            return False
    return True
