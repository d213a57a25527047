"""Check whether a pod fits on a node and into a reservation there, with Koordinator's messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from koord.api.koord_scheduling import RESTRICTED
from koord.api.protocol import RESERVATION_ERROR_PREFIX
from koord.policy.reservation.room import NOTHING_IGNORED, Ignored, Room
from koord.policy.reservation.seeker import Counts, Seeker
from koord.policy.reservation.standing import Standing
from koord.values.resources import PODS

NO_MATCH = "node(s) no reservations match reservation affinity"
NO_ROOM = "node(s) no reservation(s) to meet the requirements"
WRONG_NODE = "node(s) didn't match the nodeName specified by reservation"
POLICY_CONFLICT = "node(s) reservation allocate policy conflict"
PREEMPTION_FAILED = "node(s) preemption failed due to insufficient resources"
ALREADY_ALLOCATED = "reservation has allocateOnce enabled and has already been allocated"


class Refused(msgspec.Struct, frozen=True):
    """The reasons for refusing a node. `resolvable`: preempting pods could help."""

    reasons: tuple[str, ...]
    resolvable: bool = True


class Preempted(msgspec.Struct, frozen=True):
    """What owners that are preempted in a dry run return to their reservation."""

    amounts: Counts = {}
    pods: int = 0


# What other plugins have against a reservation for this pod, NUMA and devices above all; nothing when it suits them.
Others = Callable[[Standing], Sequence[str]]


def _none(_: Standing) -> Sequence[str]:
    return ()


def fits_node(
    pod: Seeker, room: Room, owner_of: Standing | None = None, *, ignored: Ignored = NOTHING_IGNORED
) -> list[str]:
    """Return what the node is short of, sorted."""
    short: list[str] = []
    if room.slots(owner_of) < 1:
        short.append(PODS)
    if any(pod.requests.values()):
        free = room.free(owner_of)
        short += [
            name
            for name, amount in pod.requests.items()
            if amount > 0 and amount > free.get(name, 0) and not ignored.covers(name)
        ]
    return sorted(short)


def fits_reservation(pod: Seeker, standing: Standing, back: Preempted | None = None) -> list[str]:
    """Return what a Restricted reservation is short of by itself. Pods that named the reservation are told the
    details.
    """
    held, given = standing.holding, back or Preempted()
    detailed = bool(pod.named)
    reasons: list[str] = []
    most = held.reserved.get(PODS)
    if most is not None:
        used = standing.assigned - given.pods
        if used + 1 > most:
            detail = f", requested: 1, used: {used}, capacity: {most}" if detailed else ""
            reasons.append(f"{RESERVATION_ERROR_PREFIX}Too many pods{detail}")
    for name in held.restricted:
        requested = pod.requests.get(name, 0)
        if name == PODS or requested <= 0:
            continue
        capacity = held.reserved.get(name, 0) - held.inner.get(name, 0)
        used = max(0, standing.allocated.get(name, 0) - given.amounts.get(name, 0))
        if requested > capacity - used:
            detail = f", requested: {requested}, used: {used}, capacity: {capacity}" if detailed else ""
            reasons.append(f"{RESERVATION_ERROR_PREFIX}Insufficient {name}{detail}")
    return reasons


def fits(
    pod: Seeker,
    standing: Standing,
    room: Room,
    *,
    others: Others = _none,
    back: Preempted | None = None,
    ignored: Ignored = NOTHING_IGNORED,
) -> tuple[list[str], list[str]]:
    """Return what the node is short of, and the objections of the reservation and of other plugins. Both empty: it
    fits.
    """
    short = fits_node(pod, room, standing, ignored=ignored)
    against = fits_reservation(pod, standing, back) if standing.holding.policy == RESTRICTED else []
    return short, [*against, *others(standing)]


def concerns(pod: Seeker, standing: Standing) -> bool:
    """Return whether the reservation matters to the pod: it reserves something requested, or the pod demands a
    reservation.
    """
    if pod.affinity is None:
        return any(name in pod.requests for name in standing.holding.names)
    return not pod.named or pod.named == standing.holding.name


def filter_node(
    pod: Seeker,
    matched: Sequence[Standing],
    room: Room,
    *,
    others: Others = _none,
    backs: Callable[[Standing], Preempted | None] = lambda _: None,
    preempting: bool = False,
    ignored: Ignored = NOTHING_IGNORED,
) -> Refused | None:
    """Filter one node for the Reservation plugin; `matched` are the reservations there that the pod may use.

    Where there are none, other plugins judge the node; this one only looks during preemption dry runs.
    """
    if not matched:
        if pod.affinity is not None:
            return Refused((NO_MATCH,), resolvable=False)
        if preempting and fits_node(pod, room, ignored=ignored):
            return Refused((PREEMPTION_FAILED,))
        return None
    if pod.ignores:
        return None
    shortages: set[str] = set()
    against: list[str] = []
    for standing in matched:
        if not concerns(pod, standing):
            continue
        short, reasons = fits(pod, standing, room, others=others, back=backs(standing), ignored=ignored)
        if not short and not reasons:
            return None
        shortages.update(short)
        against += reasons
    by_node = _by_node(shortages)
    if pod.affinity is not None:
        return Refused((*by_node, *against) or (NO_ROOM,))
    if by_node:
        return Refused(by_node)
    alone = fits_node(pod, room, ignored=ignored)
    return Refused(_by_node(alone)) if alone else None


def filter_reserve_pod(pinned: str, policy: str, room: Room) -> Refused | None:
    """Filter one node for a new reservation with this policy; `pinned` is the node that it names."""
    if pinned and pinned != room.node:
        return Refused((WRONG_NODE,), resolvable=False)
    if any((s.holding.wire_policy == "") != (policy == "") for s in room.standings if s.is_matchable):
        return Refused((POLICY_CONFLICT,), resolvable=False)
    return None


def _by_node(short: Sequence[str] | set[str]) -> tuple[str, ...]:
    return tuple(sorted(f"Insufficient {name} by node" for name in short))
