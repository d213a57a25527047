"""This module holds what the plugin keeps for one class of pods, computed before PreFilter, and the
nomination of reservations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.reservation import MatchedReservation, writable_reservations
from koord.scheduler.framework.runtime import can_reserve
from koord.scheduler.plugins.reservation.fit import IgnoredResources, NodeFreeResources, fits_with_reservation
from koord.scheduler.plugins.reservation.matches import ReservationMatches
from koord.scheduler.plugins.reservation.nomination import nominate
from koord.scheduler.plugins.reservation.owner_matching import ReservationRequest
from koord.scheduler.plugins.reservation.reservation_index import ReservationIndex
from koord.scheduler.plugins.reservation.reservation_info import ReservationUsage


class OwnerCycleState:
    """The state of pods that may use reservations. Such a pod sees nodes without the reserve pods for it."""

    __slots__ = ("_ignored", "_register", "matches", "request")

    def __init__(
        self, matches: ReservationMatches, pod: PodInfo, register: ReservationIndex, ignored: IgnoredResources
    ) -> None:
        self.matches = matches
        self.request: ReservationRequest = msgspec.structs.replace(matches.request, requests=pod.requests)
        self._register = register
        self._ignored = ignored

    def matched_on(self, node: NodeInfo) -> tuple[ReservationUsage, ...]:
        """Return the matched reservations with only those owners that are on the node: in a dry run some are not."""
        found = self.matches.by_node.get(node.name, ())
        return tuple(self._register.limited_to_owners(usage, node.pods) for usage in found)

    def node_room(self, node: NodeInfo, matched: tuple[ReservationUsage, ...]) -> NodeFreeResources:
        return NodeFreeResources(
            node=node.name,
            allocatable=node.allocatable,
            used=node.requested,
            pods=len(node.pods),
            max_pods=node.allowed_pods,
            usages=matched,
        )

    def nominate_on(
        self, node: NodeInfo, also: Callable[[ReservationUsage], bool] | None = None
    ) -> ReservationUsage | None:
        """Return the reservation that such a pod takes on the node; `also` is a further check of each."""
        matched = self.matched_on(node)
        if not matched or self.request.ignores_reservations:
            return None
        room = self.node_room(node, matched)

        def suits(usage: ReservationUsage) -> bool:
            if any(fits_with_reservation(self.request, usage, room, ignored=self._ignored)):
                return False
            return also is None or also(usage)

        return nominate(self.request, matched, suits)


class ReservePodCycleState(msgspec.Struct, frozen=True):
    """The state of a reserve pod: whether its Reservation names a node, and its allocate policy."""

    node_name: str
    policy: str
    invalid: str = ""
    attempt: str = ""  # one that pre-allocates running pods is evaluated anew every time


ALLOCATING_PLUGINS = ("NodeNUMAResource", "DeviceShare")


def can_allocate_from(
    allocating_plugins: Sequence[Plugin], cycle: CycleState, pod: PodInfo, node: NodeInfo, reserved: MatchedReservation
) -> bool:
    """Return whether NodeNUMAResource and DeviceShare can allocate from the reservation.

    They run Reserve, which is undone at once: nothing else knows as exactly.
    """
    probe = cycle.fork()
    writable_reservations(probe).nominated[pod.uid] = reserved
    return can_reserve(allocating_plugins, probe, pod, node)
