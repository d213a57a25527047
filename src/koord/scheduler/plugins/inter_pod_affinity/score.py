"""This module scores domains for one class of pods by preferred terms, its own and those of placed pods.

    raw(node) = sum over topology keys of the weights in the node's domain

Required affinity of placed pods counts too, with hardPodAffinityWeight: what one pod requires its peers
prefer.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from koord.scheduler.framework.normaliser import Normaliser
from koord.scheduler.framework.plugin import MAX_SCORE, Scores
from koord.scheduler.plugins.inter_pod_affinity.holders import Holders
from koord.scheduler.plugins.inter_pod_affinity.places import Places
from koord.scheduler.plugins.inter_pod_affinity.source import Source
from koord.scheduler.state.domain import Atlas
from koord.scheduler.state.table import Ints, Rows
from koord.scheduler.state.tally import Tallies

_MOST = np.iinfo(np.int64).max
Leaning = tuple[Source, str, int]  # what is counted, by which node label, what one is worth


class Leanings:
    """The preferred terms of one class of pods. `version` changes when a score may have changed."""

    def __init__(self, leanings: tuple[Leaning, ...], atlas: Atlas, tallies: Tallies, holders: Holders) -> None:
        self.version = 0
        self._leanings = leanings
        self._tallies = tallies
        self._holders = holders
        self._places = Places(atlas, (key for _, key, _ in leanings))
        self._weights: dict[str, Ints] = {}
        self._seen = (-1, -1)
        self._recount()

    def _recount(self) -> None:
        places = self._places
        self._weights = {key: np.zeros(size, np.int64) for key, size in places.sizes().items()}
        for source, key, worth in self._leanings:
            rows, amounts = source.whole()
            sums = np.bincount(places.ids(key)[rows], weights=amounts, minlength=len(self._weights[key]))
            self._weights[key] += sums.astype(np.int64) * worth
        for weights in self._weights.values():
            weights[0] = 0
        self._seen = (self._tallies.moves, self._holders.moves)
        self.version += 1

    def refresh(self) -> None:
        if self._places.moved():
            self._recount()
            return
        seen = (self._tallies.moves, self._holders.moves)
        if seen == self._seen:
            return
        self._seen = seen
        changed = False
        for source, key, worth in self._leanings:
            news = source.news()
            if news is None:
                self._recount()
                return
            domains, weights = self._places.ids(key), self._weights[key]
            for row, by in news:
                if domain := domains[row]:
                    weights[domain] += by * worth
                    changed = True
        self.version += changed

    def score(self, row: int) -> int:
        return sum(int(weights[self._places.ids(key)[row]]) for key, weights in self._weights.items())

    def scores(self, rows: Rows) -> Scores:
        total: Scores | None = None
        for key, weights in self._weights.items():
            mine = weights.take(self._places.ids(key)[rows])
            total = mine if total is None else total + mine
        assert total is not None
        return total


class Range(Normaliser):
    """Scale scores so that the least gets 0 and the greatest 100; equal scores get 0."""

    def span(self, raw: Scores, mask: npt.NDArray[np.bool_]) -> Hashable:
        low, high = int(np.min(raw, where=mask, initial=_MOST)), int(np.max(raw, where=mask, initial=-_MOST))
        return (low, high) if low <= high else (0, 0)

    def apply(self, raw: Scores, span: Hashable) -> Scores:
        assert isinstance(span, tuple)
        low, high = span
        if high == low:
            return np.zeros(len(raw), np.int64)
        part: npt.NDArray[np.float64] = (raw - low) / (high - low)
        return (MAX_SCORE * part).astype(np.int64)
