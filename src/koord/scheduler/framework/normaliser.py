"""Normalise raw scores to 0..100 by the largest one, optionally reversed, as Kubernetes does by default."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from koord.scheduler.framework.plugin import MAX_SCORE, Scores


class ScoreNormaliser:
    """Normalise one column; `span` is all that a node's normalised score depends on besides its own raw score."""

    def __init__(self, *, reverse: bool = False) -> None:
        self._reverse = reverse

    def span(self, raw: Scores, mask: npt.NDArray[np.bool_]) -> Hashable:
        return int(np.max(raw, where=mask, initial=0))

    def apply(self, raw: Scores, span: Hashable) -> Scores:
        assert isinstance(span, int)
        if span == 0:
            return np.full(len(raw), MAX_SCORE, np.int64) if self._reverse else raw
        scaled = raw * MAX_SCORE // span
        return MAX_SCORE - scaled if self._reverse else scaled
