"""Nominate one of several reservations of a node for a pod, and score reservations and their nodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from koord.scheduler.framework.normaliser import ScoreNormaliser
from koord.scheduler.framework.plugin import Scores
from koord.scheduler.plugins.reservation.owner_matching import ReservationRequest
from koord.scheduler.plugins.reservation.reservation_info import ReservationUsage

MAX_RESERVATION_SCORE = 100
PREFERRED_NODE_SCORE = 1000  # of the node with the lowest order, before scores are brought to 100


def score_reservation(pod: ReservationRequest, usage: ReservationUsage) -> int:
    """Score a reservation: the fuller it would be, the better; a resource that would not suffice does not count."""
    info = usage.info
    if not any(pod.requests.get(name, 0) for name in info.resource_names):
        return 0
    total = counted = 0
    for name in info.resource_names:
        capacity = info.reserved.get(name, 0)
        if capacity <= 0:
            continue
        counted += 1
        wanted = pod.requests.get(name, 0) + usage.allocated.get(name, 0)
        if wanted <= capacity:
            total += MAX_RESERVATION_SCORE * wanted // capacity
    return total // counted if counted else 0


def nominate(
    pod: ReservationRequest, matched: Sequence[ReservationUsage], suits: Callable[[ReservationUsage], bool]
) -> ReservationUsage | None:
    """Nominate a reservation that `suits` the pod, the filter asked of one reservation.

    A lower order goes first, then the higher score, then the name: the same choice after any order of events.
    """
    if not matched:
        return None
    if len(matched) == 1 and pod.affinity is not None:
        return matched[0]
    suitable = [usage for usage in matched if not (usage.info.allocate_once and usage.owner_count) and suits(usage)]
    if len(suitable) < 2:
        return suitable[0] if suitable else None
    ordered = [usage for usage in suitable if usage.info.order]
    if ordered:
        return min(ordered, key=lambda s: (s.info.order, s.info.name))
    return min(suitable, key=lambda s: (-score_reservation(pod, s), s.info.name))


_MAX_ORDER = 1 << 48
_SCORE_RANGE = 128


def encode_raw_score(usage: ReservationUsage, score: int) -> int:
    """Encode a nominated reservation's score so that nodes can be compared one by one.

        raw = (_MAX_ORDER - order) * 128 + score   where the nominated reservation states an order
        raw = score                                where it states none, 0 without a reservation

    The node with the lowest order counts as 1000 when scores are scaled to 100: all others get a tenth of theirs.
    """
    order = usage.info.order
    if not order:
        return score
    return (_MAX_ORDER - max(-_MAX_ORDER + 1, min(order, _MAX_ORDER - 1))) * _SCORE_RANGE + score


class ReservationScoreNormaliser(ScoreNormaliser):
    def apply(self, raw: Scores, span: Hashable) -> Scores:
        assert isinstance(span, int)
        if span == 0:
            return raw
        if span < _SCORE_RANGE:
            return raw * MAX_RESERVATION_SCORE // span
        return np.where(
            raw == span, MAX_RESERVATION_SCORE, raw % _SCORE_RANGE * MAX_RESERVATION_SCORE // PREFERRED_NODE_SCORE
        )
