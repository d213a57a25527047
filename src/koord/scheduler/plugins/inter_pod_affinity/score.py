"""This module scores domains for one class of pods by preferred terms, its own and those of placed pods.

    raw(node) = sum over topology keys of the weights in the node's domain

Required affinity of placed pods counts too, with hardPodAffinityWeight: what one pod requires its peers
prefer.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import numpy.typing as npt

from koord.scheduler.cache.cluster_state import TopologyDomainIndex
from koord.scheduler.cache.node_table import Ints, Rows
from koord.scheduler.cache.selector_counts import SelectorCounts
from koord.scheduler.framework.normaliser import ScoreNormaliser
from koord.scheduler.framework.plugin import MAX_SCORE, Scores
from koord.scheduler.plugins.inter_pod_affinity.term_counts import CountsByDomain, ExistingTerms, RowCountSource

_MAX_INT64 = np.iinfo(np.int64).max
WeightedSource = tuple[RowCountSource, str, int]  # what is counted, by which node label, what one is worth


class AffinityScoreState(CountsByDomain[WeightedSource]):
    """The preferred terms of one class of pods. `version` changes when a score may have changed."""

    def __init__(
        self,
        weighted_sources: tuple[WeightedSource, ...],
        atlas: TopologyDomainIndex,
        tallies: SelectorCounts,
        existing_terms: ExistingTerms,
    ) -> None:
        self._weights: dict[str, Ints] = {}
        keys = (key for _, key, _ in weighted_sources)
        super().__init__(weighted_sources, keys, atlas, tallies, existing_terms)

    def _sum_all(self) -> None:
        node_domains = self._node_domains
        self._weights = {key: np.zeros(size, np.int64) for key, size in node_domains.sizes().items()}
        for source, key, weight in self._sources:
            rows, amounts = source.read_all()
            sums = np.bincount(node_domains.ids(key)[rows], weights=amounts, minlength=len(self._weights[key]))
            self._weights[key] += sums.astype(np.int64) * weight
        for weights in self._weights.values():
            weights[0] = 0

    def _apply_changes(self, entry: WeightedSource, news: list[tuple[int, int]]) -> bool:
        _, key, weight = entry
        domains, weights = self._node_domains.ids(key), self._weights[key]
        changed = False
        for row, by in news:
            if domain := domains[row]:
                weights[domain] += by * weight
                changed = True
        return changed

    def score(self, row: int) -> int:
        return sum(int(weights[self._node_domains.ids(key)[row]]) for key, weights in self._weights.items())

    def scores(self, rows: Rows) -> Scores:
        total: Scores | None = None
        for key, weights in self._weights.items():
            mine = weights.take(self._node_domains.ids(key)[rows])
            total = mine if total is None else total + mine
        assert total is not None
        return total


class AffinityScoreNormaliser(ScoreNormaliser):
    """Scale scores so that the least gets 0 and the greatest 100; equal scores get 0."""

    def span(self, raw: Scores, mask: npt.NDArray[np.bool_]) -> Hashable:
        low, high = int(np.min(raw, where=mask, initial=_MAX_INT64)), int(np.max(raw, where=mask, initial=-_MAX_INT64))
        return (low, high) if low <= high else (0, 0)

    def apply(self, raw: Scores, span: Hashable) -> Scores:
        assert isinstance(span, tuple)
        low, high = span
        if high == low:
            return np.zeros(len(raw), np.int64)
        part: npt.NDArray[np.float64] = (raw - low) / (high - low)
        return (MAX_SCORE * part).astype(np.int64)
