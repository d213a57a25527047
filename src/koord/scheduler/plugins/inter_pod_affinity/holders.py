"""ExistingTerms indexes the affinity terms of placed pods, and finds those that match a waiting pod.

A placement without pod affinity costs one look at its template. A waiting pod finds its terms by label, and
the result is cached with its labels until a term is added or removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from koord.scheduler.plugins.inter_pod_affinity.namespaces import Namespaces
from koord.scheduler.plugins.inter_pod_affinity.term import Term, terms_of
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.peers import Peers
from koord.scheduler.state.pod import PodInfo
from koord.values.selector import Operator

_LOG_LIMIT = 1 << 12
_PINNING = (Operator.EQUALS, Operator.DOUBLE_EQUALS, Operator.IN)

Purpose = Literal["keeps-away", "draws", "leans"]
KEEPS_AWAY: Final = "keeps-away"  # required anti-affinity: one for each holder
DRAWS: Final = "draws"  # required affinity, which prefers what it requires: one for each holder
LEANS: Final = "leans"  # preferred, either way: the holders' weights


class Held:
    """One term of one kind: its amount per row, and the log of changes."""

    __slots__ = ("_log", "_start", "holders", "purpose", "rows", "term")

    def __init__(self, purpose: Purpose, term: Term) -> None:
        self.purpose = purpose
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
        return f"Held({self.purpose}, {self.term.topology_key}, {self.term.selector}, {self.holders} holders)"


class Concern(msgspec.Struct, frozen=True):
    """The terms of placed pods that match one kind of waiting pod."""

    keeps_away: tuple[Held, ...] = ()
    draws: tuple[Held, ...] = ()
    leans: tuple[Held, ...] = ()


NO_CONCERN: Final = Concern()


class Holders:
    """The terms of all placed pods; get it with `state.derived(ExistingTerms)`."""

    def __init__(self, state: ClusterState) -> None:
        self._held: dict[tuple[Purpose, Term], Held] = {}
        self._by_pin: dict[tuple[str, str] | None, dict[Held, None]] = {}
        self.version = 0  # moves when a term comes or goes
        self.moves = 0  # counts every change
        state.listen(self._heard)

    def __len__(self) -> int:
        return len(self._held)

    def concern(self, peers: Peers, namespaces: Namespaces) -> Concern:
        """Return the terms that match pods with these labels."""
        if not self._held:
            return NO_CONCERN
        kept = peers.memo.get(self)
        if kept is not None and kept[0] == self.version and kept[1] == namespaces.version:
            known: Concern = kept[2]
            return known
        concern = self._found(peers, namespaces)
        peers.memo[self] = (self.version, namespaces.version, concern)
        return concern

    def _found(self, peers: Peers, namespaces: Namespaces) -> Concern:
        by_pin = self._by_pin
        candidates = dict(by_pin[None]) if None in by_pin else {}
        for pin in peers.labels.items():
            if pin in by_pin:
                candidates.update(by_pin[pin])
        if not candidates:
            return NO_CONCERN
        labels = namespaces.labels(peers.namespace)
        found = [held for held in candidates if held.term.matches(peers.namespace, peers.labels, labels)]
        if not found:
            return NO_CONCERN
        return Concern(*(tuple(h for h in found if h.purpose == p) for p in (KEEPS_AWAY, DRAWS, LEANS)))

    def _heard(self, what: Literal["add", "remove"], pod: PodInfo, node: NodeInfo) -> None:
        terms = terms_of(pod)
        if terms is None:
            return
        self.moves += 1
        sign = 1 if what == "add" else -1
        for term in terms.anti_affinity:
            self._count(KEEPS_AWAY, term, node.row, sign, sign)
        for term in terms.affinity:
            self._count(DRAWS, term, node.row, sign, sign)
        for each in terms.preferred:
            self._count(LEANS, each.term, node.row, sign, sign * each.weight)

    def _count(self, purpose: Purpose, term: Term, row: int, holders: int, by: int) -> None:
        key = (purpose, term)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = Held(purpose, term)
            for pin in _pins(term):
                self._by_pin.setdefault(pin, {})[held] = None
            self.version += 1
        held.holders += holders
        held.add(row, by)
        if not held.holders:
            del self._held[key]
            for pin in _pins(term):
                found = self._by_pin[pin]
                del found[held]
                if not found:
                    del self._by_pin[pin]
            self.version += 1


def _pins(term: Term) -> Iterable[tuple[str, str] | None]:
    """Return labels of which every matched pod has one; None in their place when the term names none."""
    for requirement in term.selector.requirements:
        if requirement.operator in _PINNING:
            return [(requirement.key, value) for value in requirement.values]
    return () if term.selector.nothing else (None,)
