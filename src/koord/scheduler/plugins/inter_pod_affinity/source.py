"""This module reads amounts per row, and their changes since the last read."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from koord.scheduler.plugins.inter_pod_affinity.holders import Held
from koord.scheduler.state.tally import Question, Tallies, Tally

Amounts = tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]  # rows and how much there is


class Source(Protocol):
    def whole(self) -> Amounts:
        """Return all amounts now; `read_changes` continues from here."""

    def news(self) -> list[tuple[int, int]] | None:
        """Return (row, amount) of the changes since the last read; None when everything must be read again."""


class Matching:
    """The number of matching pods per row."""

    __slots__ = ("_position", "_question", "_tallies", "_tally")

    def __init__(self, question: Question, tallies: Tallies) -> None:
        self._question = question
        self._tallies = tallies
        self._tally: Tally = tallies.of(question)
        self._position = self._tally.position

    def whole(self) -> Amounts:
        if not self._tally.live:
            self._tally = self._tallies.of(self._question)
        self._position = self._tally.position
        rows = np.flatnonzero(self._tally.counts)
        return rows, self._tally.counts[rows]

    def news(self) -> list[tuple[int, int]] | None:
        tally = self._tally
        if not tally.live:
            return None
        if tally.position == self._position:
            return []
        log = tally.since(self._position)
        self._position = tally.position
        return None if log is None else [(entry, 1) if entry >= 0 else (~entry, -1) for entry in log]


class Holding:
    """The amount of an existing term per row."""

    __slots__ = ("_held", "_position")

    def __init__(self, held: Held) -> None:
        self._held = held
        self._position = held.position

    def whole(self) -> Amounts:
        held = self._held
        self._position = held.position
        return np.fromiter(held.rows, np.intp, len(held.rows)), np.fromiter(
            held.rows.values(), np.int64, len(held.rows)
        )

    def news(self) -> list[tuple[int, int]] | None:
        held = self._held
        if held.position == self._position:
            return []
        log = held.since(self._position)
        self._position = held.position
        return log
