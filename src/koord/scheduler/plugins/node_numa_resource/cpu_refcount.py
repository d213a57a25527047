"""Reference counts of the CPUs of a node as bit masks, and the pool that one request may choose from.

Adding a hundred CPUs is a few integer operations.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class CpuRefCounts(msgspec.Struct, frozen=True, gc=False):
    """Reference counts by level: `levels[k]` has the CPUs held more than k times, so each level is within the one
    before.
    """

    levels: tuple[int, ...] = ()

    @staticmethod
    def from_holdings(holdings: Iterable[int]) -> CpuRefCounts:
        tally = NO_REFERENCES
        for cpus in holdings:
            tally = tally.add(cpus)
        return tally

    @property
    def referenced(self) -> int:
        return self.levels[0] if self.levels else 0

    def at_least(self, times: int) -> int:
        """Return the CPUs held so many times or more; `times` is at least 1."""
        return self.levels[times - 1] if times <= len(self.levels) else 0

    def add(self, cpus: int) -> CpuRefCounts:
        if not cpus:
            return self
        levels = []
        for level in self.levels:
            levels.append(level | cpus)
            cpus &= level
        if cpus:
            levels.append(cpus)
        return CpuRefCounts(tuple(levels))

    def remove(self, cpus: int) -> CpuRefCounts:
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
        return CpuRefCounts(tuple(levels))

    def total_references(self, cpus: int) -> int:
        """Return the total number of references of these CPUs."""
        return sum((level & cpus).bit_count() for level in self.levels)

    def by_reference_count(self, below: int) -> tuple[int, ...]:
        """Return masks of the CPUs held 0 .. below-1 times, least first. ~0 stands for all CPUs."""
        edges = [-1, *(self.at_least(times) for times in range(1, below + 1))]
        return tuple(edges[k] & ~edges[k + 1] for k in range(below))


NO_REFERENCES = CpuRefCounts()


class CpuPool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool of CPUs. The marked CPUs are held by pods that want their cores, or their NUMA nodes, exclusively."""

    available: int
    refcounts: CpuRefCounts = NO_REFERENCES
    pcpu_exclusive: int = 0
    numa_exclusive: int = 0
    max_ref_count: int = 1

    def narrowed_to(self, cpus: int) -> CpuPool:
        """Return the same pool narrowed to these CPUs."""
        return CpuPool(
            available=cpus,
            refcounts=self.refcounts,
            pcpu_exclusive=self.pcpu_exclusive,
            numa_exclusive=self.numa_exclusive,
            max_ref_count=self.max_ref_count,
        )
