"""This module decides the required rules for one class of pods, as a verdict on each domain of each topology
key, and scores domains by preferred terms.

    affinity    every key of the pod's affinity terms is on the node, and a pod that matches all terms is in its domain;
                or no such pod exists and the pod matches its own terms: then it may be the first of its group
    anti        no pod that matches one of its anti-affinity terms is in the node's domain
    existing    no pod whose anti-affinity term matches this pod is in the node's domain

The first of the three that a node violates is the reason. `version` changes when a verdict does.

    raw(node) = sum over topology keys of the weights in the node's domain

Required affinity of placed pods counts in the score too, with hardPodAffinityWeight: what one pod requires its peers
prefer.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Literal
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from koord.scheduler.cache.cluster_state import TopologyDomainIndex
from koord.scheduler.cache.node_table import Ints, RowList, Rows
from koord.scheduler.cache.pod_info import LabelGroup
from koord.scheduler.cache.selector_counts import SelectorCounts
from koord.scheduler.framework.plugin import MAX_SCORE, Codes, ScoreNormaliser, Scores
from koord.scheduler.framework.verdict import reject, unresolvable
from koord.scheduler.plugins.inter_pod_affinity.term_counts import (
    CountsByDomain,
    ExistingTerm,
    ExistingTermCounts,
    ExistingTerms,
    MatchingPodCounts,
    RowCountSource,
)
from koord.scheduler.plugins.inter_pod_affinity.terms import IncomingTerms

AFFINITY: Final = 1
ANTI_AFFINITY: Final = 2
EXISTING_ANTI_AFFINITY: Final = 3
_PASSES: Final = 4  # larger than any refusal, so that the least over all keys is the verdict
_MASK: Final = 3  # and 0 once the highest bit is cut off
REJECTIONS: Final = {
    AFFINITY: unresolvable("node(s) didn't match pod affinity rules"),
    ANTI_AFFINITY: reject("node(s) didn't match pod anti-affinity rules"),
    EXISTING_ANTI_AFFINITY: reject("node(s) didn't satisfy existing pods anti-affinity rules"),
}

# With more changed domains than this it is cheaper to judge all rows than to find theirs.
_MAX_CHANGED_DOMAINS: Final = 4

AffinityRule = Literal["affinity", "anti", "existing"]


class DomainVerdicts:
    """The counts and verdicts of one topology key by domain. Domain 0 stands for nodes without the label."""

    __slots__ = ("affinity", "anti", "existing", "needed", "verdicts")

    def __init__(self, size: int, *, needed: bool) -> None:
        self.needed = needed  # an affinity term names this key
        self.affinity: Ints = np.zeros(size, np.int64)
        self.anti: Ints = np.zeros(size, np.int64)
        self.existing: Ints = np.zeros(size, np.int64)
        self.verdicts: Codes = np.zeros(size, np.int32)

    @property
    def size(self) -> int:
        return len(self.verdicts)

    def recompute(self, *, may_open_group: bool) -> None:
        verdicts = np.where(self.existing > 0, np.int32(EXISTING_ANTI_AFFINITY), np.int32(_PASSES))
        verdicts[self.anti > 0] = ANTI_AFFINITY
        if self.needed and not may_open_group:
            verdicts[self.affinity <= 0] = AFFINITY
        verdicts[0] = AFFINITY if self.needed else _PASSES
        self.verdicts = verdicts

    def recompute_domain(self, domain: int, *, may_open_group: bool) -> bool:
        """Recompute the verdict of one domain; return whether it changed."""
        verdict = _PASSES
        if self.needed and not may_open_group and self.affinity[domain] <= 0:
            verdict = AFFINITY
        elif self.anti[domain] > 0:
            verdict = ANTI_AFFINITY
        elif self.existing[domain] > 0:
            verdict = EXISTING_ANTI_AFFINITY
        if self.verdicts[domain] == verdict:
            return False
        self.verdicts[domain] = verdict
        return True

    def copy(self) -> DomainVerdicts:
        other = object.__new__(DomainVerdicts)
        other.needed = self.needed
        other.affinity, other.anti, other.existing = self.affinity.copy(), self.anti.copy(), self.existing.copy()
        other.verdicts = self.verdicts.copy()
        return other


# Where counts come from, the rule that they belong to and the keys that they are summed up by.
RuleSource = tuple[RowCountSource, AffinityRule, tuple[str, ...]]


class AffinityFilterState(CountsByDomain[RuleSource]):
    """The required rules of one class of pods. A copy is a dry run: it follows `update_count`, not the cluster."""

    def __init__(
        self,
        incoming: IncomingTerms | None,
        existing: tuple[ExistingTerm, ...],
        atlas: TopologyDomainIndex,
        tallies: SelectorCounts,
        existing_terms: ExistingTerms,
    ) -> None:
        self.incoming = incoming
        self._is_live = True
        self._matched_terms: WeakKeyDictionary[LabelGroup, tuple[bool, tuple[bool, ...]]] = WeakKeyDictionary()
        self._by_key: dict[str, DomainVerdicts] = {}
        self._matched = 0  # pods in any domain that satisfy all affinity terms, once for each key
        self._changed_domains: set[tuple[str, int]] | None = None  # domains whose verdict changed; None for any
        sources: list[RuleSource] = []
        if incoming is not None and incoming.affinity is not None:
            sources.append((MatchingPodCounts(incoming.affinity, tallies), "affinity", incoming.affinity_keys))
        apart = incoming.anti_affinity if incoming is not None else ()
        sources += ((MatchingPodCounts(query.question, tallies), "anti", (query.topology_key,)) for query in apart)
        sources += ((ExistingTermCounts(held), "existing", (held.term.topology_key,)) for held in existing)
        keys = (key for _, _, keys in sources for key in keys)
        super().__init__(sources, keys, atlas, tallies, existing_terms)

    @property
    def _may_open_group(self) -> bool:
        return self.incoming is not None and self.incoming.matches_itself and not self._matched

    def _sum_all(self) -> None:
        node_domains = self._node_domains
        needed = self.incoming.affinity_keys if self.incoming is not None else ()
        self._by_key = {key: DomainVerdicts(size, needed=key in needed) for key, size in node_domains.sizes().items()}
        self._matched = 0
        for source, rule, keys in self._sources:
            rows, amounts = source.read_all()
            for key in keys:
                counts = np.bincount(node_domains.ids(key)[rows], weights=amounts, minlength=self._by_key[key].size)
                counts[0] = 0
                total: Ints = getattr(self._by_key[key], rule)
                total += counts.astype(np.int64)
                if rule == "affinity":
                    self._matched += int(counts.sum())
        for domains in self._by_key.values():
            domains.recompute(may_open_group=self._may_open_group)
        self._changed_domains = None

    def refresh(self) -> None:
        if self._is_live:
            super().refresh()

    def _apply_changes(self, entry: RuleSource, news: list[tuple[int, int]]) -> bool:
        _, rule, keys = entry
        changed = False
        for row, by in news:
            for key in keys:
                changed |= self.update_count(rule, key, row, by)
        return changed

    def update_count(self, rule: AffinityRule, key: str, row: int, by: int) -> bool:
        """Count one pod more or less under a rule; return whether a verdict changed."""
        if key not in self._by_key:
            self._node_domains.add_key(key)
            self._by_key[key] = DomainVerdicts(self._node_domains.sizes()[key], needed=False)
            self._by_key[key].recompute(may_open_group=False)
        domain = int(self._node_domains.ids(key)[row])
        if not domain:
            return False
        domains = self._by_key[key]
        counts: Ints = getattr(domains, rule)
        counts[domain] += by
        if rule == "affinity":
            opened = self._may_open_group
            self._matched += by
            if opened != self._may_open_group:
                for each in self._by_key.values():
                    each.recompute(may_open_group=self._may_open_group)
                self._changed_domains = None
                return True
        changed = domains.recompute_domain(domain, may_open_group=self._may_open_group)
        if changed and self._changed_domains is not None:
            self._changed_domains.add((key, domain))
        return changed

    def matched_terms(self, peers: LabelGroup) -> tuple[bool, tuple[bool, ...]]:
        """Return whether such pods match the pod's affinity, and which of its anti-affinity terms they match."""
        known = self._matched_terms.get(peers)
        if known is None:
            incoming = self.incoming
            if incoming is None:
                known = (False, ())
            else:
                near = incoming.affinity is not None and incoming.affinity.matches(peers)
                known = (near, tuple(query.question.matches(peers) for query in incoming.anti_affinity))
            self._matched_terms[peers] = known
        return known

    def moved_rows(self) -> RowList | None:
        """Return the rows whose verdict may have changed since the last call; None for any."""
        moved, self._changed_domains = self._changed_domains, set()
        if moved is None or len(moved) > _MAX_CHANGED_DOMAINS:
            return None
        found = [np.flatnonzero(self._node_domains.ids(key) == domain) for key, domain in moved]
        return found[0] if len(found) == 1 else np.concatenate((np.zeros(0, np.intp), *found))

    def code(self, row: int) -> int:
        ids = self._node_domains.ids
        return min((int(v.verdicts[ids(key)[row]]) for key, v in self._by_key.items()), default=0) & _MASK

    def codes(self, rows: Rows) -> Codes:
        codes: Codes | None = None
        for key, domains in self._by_key.items():
            mine = domains.verdicts.take(self._node_domains.ids(key)[rows])
            codes = mine if codes is None else np.minimum(codes, mine)
        assert codes is not None
        codes &= _MASK
        return codes

    def copy(self) -> AffinityFilterState:
        other = object.__new__(AffinityFilterState)
        other.__dict__.update(self.__dict__)
        other._is_live = False
        other._changed_domains = (
            None  # a dry run is never asked for changed rows, and must not change those of the original
        )
        other._node_domains = self._node_domains.copy()
        other._by_key = {key: domains.copy() for key, domains in self._by_key.items()}
        return other


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
