"""Reference counts of the CPUs of a node as bit masks, and the pool that one request may choose from.

Adding a hundred CPUs is a few integer operations.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Tally(msgspec.Struct, frozen=True, gc=False):
    """Reference counts by level: `levels[k]` has the CPUs held more than k times, so each level is within the one
    before.
    """

    levels: tuple[int, ...] = ()

    @staticmethod
    def of(holdings: Iterable[int]) -> Tally:
        tally = NOTHING_HELD
        for cpus in holdings:
            tally = tally.add(cpus)
        return tally

    @property
    def held(self) -> int:
        return self.levels[0] if self.levels else 0

    def at_least(self, times: int) -> int:
        """Return the CPUs held so many times or more; `times` is at least 1."""
        return self.levels[times - 1] if times <= len(self.levels) else 0

    def add(self, cpus: int) -> Tally:
        if not cpus:
            return self
        levels = []
        for level in self.levels:
            levels.append(level | cpus)
            cpus &= level
        if cpus:
            levels.append(cpus)
        return Tally(tuple(levels))

    def remove(self, cpus: int) -> Tally:
        """Drop one reference of each of the CPUs that is held; the others are unchanged."""
        if not cpus or not self.levels:
            return self
        levels = list(self.levels)
        for k in range(len(levels) - 1, -1, -1):
            gone = levels[k] & cpus
            levels[k] ^= gone
            cpus ^= gone
        while levels and not levels[-1]:
            levels.pop()
        return Tally(tuple(levels))

    def total(self, cpus: int) -> int:
        """Return the total number of references of these CPUs."""
        return sum((level & cpus).bit_count() for level in self.levels)

    def classes(self, below: int) -> tuple[int, ...]:
        """Return masks of the CPUs held 0 .. below-1 times, least first. ~0 stands for all CPUs."""
        edges = [-1, *(self.at_least(times) for times in range(1, below + 1))]
        return tuple(edges[k] & ~edges[k + 1] for k in range(below))


NOTHING_HELD = Tally()
