"""The CPUs that one request may choose from, with what the choice needs to know of those already held."""

from __future__ import annotations

import msgspec

from koord.policy.topology.tally import NOTHING_HELD, Tally


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A pool of CPUs. The marked CPUs are held by pods that want their cores, or their NUMA nodes, exclusively."""

    available: int
    held: Tally = NOTHING_HELD
    pcpu_marked: int = 0
    numa_marked: int = 0
    max_ref_count: int = 1

    def of(self, cpus: int) -> Pool:
        """Return the same pool narrowed to these CPUs."""
        return Pool(
            available=cpus,
            held=self.held,
            pcpu_marked=self.pcpu_marked,
            numa_marked=self.numa_marked,
            max_ref_count=self.max_ref_count,
        )
