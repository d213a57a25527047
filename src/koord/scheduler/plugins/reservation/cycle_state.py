"""This module holds the plugin's state for a class of pods, from before PreFilter, and its nominations: one of several
reservations of a node is nominated for a pod, and reservations and their nodes are scored.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import msgspec
import numpy as np

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin, ScoreNormaliser, Scores
from koord.scheduler.framework.reservation import MatchedReservation, writable_reservations
from koord.scheduler.framework.runtime import can_reserve
from koord.scheduler.plugins.reservation.cache import ReservationCache
from koord.scheduler.plugins.reservation.fit import IgnoredResources, NodeFreeResources, fits_with_reservation
from koord.scheduler.plugins.reservation.matches import ReservationMatches
from koord.scheduler.plugins.reservation.owner_matching import ReservationRequest
from koord.scheduler.plugins.reservation.reservation_index import ReservationIndex
from koord.scheduler.plugins.reservation.reservation_info import ReservationOwnerPod, ReservationUsage

# The key under which a dry run keeps the pods that it added and the reservations that these would use, by uid.
_DRY_RUN_OWNERS = "Reservation owners in the dry run"
_NO_OWNERS: Mapping[str, ReservationOwnerPod] = {}

MAX_RESERVATION_SCORE = 100
PREFERRED_NODE_SCORE = 1000  # of the node with the lowest order, before scores are brought to 100


def score_reservation(pod: ReservationRequest, usage: ReservationUsage) -> int:
    """Score a reservation: the fuller it would be, the better; a resource that would not suffice does not count."""
    info = usage.info
    if not any(pod.requests.get(name, 0) for name in info.resource_names):
        return 0
    total = counted = 0
    for name in info.resource_names:
        capacity = info.reserved.get(name, 0)
        if capacity <= 0:
            continue
        counted += 1
        wanted = pod.requests.get(name, 0) + usage.allocated.get(name, 0)
        if wanted <= capacity:
            total += MAX_RESERVATION_SCORE * wanted // capacity
    return total // counted if counted else 0


def nominate(
    pod: ReservationRequest,
    matched: Sequence[ReservationUsage],
    suits: Callable[[ReservationUsage], bool],
    more_score: Callable[[ReservationUsage], int] | None = None,
) -> ReservationUsage | None:
    """Nominate a reservation that `suits` the pod, the filter asked of one reservation.

    `more_score` is what other plugins add to the score of a reservation. A lower order goes first, then the higher
    score, then the name: the same choice after any order of events.
    """
    if not matched:
        return None
    if len(matched) == 1 and pod.affinity is not None:
        return matched[0]
    suitable = [usage for usage in matched if not (usage.info.allocate_once and usage.owner_count) and suits(usage)]
    if len(suitable) < 2:
        return suitable[0] if suitable else None
    ordered = [usage for usage in suitable if usage.info.order]
    if ordered:
        return min(ordered, key=lambda s: (s.info.order, s.info.name))
    return min(suitable, key=lambda s: (-score_reservation(pod, s) - (more_score(s) if more_score else 0), s.info.name))


_MAX_ORDER = 1 << 48
_SCORE_RANGE = 128


def encode_raw_score(usage: ReservationUsage, score: int) -> int:
    """Encode a nominated reservation's score so that nodes can be compared one by one.

        raw = (_MAX_ORDER - order) * 128 + score   where the nominated reservation states an order
        raw = score                                where it states none, 0 without a reservation

    The node with the lowest order counts as 1000 when scores are scaled to 100: all others get a tenth of theirs.
    """
    order = usage.info.order
    if not order:
        return score
    return (_MAX_ORDER - max(-_MAX_ORDER + 1, min(order, _MAX_ORDER - 1))) * _SCORE_RANGE + score


class ReservationScoreNormaliser(ScoreNormaliser):
    def apply(self, raw: Scores, span: Hashable) -> Scores:
        assert isinstance(span, int)
        if span == 0:
            return raw
        if span < _SCORE_RANGE:
            return raw * MAX_RESERVATION_SCORE // span
        return np.where(
            raw == span, MAX_RESERVATION_SCORE, raw % _SCORE_RANGE * MAX_RESERVATION_SCORE // PREFERRED_NODE_SCORE
        )


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
        self,
        cycle: CycleState,
        node: NodeInfo,
        also: Callable[[ReservationUsage], bool] | None = None,
        more_score: Callable[[ReservationUsage], int] | None = None,
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

        return nominate(self.request, matched, suits, more_score)


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
