"""This module decides the required rules for one class of pods, as a verdict on each domain of each topology
key.

    affinity    every key of the pod's affinity terms is on the node, and a pod that matches all terms is in its domain;
                or no such pod exists and the pod matches its own terms: then it may be the first of its group
    anti        no pod that matches one of its anti-affinity terms is in the node's domain
    existing    no pod whose anti-affinity term matches this pod is in the node's domain

The first of the three that a node violates is the reason. `version` changes when a verdict does.
"""

from __future__ import annotations

from typing import Final, Literal
from weakref import WeakKeyDictionary

import numpy as np

from koord.scheduler.framework.plugin import Codes
from koord.scheduler.framework.verdict import reject, unresolvable
from koord.scheduler.plugins.inter_pod_affinity.holders import Held, Holders
from koord.scheduler.plugins.inter_pod_affinity.places import Places
from koord.scheduler.plugins.inter_pod_affinity.source import Holding, Matching, Source
from koord.scheduler.plugins.inter_pod_affinity.wish import Wish
from koord.scheduler.state.domain import Atlas
from koord.scheduler.state.peers import Peers
from koord.scheduler.state.table import Ints, RowList, Rows
from koord.scheduler.state.tally import Tallies

AFFINITY: Final = 1
ANTI: Final = 2
EXISTING: Final = 3
_PASSES: Final = 4  # larger than any refusal, so that the least over all keys is the verdict
_MASK: Final = 3  # and 0 once the highest bit is cut off
VERDICTS: Final = {
    AFFINITY: unresolvable("node(s) didn't match pod affinity rules"),
    ANTI: reject("node(s) didn't match pod anti-affinity rules"),
    EXISTING: reject("node(s) didn't satisfy existing pods anti-affinity rules"),
}

# With more changed domains than this it is cheaper to judge all rows than to find theirs.
_FEW_DOMAINS: Final = 4

Rule = Literal["affinity", "anti", "existing"]


class Verdicts:
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

    def settle(self, *, opens: bool) -> None:
        verdicts = np.where(self.existing > 0, np.int32(EXISTING), np.int32(_PASSES))
        verdicts[self.anti > 0] = ANTI
        if self.needed and not opens:
            verdicts[self.affinity <= 0] = AFFINITY
        verdicts[0] = AFFINITY if self.needed else _PASSES
        self.verdicts = verdicts

    def settle_one(self, domain: int, *, opens: bool) -> bool:
        """Recompute the verdict of one domain; return whether it changed."""
        verdict = _PASSES
        if self.needed and not opens and self.affinity[domain] <= 0:
            verdict = AFFINITY
        elif self.anti[domain] > 0:
            verdict = ANTI
        elif self.existing[domain] > 0:
            verdict = EXISTING
        if self.verdicts[domain] == verdict:
            return False
        self.verdicts[domain] = verdict
        return True

    def copy(self) -> Verdicts:
        other = object.__new__(Verdicts)
        other.needed = self.needed
        other.affinity, other.anti, other.existing = self.affinity.copy(), self.anti.copy(), self.existing.copy()
        other.verdicts = self.verdicts.copy()
        return other


