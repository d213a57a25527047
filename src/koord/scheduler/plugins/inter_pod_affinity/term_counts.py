"""This module counts pods and terms per row, and maps rows to topology domains, for one class of pods.

ExistingTerms indexes the affinity terms of placed pods. A placement without pod affinity costs one look at its
template. A waiting pod finds its terms by label, and the result is cached with its labels until a term is added or
removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from koord.scheduler.cache.cluster_state import ClusterState, DomainIds, TopologyDomainIndex, TopologyDomains
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import LabelGroup, PodInfo
from koord.scheduler.cache.selector_counts import PodQuery, SelectorCount, SelectorCounts
from koord.scheduler.plugins.inter_pod_affinity.terms import AffinityTerm, NamespaceLabels, affinity_terms_of
from koord.values.selector import Operator


class NodeDomains:
    """The domain of each node for the topology keys of one class of pods, as of the last refresh."""

    __slots__ = ("_atlas", "_known")

    def __init__(self, atlas: TopologyDomainIndex, keys: Iterable[str]) -> None:
        self._atlas = atlas
        self._known: dict[str, TopologyDomains] = {key: atlas.domains_of(key) for key in keys}

    def refresh(self) -> bool:
        """Update the domains; return whether any changed."""
        moved = False
        for key, known in self._known.items():
            now = self._atlas.domains_of(key)
            if now is not known:
                self._known[key] = now
                moved = True
        return moved

    def add_key(self, key: str) -> None:
        """Add a topology key; a dry run may bring terms that no placed pod had before."""
        self._known[key] = self._atlas.domains_of(key)

    def sizes(self) -> dict[str, int]:
        return {key: known.size for key, known in self._known.items()}

    def ids(self, key: str) -> DomainIds:
        return self._known[key].ids

    def copy(self) -> NodeDomains:
        other = object.__new__(NodeDomains)
        other._atlas = self._atlas
        other._known = dict(self._known)
        return other


RowAmounts = tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]  # rows and how much there is


class RowCountSource(Protocol):
    def read_all(self) -> RowAmounts:
        """Return all amounts now; `read_changes` continues from here."""

    def read_changes(self) -> list[tuple[int, int]] | None:
        """Return (row, amount) of the changes since the last read; None when everything must be read again."""


class MatchingPodCounts:
    """The number of matching pods per row."""

    __slots__ = ("_position", "_question", "_tallies", "_tally")

    def __init__(self, question: PodQuery, tallies: SelectorCounts) -> None:
        self._question = question
        self._tallies = tallies
        self._tally: SelectorCount = tallies.count_of(question)
        self._position = self._tally.position

    def read_all(self) -> RowAmounts:
        if not self._tally.live:
            self._tally = self._tallies.count_of(self._question)
        self._position = self._tally.position
        rows = np.flatnonzero(self._tally.counts)
        return rows, self._tally.counts[rows]

    def read_changes(self) -> list[tuple[int, int]] | None:
        tally = self._tally
        if not tally.live:
            return None
        if tally.position == self._position:
            return []
        log = tally.since(self._position)
        self._position = tally.position
        return None if log is None else [(entry, 1) if entry >= 0 else (~entry, -1) for entry in log]


class ExistingTermCounts:
    """The amount of an existing term per row."""

    __slots__ = ("_held", "_position")

    def __init__(self, held: ExistingTerm) -> None:
        self._held = held
        self._position = held.position

    def read_all(self) -> RowAmounts:
        held = self._held
        self._position = held.position
        return np.fromiter(held.rows, np.intp, len(held.rows)), np.fromiter(
            held.rows.values(), np.int64, len(held.rows)
        )

    def read_changes(self) -> list[tuple[int, int]] | None:
        held = self._held
        if held.position == self._position:
            return []
        log = held.since(self._position)
        self._position = held.position
        return log


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


S = TypeVar("S", bound=tuple[Any, ...])  # a source of counts first, then what its counts mean


class CountsByDomain(Generic[S]):
    """The counts of several sources by topology domain, for one class of pods. `version` changes with them."""

    def __init__(
        self,
        sources: Sequence[S],
        keys: Iterable[str],
        atlas: TopologyDomainIndex,
        tallies: SelectorCounts,
        existing_terms: ExistingTerms,
    ) -> None:
        self.version = 0
        self._sources = sources
        self._tallies = tallies
        self._existing_terms = existing_terms
        self._node_domains = NodeDomains(atlas, keys)
        self._seen = (-1, -1)
        self._recount()

    def refresh(self) -> None:
        if self._node_domains.refresh():
            self._recount()
            return
        seen = (self._tallies.version, self._existing_terms.moves)
        if seen == self._seen:
            return
        self._seen = seen
        changed = False
        for entry in self._sources:
            news = entry[0].read_changes()
            if news is None:
                self._recount()
                return
            if news:
                changed |= self._apply_changes(entry, news)
        self.version += changed

    def _recount(self) -> None:
        self._sum_all()
        self._seen = (self._tallies.version, self._existing_terms.moves)
        self.version += 1

    def _sum_all(self) -> None:
        raise NotImplementedError

    def _apply_changes(self, entry: S, news: list[tuple[int, int]]) -> bool:
        """Count the changes of one source; return whether anything that is derived may have changed."""
        raise NotImplementedError
