"""Nominate one of several reservations of a node for a pod, and score reservations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from koord.policy.reservation.fit import ALREADY_ALLOCATED, Preempted
from koord.policy.reservation.seeker import Seeker
from koord.policy.reservation.standing import Standing

FULL = 100
PREFERRED = 1000  # of the node with the lowest order, before scores are brought to 100


def score(pod: Seeker, standing: Standing, back: Preempted | None = None) -> int:
    """Score a reservation: the fuller it would be, the better; a resource that would not suffice does not count."""
    held = standing.holding
    if not any(pod.requests.get(name, 0) for name in held.names):
        return 0
    given = back.amounts if back is not None else {}
    total = counted = 0
    for name in held.names:
        capacity = held.reserved.get(name, 0)
        if capacity <= 0:
            continue
        counted += 1
        wanted = pod.requests.get(name, 0) + max(0, standing.allocated.get(name, 0) - given.get(name, 0))
        if wanted <= capacity:
            total += FULL * wanted // capacity
    return total // counted if counted else 0


def taken(standing: Standing) -> str | None:
    """Return why a reservation cannot be nominated though it matched."""
    return ALREADY_ALLOCATED if standing.holding.once and standing.assigned else None


def nominate(
    pod: Seeker,
    matched: Sequence[Standing],
    suits: Callable[[Standing], bool],
    worth: Callable[[Standing], int],
    already: str = "",
) -> Standing | None:
    """Nominate a reservation. `already` is the uid nominated before; `suits` is the filter, asked of one
    reservation.

    A lower order goes first, then the higher score, then the name: the same choice after any order of events.
    """
    if not matched:
        return None
    if len(matched) == 1 and pod.affinity is not None:
        return matched[0]
    for standing in matched:
        if standing.holding.uid == already:
            return standing
    suitable = [standing for standing in matched if taken(standing) is None and suits(standing)]
    if len(suitable) < 2:
        return suitable[0] if suitable else None
    ordered = [standing for standing in suitable if standing.holding.order]
    if ordered:
        return min(ordered, key=lambda s: (s.holding.order, s.holding.name))
    return min(suitable, key=lambda s: (-worth(s), s.holding.name))


def preferred_node(nominated: Mapping[str, Standing]) -> str:
    """Return the node whose nominated reservation has the lowest order; "" when none has an order."""
    ordered = [(standing.holding.order, node) for node, standing in nominated.items() if standing.holding.order]
    return min(ordered)[1] if ordered else ""


def node_scores(pod: Seeker, nominated: Mapping[str, Standing | None]) -> dict[str, int]:
    """Score the nodes, scaled so that the best has 100."""
    preferred = preferred_node({node: standing for node, standing in nominated.items() if standing is not None})
    raw = {
        node: PREFERRED if node == preferred else score(pod, standing) if standing is not None else 0
        for node, standing in nominated.items()
    }
    best = max(raw.values(), default=0)
    return {node: FULL * value // best for node, value in raw.items()} if best else raw
