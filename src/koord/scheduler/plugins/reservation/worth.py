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

from koord.policy.reservation.nomination import FULL, PREFERRED
from koord.policy.reservation.standing import Standing
from koord.scheduler.framework.normaliser import Normaliser
from koord.scheduler.framework.plugin import Scores

_ORDERED = 1 << 48
_PLACES = 128


def raw(standing: Standing, score: int) -> int:
    order = standing.holding.order
    if not order:
        return score
    return (_ORDERED - max(-_ORDERED + 1, min(order, _ORDERED - 1))) * _PLACES + score


class Worth(Normaliser):
    def span(self, raw: Scores, mask: npt.NDArray[np.bool_]) -> Hashable:
        return int(np.max(raw, where=mask, initial=0))

    def apply(self, raw: Scores, span: Hashable) -> Scores:
        assert isinstance(span, int)
        if span == 0:
            return raw
        if span < _PLACES:
            return raw * FULL // span
        return np.where(raw == span, FULL, raw % _PLACES * FULL // PREFERRED)
