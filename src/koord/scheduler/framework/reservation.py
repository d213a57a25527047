"""Define what plugins that allocate tell each other in a cycle: the reserved resources, which the Reservation plugin
writes; NUMA hints, the plugins that give them, and the NUMA nodes that a pod gets, which they read in Reserve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.verdict import Reject
from koord.values.bitmask import BitMask


class MatchedReservation(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a reservation on a node that the pod of this cycle may use.

    `reserve_pod` is placed on the node like any other pod, under the reservation's UID, as long as the reservation
    lasts. `owners` are the pods that use it now; they are placed on the node as well. What they use is not counted
    twice: the caches take an owner's part out of the reserve pod's.
    """

    uid: str
    name: str
    node_name: str
    policy: str  # "", Aligned or Restricted
    reserve_pod: PodInfo
    owners: tuple[str, ...] = ()
    allocate_once: bool = False


class CycleReservations:
    """Hold the reservations of one cycle; what is nominated is set before Reserve and removed after it."""

    __slots__ = ("matched", "nominated", "pre_allocated")

    def __init__(self, matched: Mapping[str, tuple[MatchedReservation, ...]] | None = None) -> None:
        self.matched = matched if matched is not None else {}  # by node: the reservations that such a pod may use
        self.nominated: dict[str, MatchedReservation] = {}  # by pod uid: the reservation that it is about to take
        # By uid of a reserve pod: the running pods that become its owners.
        self.pre_allocated: dict[str, tuple[str, ...]] = {}

    def copy(self) -> CycleReservations:
        other = CycleReservations(self.matched)
        other.nominated = dict(self.nominated)
        other.pre_allocated = dict(self.pre_allocated)
        return other


_KEY = "Reservation for allocating plugins"
_NONE = CycleReservations()


def reservations_of(cycle: CycleState) -> CycleReservations:
    """Return the reservations of a cycle, to read only: where there are none, all cycles share one empty object."""
    found: CycleReservations = cycle.plugin_data.get(_KEY, _NONE)
    return found


def writable_reservations(cycle: CycleState) -> CycleReservations:
    """Return the reservations of a cycle, made when there are none."""
    found: CycleReservations | None = cycle.plugin_data.get(_KEY)
    if found is None:
        found = cycle.plugin_data[_KEY] = CycleReservations()
    return found


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
