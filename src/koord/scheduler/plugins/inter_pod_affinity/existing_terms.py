"""ExistingTerms indexes the affinity terms of placed pods, and finds those that match a waiting pod.

A placement without pod affinity costs one look at its template. A waiting pod finds its terms by label, and
the result is cached with its labels until a term is added or removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import LabelGroup, PodInfo
from koord.scheduler.plugins.inter_pod_affinity.namespaces import NamespaceLabels
from koord.scheduler.plugins.inter_pod_affinity.terms import AffinityTerm, affinity_terms_of
from koord.values.selector import Operator

_LOG_LIMIT = 1 << 12
_EQUALITY_OPERATORS = (Operator.EQUALS, Operator.DOUBLE_EQUALS, Operator.IN)

TermKind = Literal["keeps-away", "draws", "leans"]
REQUIRED_ANTI_AFFINITY: Final = "keeps-away"  # required anti-affinity: one for each holder
REQUIRED_AFFINITY: Final = "draws"  # required affinity, which prefers what it requires: one for each holder
PREFERRED: Final = "leans"  # preferred, either way: the holders' weights


class ExistingTerm:
    """One term of one kind: its amount per row, and the log of changes."""

    __slots__ = ("_log", "_start", "holders", "kind", "rows", "term")

    def __init__(self, kind: TermKind, term: AffinityTerm) -> None:
        self.kind = kind
        self.term = term
        self.holders = 0
        self.rows: dict[int, int] = {}
        self._log: list[tuple[int, int]] = []
        self._start = 0

    @property
    def position(self) -> int:
        return self._start + len(self._log)

    def since(self, position: int) -> list[tuple[int, int]] | None:
        """Return (row, amount) of the changes after a position; None if they are forgotten."""
        return None if position < self._start else self._log[position - self._start :]

    def add(self, row: int, by: int) -> None:
        left = self.rows.get(row, 0) + by
        if left:
            self.rows[row] = left
        else:
            self.rows.pop(row, None)
        self._log.append((row, by))
        if len(self._log) > _LOG_LIMIT:
            self._start += len(self._log)
            self._log.clear()

    def __repr__(self) -> str:
        return f"Held({self.kind}, {self.term.topology_key}, {self.term.selector}, {self.holders} holders)"


class MatchingExistingTerms(msgspec.Struct, frozen=True):
    """The terms of placed pods that match one kind of waiting pod."""

    required_anti_affinity: tuple[ExistingTerm, ...] = ()
    required_affinity: tuple[ExistingTerm, ...] = ()
    preferred_terms: tuple[ExistingTerm, ...] = ()


NO_MATCHING_TERMS: Final = MatchingExistingTerms()


class ExistingTerms:
    """The terms of all placed pods; get it with `state.derived(ExistingTerms)`."""

    def __init__(self, state: ClusterState) -> None:
        self._terms: dict[tuple[TermKind, AffinityTerm], ExistingTerm] = {}
        self._by_label: dict[tuple[str, str] | None, dict[ExistingTerm, None]] = {}
        self.version = 0  # moves when a term comes or goes
        self.moves = 0  # counts every change
        state.add_placement_listener(self._on_placement)

    def __len__(self) -> int:
        return len(self._terms)

    def matching(self, peers: LabelGroup, namespaces: NamespaceLabels) -> MatchingExistingTerms:
        """Return the terms that match pods with these labels."""
        if not self._terms:
            return NO_MATCHING_TERMS
        kept = peers.memo.get(self)
        if kept is not None and kept[0] == self.version and kept[1] == namespaces.version:
            known: MatchingExistingTerms = kept[2]
            return known
        existing = self._find_matching(peers, namespaces)
        peers.memo[self] = (self.version, namespaces.version, existing)
        return existing

    def _find_matching(self, peers: LabelGroup, namespaces: NamespaceLabels) -> MatchingExistingTerms:
        by_pin = self._by_label
        candidates = dict(by_pin[None]) if None in by_pin else {}
        for pin in peers.labels.items():
            if pin in by_pin:
                candidates.update(by_pin[pin])
        if not candidates:
            return NO_MATCHING_TERMS
        labels = namespaces.labels(peers.namespace)
        found = [held for held in candidates if held.term.matches(peers.namespace, peers.labels, labels)]
        if not found:
            return NO_MATCHING_TERMS
        return MatchingExistingTerms(
            *(tuple(h for h in found if h.kind == p) for p in (REQUIRED_ANTI_AFFINITY, REQUIRED_AFFINITY, PREFERRED))
        )

    def _on_placement(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        terms = affinity_terms_of(pod)
        if terms is None:
            return
        self.moves += 1
        sign = 1 if what == "add" else -1
        for term in terms.anti_affinity:
            self._count(REQUIRED_ANTI_AFFINITY, term, node.row, sign, sign)
        for term in terms.affinity:
            self._count(REQUIRED_AFFINITY, term, node.row, sign, sign)
        for each in terms.preferred:
            self._count(PREFERRED, each.term, node.row, sign, sign * each.weight)

    def _count(self, kind: TermKind, term: AffinityTerm, row: int, holders: int, by: int) -> None:
        key = (kind, term)
        held = self._terms.get(key)
        if held is None:
            held = self._terms[key] = ExistingTerm(kind, term)
            for pin in _index_labels(term):
                self._by_label.setdefault(pin, {})[held] = None
            self.version += 1
        held.holders += holders
        held.add(row, by)
        if not held.holders:
            del self._terms[key]
            for pin in _index_labels(term):
                found = self._by_label[pin]
                del found[held]
                if not found:
                    del self._by_label[pin]
            self.version += 1


def _index_labels(term: AffinityTerm) -> Iterable[tuple[str, str] | None]:
    """Return labels of which every matched pod has one; None in their place when the term names none."""
    for requirement in term.selector.requirements:
        if requirement.operator in _EQUALITY_OPERATORS:
            return [(requirement.key, value) for value in requirement.values]
    return () if term.selector.matches_nothing else (None,)
