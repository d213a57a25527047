"""This module scores a node's nominated reservation, encoded so that nodes can be compared one by one.

    raw = (ORDERED - order) * 128 + score   where the nominated reservation states an order
    raw = score                             where it states none, 0 without a reservation

The node with the lowest order counts as 1000 when scores are scaled to 100: all others get a tenth of
theirs.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from koord.scheduler.framework.normaliser import ScoreNormaliser
from koord.scheduler.framework.plugin import Scores
from koord.scheduler.plugins.reservation.nomination import MAX_RESERVATION_SCORE, PREFERRED_NODE_SCORE
from koord.scheduler.plugins.reservation.reservation_info import ReservationUsage

_MAX_ORDER = 1 << 48
_SCORE_RANGE = 128


def encode_raw_score(usage: ReservationUsage, score: int) -> int:
    order = usage.info.order
    if not order:
        return score
    return (_MAX_ORDER - max(-_MAX_ORDER + 1, min(order, _MAX_ORDER - 1))) * _SCORE_RANGE + score


class ReservationScoreNormaliser(ScoreNormaliser):
    def span(self, raw: Scores, mask: npt.NDArray[np.bool_]) -> Hashable:
        return int(np.max(raw, where=mask, initial=0))

    def apply(self, raw: Scores, span: Hashable) -> Scores:
        assert isinstance(span, int)
        if span == 0:
            return raw
        if span < _SCORE_RANGE:
            return raw * MAX_RESERVATION_SCORE // span
        return np.where(
            raw == span, MAX_RESERVATION_SCORE, raw % _SCORE_RANGE * MAX_RESERVATION_SCORE // PREFERRED_NODE_SCORE
        )
