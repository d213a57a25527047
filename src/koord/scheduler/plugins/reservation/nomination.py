"""Nominate one of several reservations of a node for a pod, and score reservations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from koord.scheduler.plugins.reservation.fit import ALREADY_ALLOCATED, PreemptedOwners
from koord.scheduler.plugins.reservation.owner_matching import ReservationRequest
from koord.scheduler.plugins.reservation.reservation_info import ReservationUsage

MAX_RESERVATION_SCORE = 100
PREFERRED_NODE_SCORE = 1000  # of the node with the lowest order, before scores are brought to 100


def score_reservation(pod: ReservationRequest, usage: ReservationUsage, back: PreemptedOwners | None = None) -> int:
    """Score a reservation: the fuller it would be, the better; a resource that would not suffice does not count."""
    held = usage.info
    if not any(pod.requests.get(name, 0) for name in held.resource_names):
        return 0
    given = back.amounts if back is not None else {}
    total = counted = 0
    for name in held.resource_names:
        capacity = held.reserved.get(name, 0)
        if capacity <= 0:
            continue
        counted += 1
        wanted = pod.requests.get(name, 0) + max(0, usage.allocated.get(name, 0) - given.get(name, 0))
        if wanted <= capacity:
            total += MAX_RESERVATION_SCORE * wanted // capacity
    return total // counted if counted else 0


def nomination_error(usage: ReservationUsage) -> str | None:
    """Return why a reservation cannot be nominated though it matched."""
    return ALREADY_ALLOCATED if usage.info.allocate_once and usage.owner_count else None


def nominate(
    pod: ReservationRequest,
    matched: Sequence[ReservationUsage],
    suits: Callable[[ReservationUsage], bool],
    worth: Callable[[ReservationUsage], int],
    already: str = "",
) -> ReservationUsage | None:
    """Nominate a reservation. `already` is the uid nominated before; `suits` is the filter, asked of one
    reservation.

    A lower order goes first, then the higher score, then the name: the same choice after any order of events.
    """
    if not matched:
        return None
    if len(matched) == 1 and pod.affinity is not None:
        return matched[0]
    for usage in matched:
        if usage.info.uid == already:
            return usage
    suitable = [usage for usage in matched if nomination_error(usage) is None and suits(usage)]
    if len(suitable) < 2:
        return suitable[0] if suitable else None
    ordered = [usage for usage in suitable if usage.info.order]
    if ordered:
        return min(ordered, key=lambda s: (s.info.order, s.info.name))
    return min(suitable, key=lambda s: (-worth(s), s.info.name))


def preferred_node(nominated: Mapping[str, ReservationUsage]) -> str:
    """Return the node whose nominated reservation has the lowest order; "" when none has an order."""
    ordered = [(usage.info.order, node) for node, usage in nominated.items() if usage.info.order]
    return min(ordered)[1] if ordered else ""


def node_scores(pod: ReservationRequest, nominated: Mapping[str, ReservationUsage | None]) -> dict[str, int]:
    """Score the nodes, scaled so that the best has 100."""
    preferred = preferred_node({node: usage for node, usage in nominated.items() if usage is not None})
    raw = {
        node: PREFERRED_NODE_SCORE if node == preferred else score_reservation(pod, usage) if usage is not None else 0
        for node, usage in nominated.items()
    }
    best = max(raw.values(), default=0)
    return {node: MAX_RESERVATION_SCORE * value // best for node, value in raw.items()} if best else raw
