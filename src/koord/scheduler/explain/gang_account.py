"""Report a gang for people: its members, where each of them is, and why those that are held are held."""

from __future__ import annotations

import msgspec

from koord.policy.gang.register import Gang
from koord.scheduler.explain.live import Explainer
from koord.scheduler.plugins.coscheduling.company import Company


class Standing(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Report one member; `state` is bound, waiting (has a node, waits for the others), queued, backing off, held, asleep or
    ended.
    """

    pod: str
    state: str
    node: str = ""
    why: str = ""
    attempts: int = 0


class GangAccount(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
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
    standings: tuple[Standing, ...] = ()


def accounts(explainer: Explainer) -> list[GangAccount]:
    company = explainer.gangs()
    return [_account(explainer, company, gang) for _, gang in sorted(company.gangs.gangs.items())]


def account(explainer: Explainer, gang_id: str) -> GangAccount | None:
    company = explainer.gangs()
    gang = company.gangs.gangs.get(gang_id)
    return _account(explainer, company, gang) if gang is not None else None


def _account(explainer: Explainer, company: Company, gang: Gang) -> GangAccount:
    group = company.gangs.group_of(gang)
    settings, defaults = gang.settings, company.defaults
    stated = settings.wait_s if settings is not None else None
    return GangAccount(
        name=gang.id,
        minimum=settings.minimum if settings is not None else None,
        members=gang.collected,
        bound=len(gang.bound),
        waiting=len(gang.waiting),
        mode="Strict" if settings is None or settings.strict else "NonStrict",
        policy=(settings.policy if settings is not None else None) or defaults.policy,
        wait_seconds=defaults.wait_s if stated is None else stated,
        group=group.gangs,
        started=group.satisfied,
        told=_told(company, gang),
        last_failure=company.failures.get(group.id, ""),
        standings=tuple(
            _standing(explainer, gang, uid) for uid in sorted(gang.members, key=lambda uid: gang.members[uid].order)
        ),
    )


def _told(company: Company, gang: Gang) -> str:
    group = company.gangs.group_of(gang)
    settings = gang.settings
    if settings is None:
        return f"waits for PodGroup {gang.id}" if gang.labelled else "no member says how many must start together"
    if gang.collected < settings.minimum:
        held = f", {len(gang.held)} more held by a scheduling gate or being deleted" if gang.held else ""
        return f"waits for {settings.minimum - gang.collected} more of {settings.minimum} members{held}"
    if group.satisfied and len(gang.bound) >= settings.minimum:
        left = len(gang.pending)
        return "has started" if not left else f"has started; {left} more members wait for room on their own"
    if not group.ready:
        others = [other for other in group.gangs if not _complete(company, other)]
        return f"complete; waits for {', '.join(others)} of its group"
    if company.running(group) is not None:
        return "is being tried now"
    return "found no room for all" if group.id in company.failures else "complete; waits for its turn"


def _complete(company: Company, gang_id: str) -> bool:
    gang = company.gangs.gangs.get(gang_id)
    return gang is not None and gang.complete


def _standing(explainer: Explainer, gang: Gang, uid: str) -> Standing:
    member = gang.members[uid]
    if member.ended:
        return Standing(pod=member.key, state="ended", node=member.node)
    if uid in gang.bound:
        return Standing(pod=member.key, state="bound", node=gang.bound[uid])
    if uid in gang.waiting:
        return Standing(pod=member.key, state="waiting", node=gang.waiting[uid])
    queued = explainer.standing(uid)
    if queued is None:
        return Standing(pod=member.key, state="unknown", why="it is not in this scheduler's queue")
    names = {"active": "queued", "backoff": "backing off", "gated": "held", "unschedulable": "asleep"}
    why = queued.gate_reason if queued.part == "gated" else queued.last_failure
    return Standing(pod=member.key, state=names.get(queued.part, "being tried"), why=why, attempts=queued.attempts)
