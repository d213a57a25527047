"""Define NUMA hints, the plugins that give them, and the NUMA nodes that a pod gets, which they read in Reserve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.verdict import Reject
from koord.values.bitmask import BitMask


class NumaTopologyHint(msgspec.Struct, frozen=True, gc=False):
    """One NUMA hint. `mask` None: any NUMA nodes will do. `unsatisfied`: none would."""

    mask: BitMask | None = None
    preferred: bool = False
    score: int = 0
    unsatisfied: bool = False


# By resource. None: no preference; an empty list: impossible.
NumaTopologyHints = Mapping[str, Sequence[NumaTopologyHint] | None]


@runtime_checkable
class NumaHintProvider(Protocol):
    """A plugin that knows which NUMA nodes could take its part of a pod (NUMATopologyHintProvider in Koordinator)."""

    name: str

    def numa_hints(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> NumaTopologyHints | Reject | None:
        """Returnby resource the sets of NUMA nodes that could provide what this plugin allocates; None: no opinion."""

    def numa_fits(self, cycle: CycleState, pod: PodInfo, node: NodeInfo, zones: BitMask | None) -> Reject | None:
        """Return a rejection if this plugin cannot allocate within these NUMA nodes; nothing is allocated yet."""


_AFFINITY_KEY = "NodeNUMAResource affinity"


def numa_affinities(cycle: CycleState) -> dict[str, BitMask | None]:
    """Return the NUMA nodes of pods by uid, set in Reserve of NodeNUMAResource; None for any of them."""
    found: dict[str, BitMask | None] = cycle.plugin_data.setdefault(_AFFINITY_KEY, {})
    return found
