"""Compute rates of monotonic counters. Whatever makes a difference meaningless gives no rate, and restarts the counter.

That is: the first read of a counter, a counter that went back (a container restarted), a clock that stood still or went
back, a gap so long that the mean over it says nothing, and a rate that the machine cannot reach.
"""

from __future__ import annotations

from collections.abc import Hashable


class CounterRates:
    """The last value of each counter by key."""

    def __init__(self, longest_gap_s: float) -> None:
        self._longest_gap_s = longest_gap_s
        self._seen: dict[Hashable, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def rate(self, key: Hashable, at_s: float, total: float, ceiling: float | None = None) -> float | None:
        """Return the units per second since the last call; None when there is no meaningful rate."""
        before = self._seen.get(key)
        self._seen[key] = (at_s, total)
        if before is None:
            return None
        gap_s, grown = at_s - before[0], total - before[1]
        if not 0 < gap_s <= self._longest_gap_s or grown < 0:
            return None
        found = grown / gap_s
        return None if ceiling is not None and found > ceiling else found

    def share(self, key: Hashable, at_s: float, part: float, whole: float) -> float | None:
        """Return the growth of `part` by that of `whole`, such as throttled periods of all periods; 0 of nothing."""
        parts = self.rate((key, "part"), at_s, part)
        wholes = self.rate((key, "whole"), at_s, whole)
        if parts is None or wholes is None:
            return None
        return min(parts / wholes, 1.0) if wholes > 0 else 0.0

    def expire(self, now_s: float) -> int:
        """Forget counters that were not read for the longest gap, or were read in the future; return how many."""
        quiet = [key for key, (at_s, _) in self._seen.items() if not 0 <= now_s - at_s <= self._longest_gap_s]
        for key in quiet:
            del self._seen[key]
        return len(quiet)