class Rules:
    """The required rules of one class of pods. A copy is a dry run: it follows `update_count` and no longer the
    cluster.
    """

    def __init__(
        self, wish: Wish | None, existing: tuple[Held, ...], atlas: Atlas, tallies: Tallies, holders: Holders
    ) -> None:
        self.wish = wish
        self.version = 0
        self._tallies = tallies
        self._holders = holders
        self._follows = True
        self._wanted: WeakKeyDictionary[Peers, tuple[bool, tuple[bool, ...]]] = WeakKeyDictionary()
        # Where counts come from, the rule that they belong to and the keys that they are summed up by.
        self._sources: list[tuple[Source, Rule, tuple[str, ...]]] = []
        keys: list[str] = []
        if wish is not None:
            keys += wish.affinity_keys
            if wish.affinity is not None:
                self._sources.append((Matching(wish.affinity, tallies), "affinity", wish.affinity_keys))
            for ask in wish.anti_affinity:
                keys.append(ask.topology_key)
                self._sources.append((Matching(ask.question, tallies), "anti", (ask.topology_key,)))
        for held in existing:
            keys.append(held.term.topology_key)
            self._sources.append((Holding(held), "existing", (held.term.topology_key,)))
        self._places = Places(atlas, keys)
        self._by_key: dict[str, Verdicts] = {}
        self._matched = 0  # pods in any domain that satisfy all affinity terms, once for each key
        self._seen = (-1, -1)
        self._moved: set[tuple[str, int]] | None = None  # domains whose verdict changed; None for any
        self._recount()

    @property
    def _opens(self) -> bool:
        return self.wish is not None and self.wish.is_first and not self._matched

    def _recount(self) -> None:
        places = self._places
        needed = self.wish.affinity_keys if self.wish is not None else ()
        self._by_key = {key: Verdicts(size, needed=key in needed) for key, size in places.sizes().items()}
        self._matched = 0
        for source, rule, keys in self._sources:
            rows, amounts = source.whole()
            for key in keys:
                counts = np.bincount(places.ids(key)[rows], weights=amounts, minlength=self._by_key[key].size)
                counts[0] = 0
                total: Ints = getattr(self._by_key[key], rule)
                total += counts.astype(np.int64)
                if rule == "affinity":
                    self._matched += int(counts.sum())
        for domains in self._by_key.values():
            domains.settle(opens=self._opens)
        self._seen = (self._tallies.moves, self._holders.moves)
        self._moved = None
        self.version += 1

    def refresh(self) -> None:
        if not self._follows:
            return
        if self._places.moved():
            self._recount()
            return
        seen = (self._tallies.moves, self._holders.moves)
        if seen == self._seen:
            return
        self._seen = seen
        changed = False
        for source, rule, keys in self._sources:
            news = source.news()
            if news is None:
                self._recount()
                return
            for row, by in news:
                for key in keys:
                    changed |= self.shift(rule, key, row, by)
        self.version += changed

    def shift(self, rule: Rule, key: str, row: int, by: int) -> bool:
        """Count one pod more or less under a rule; return whether a verdict changed."""
        if key not in self._by_key:
            self._places.learn(key)
            self._by_key[key] = Verdicts(self._places.sizes()[key], needed=False)
            self._by_key[key].settle(opens=False)
        domain = int(self._places.ids(key)[row])
        if not domain:
            return False
        domains = self._by_key[key]
        counts: Ints = getattr(domains, rule)
        counts[domain] += by
        if rule == "affinity":
            opened = self._opens
            self._matched += by
            if opened != self._opens:
                for each in self._by_key.values():
                    each.settle(opens=self._opens)
                self._moved = None
                return True
        changed = domains.settle_one(domain, opens=self._opens)
        if changed and self._moved is not None:
            self._moved.add((key, domain))
        return changed

    def wants(self, peers: Peers) -> tuple[bool, tuple[bool, ...]]:
        """Return whether such pods match the pod's affinity, and which of its anti-affinity terms they match."""
        known = self._wanted.get(peers)
        if known is None:
            wish = self.wish
            if wish is None:
                known = (False, ())
            else:
                near = wish.affinity is not None and wish.affinity.matches(peers)
                known = (near, tuple(ask.question.matches(peers) for ask in wish.anti_affinity))
            self._wanted[peers] = known
        return known

    def moved_rows(self) -> RowList | None:
        """Return the rows whose verdict may have changed since the last call; None for any."""
        moved, self._moved = self._moved, set()
        if moved is None or len(moved) > _FEW_DOMAINS:
            return None
        found = [np.flatnonzero(self._places.ids(key) == domain) for key, domain in moved]
        return found[0] if len(found) == 1 else np.concatenate((np.zeros(0, np.intp), *found))

    def code(self, row: int) -> int:
        ids = self._places.ids
        return min((int(v.verdicts[ids(key)[row]]) for key, v in self._by_key.items()), default=0) & _MASK

    def codes(self, rows: Rows) -> Codes:
        codes: Codes | None = None
        for key, domains in self._by_key.items():
            mine = domains.verdicts.take(self._places.ids(key)[rows])
            codes = mine if codes is None else np.minimum(codes, mine)
        assert codes is not None
        codes &= _MASK
        return codes

    def copy(self) -> Rules:
        other = object.__new__(Rules)
        other.__dict__.update(self.__dict__)
        other._follows = False
        other._moved = None  # a dry run is never asked for changed rows, and must not change those of the original
        other._places = self._places.copy()
        other._by_key = {key: domains.copy() for key, domains in self._by_key.items()}
        return other
