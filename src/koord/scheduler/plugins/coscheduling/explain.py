"""Report a gang for people: its members, where each of them is, and why those that are held are held."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from koord.scheduler.plugins.coscheduling.gang_cache import Gang
from koord.scheduler.plugins.coscheduling.gang_manager import GangManager
from koord.scheduler.plugins.coscheduling.plugin import Coscheduling
from koord.scheduler.queue.queued_pod import QueuedPodStatus

QueueStatus = Callable[[str], QueuedPodStatus | None]  # where a pod is in the queue, by UID


class GangMemberReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Report one member.

    `state` is bound, waiting (has a node, waits for the others), queued, backing off, held, asleep or ended.
    """

    pod: str
    state: str
    node: str = ""
    why: str = ""
    attempts: int = 0


class GangReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Report one gang."""

    name: str
    minimum: int | None  # None: nobody has said what it asks for
    members: int
    bound: int
    waiting: int
    mode: str
    policy: str
    wait_seconds: float
    group: tuple[str, ...]
    started: bool  # its minimum was bound once
    told: str  # in one sentence, what it is waiting for
    last_failure: str = ""
    warning: str = ""  # what of its rules does not count, and why
    standings: tuple[GangMemberReport, ...] = ()


def report_gangs(gang_manager: GangManager, queue_status: QueueStatus) -> list[GangReport]:
    return [_report(gang_manager, queue_status, gang) for _, gang in sorted(gang_manager.gangs.gangs.items())]


def report_gang(gang_manager: GangManager, queue_status: QueueStatus, gang_id: str) -> GangReport | None:
    gang = gang_manager.gangs.gangs.get(gang_id)
    return _report(gang_manager, queue_status, gang) if gang is not None else None


def awaited_members(gang_manager: GangManager, uid: str) -> str:
    """Return what a member that has a node waits for, in words; "" for a pod of no gang."""
    gang = gang_manager.gangs.gang_of_pod(uid)
    if gang is None or gang.spec is None:
        return ""
    placed, minimum = len(gang.waiting) + len(gang.bound), gang.spec.min_members
    told = f"its gang {gang.id} ({placed} of {minimum} members have a node)"
    others = [other for other in gang_manager.gangs.group_of_gang(gang).gangs if other != gang.id]
    return f"{told} and {', '.join(others)}" if others else told


def _report(gang_manager: GangManager, queue_status: QueueStatus, gang: Gang) -> GangReport:
    group = gang_manager.gangs.group_of_gang(gang)
    settings, defaults = gang.spec, gang_manager.defaults
    stated = settings.wait_time_s if settings is not None else None
    return GangReport(
        name=gang.id,
        minimum=settings.min_members if settings is not None else None,
        members=gang.collected_members,
        bound=len(gang.bound),
        waiting=len(gang.waiting),
        mode="Strict" if settings is None or settings.strict else "NonStrict",
        policy=(settings.match_policy if settings is not None else None) or defaults.match_policy,
        wait_seconds=defaults.wait_time_s if stated is None else stated,
        group=group.gangs,
        started=group.satisfied,
        told=_headline(gang_manager, gang),
        last_failure=gang_manager.failure_messages.get(group.id, ""),
        warning=gang_manager.ignored_topologies.get(gang.id, ""),
        standings=tuple(
            _member_report(gang, uid, queue_status, _hold_reason(gang_manager, gang))
            for uid in sorted(gang.members, key=lambda uid: gang.members[uid].order)
        ),
    )


def _headline(gang_manager: GangManager, gang: Gang) -> str:
    group = gang_manager.gangs.group_of_gang(gang)
    settings = gang.spec
    if settings is None:
        return (
            f"waits for PodGroup {gang.id}" if gang.pod_group_members else "no member says how many must start together"
        )
    if gang.collected_members < settings.min_members:
        held = f", {len(gang.held)} more held by a scheduling gate or being deleted" if gang.held else ""
        return f"waits for {settings.min_members - gang.collected_members} more of {settings.min_members} members{held}"
    if group.satisfied and len(gang.bound) >= settings.min_members:
        left = len(gang.pending)
        return "has started" if not left else f"has started; {left} more members wait for room on their own"
    if not group.ready:
        others = [other for other in group.gangs if not _is_complete(gang_manager, other)]
        return f"complete; waits for {', '.join(others)} of its group"
    if gang_manager.running_round(group) is not None:
        return "is being tried now"
    return "found no room for all" if group.id in gang_manager.failure_messages else "complete; waits for its turn"


def _is_complete(gang_manager: GangManager, gang_id: str) -> bool:
    gang = gang_manager.gangs.gangs.get(gang_id)
    return gang is not None and gang.is_complete


def _hold_reason(gang_manager: GangManager, gang: Gang) -> str:
    """Return why members of a gang that could be tried are held now; empty where the reason of their gate still holds.

    A gate keeps the words of the moment at which it closed, when the gang may have been smaller.
    """
    group = gang_manager.gangs.group_of_gang(gang)
    speaker = gang_manager.gangs.gang_of_pod(group.representative)
    if not group.ready:
        return ""
    if speaker is not None:
        return f"{speaker.members[group.representative].key} is tried first, for all of the gang"
    return "the gang is tried through another member"


def _member_report(gang: Gang, uid: str, queue_status: QueueStatus, hold_reason: str) -> GangMemberReport:
    member = gang.members[uid]
    if member.ended:
        return GangMemberReport(pod=member.key, state="ended", node=member.node)
    if uid in gang.bound:
        return GangMemberReport(pod=member.key, state="bound", node=gang.bound[uid])
    if uid in gang.waiting:
        return GangMemberReport(pod=member.key, state="waiting", node=gang.waiting[uid])
    queued = queue_status(uid)
    if queued is None:
        return GangMemberReport(pod=member.key, state="unknown", why="it is not in this scheduler's queue")
    names = {"active": "queued", "backoff": "backing off", "gated": "held", "unschedulable": "asleep"}
    why = queued.last_failure
    if queued.part == "gated":
        why = hold_reason if hold_reason and queued.gated_by == Coscheduling.name else queued.gate_reason
    return GangMemberReport(
        pod=member.key, state=names.get(queued.part, "being tried"), why=why, attempts=queued.attempts
    )
