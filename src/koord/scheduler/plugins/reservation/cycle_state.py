"""This module holds the plugin's state for a class of pods, from before PreFilter, and its nominations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.reservation import MatchedReservation, writable_reservations
from koord.scheduler.framework.runtime import can_reserve
from koord.scheduler.plugins.reservation.cache import ReservationCache
from koord.scheduler.plugins.reservation.fit import IgnoredResources, NodeFreeResources, fits_with_reservation
from koord.scheduler.plugins.reservation.matches import ReservationMatches
from koord.scheduler.plugins.reservation.nomination import nominate
from koord.scheduler.plugins.reservation.owner_matching import ReservationRequest
from koord.scheduler.plugins.reservation.reservation_index import ReservationIndex
from koord.scheduler.plugins.reservation.reservation_info import ReservationOwnerPod, ReservationUsage

# The key under which a dry run keeps the pods that it added and the reservations that these would use, by uid.
_DRY_RUN_OWNERS = "Reservation owners in the dry run"
_NO_OWNERS: Mapping[str, ReservationOwnerPod] = {}


def dry_run_owners(cycle: CycleState) -> Mapping[str, ReservationOwnerPod]:
    found: Mapping[str, ReservationOwnerPod] = cycle.plugin_data.get(_DRY_RUN_OWNERS, _NO_OWNERS)
    return found


def set_dry_run_owner(cycle: CycleState, uid: str, part: ReservationOwnerPod | None) -> None:
    """Record what a pod that the dry run added uses; None: it was removed again. A fork of the cycle has its own."""
    owners: dict[str, ReservationOwnerPod] = cycle.plugin_data.setdefault(_DRY_RUN_OWNERS, {})
    if part is None:
        owners.pop(uid, None)
    else:
        owners[uid] = part


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

    def matched_on(self, cycle: CycleState, node: NodeInfo) -> tuple[ReservationUsage, ...]:
        """Return the matched reservations with the owners that are on the node: in a dry run others than in fact."""
        found, added = self.matches.by_node.get(node.name, ()), dry_run_owners(cycle).values()
        return tuple(self._register.with_owners(usage, node.pods, added) for usage in found)

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
        self, cycle: CycleState, node: NodeInfo, also: Callable[[ReservationUsage], bool] | None = None
    ) -> ReservationUsage | None:
        """Return the reservation that such a pod takes on the node; `also` is a further check of each."""
        matched = self.matched_on(cycle, node)
        if not matched or self.request.ignores_reservations:
            return None
        room = self.node_room(node, matched)

        def suits(usage: ReservationUsage) -> bool:
            if any(fits_with_reservation(self.request, usage, room, ignored=self._ignored)):
                return False
            return also is None or also(usage)

        return nominate(self.request, matched, suits)


def assume_in_dry_run(
    cycle: CycleState, cache: ReservationCache, other: PodInfo, node: NodeInfo, ignored: IgnoredResources
) -> ReservationOwnerPod | None:
    """Let a pod that a dry run added to this copy of a node use the reservation that it would be nominated."""
    if other.is_reserve_pod or cache.state.placed_pod(other.uid) is not None:
        return None
    matches = cache.matches_for(other)
    if matches is None or node.name not in matches.by_node:
        return None
    seen = node.copy()  # as that pod sees it
    for uid in (other.uid, *(reserved.uid for reserved in matches.reserved[node.name])):
        seen.remove(uid)
    nominated = OwnerCycleState(matches, other, cache.register, ignored).nominate_on(cycle, seen)
    if nominated is None:
        return None
    part = ReservationOwnerPod(uid=other.uid, reservation=nominated.info.uid, node=node.name, requests=other.requests)
    set_dry_run_owner(cycle, other.uid, part)
    return part


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
