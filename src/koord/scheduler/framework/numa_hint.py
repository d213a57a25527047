from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from koord.values.bitmask import BitMask


class NumaTopologyHint(msgspec.Struct, frozen=True, gc=False):
    """One NUMA hint. `mask` None: any NUMA nodes will do. `unsatisfied`: none would."""

    mask: BitMask | None = None
    preferred: bool = False
    score: int = 0
    unsatisfied: bool = False


# By resource. None: no preference; an empty list: impossible.
NumaTopologyHints = Mapping[str, Sequence[NumaTopologyHint] | None]
