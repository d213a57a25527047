"""This module counts pods and terms per row, and maps rows to topology domains, for one class of pods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from koord.scheduler.cache.selector_counts import PodQuery, SelectorCount, SelectorCounts
from koord.scheduler.cache.topology_domains import DomainIds, TopologyDomainIndex, TopologyDomains
from koord.scheduler.plugins.inter_pod_affinity.existing_terms import ExistingTerm


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
