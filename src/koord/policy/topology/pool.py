"""The CPUs that one request may choose from, with what the choice needs to know of those already held."""

from __future__ import annotations

import msgspec

from koord.policy.topology.tally import NOTHING_HELD, Tally


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """`pcpu_marked` and `numa_marked` are held CPUs whose holder wants its cores, or its NUMA nodes, for itself."""

    available: int
    held: Tally = NOTHING_HELD
    pcpu_marked: int = 0
    numa_marked: int = 0
    max_ref_count: int = 1

    def of(self, cpus: int) -> Pool:
        """The same with a narrower choice."""
        return Pool(
            available=cpus,
            held=self.held,
            pcpu_marked=self.pcpu_marked,
            numa_marked=self.numa_marked,
            max_ref_count=self.max_ref_count,
        )
