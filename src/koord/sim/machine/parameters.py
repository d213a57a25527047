"""The numbers of the contention model that no file of a machine holds; docs/concepts/contention-model.md explains
them.
"""

from __future__ import annotations

import msgspec


class ContentionParameters(msgspec.Struct, frozen=True, kw_only=True):
    # A busy neighbour on all other CPUs costs an instruction this much more of a cycle: shared caches, memory, threads.
    cpi: float = 1.0
    cpi_of_neighbours: float = 0.4
    cycles_per_milli_s: float = 2.5e6  # of one milli-core in one second: 2.5 GHz
    # Below this share of free memory the kernel takes page cache back, first from those whose memory is not protected.
    low_watermark: float = 0.02
    # Above memory.high a group grows by this share of what it wants to.
    growth_above_high: float = 0.1
    # No CPU is so busy that waiting has no end within a step.
    busiest: float = 0.98


DEFAULT_PARAMETERS = ContentionParameters()
