"""Pre-allocation: choose the running pods of a node that become owners of a reservation about to be placed there.

Their resources are then the reservation's, so it may come to a node that has no room for it beside them. Candidates are
found anew for every attempt: pods come and go, and few Reservations are of this kind.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from koord.api.annotations import reservation_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.annotations.reservation_codecs import parse_reservation_allocated as allocated_to
from koord.api.annotations.reservation_codecs import requires_pre_allocation
from koord.api.config.scheduler.koordinator_args import PreAllocationConfig
from koord.api.koordinator.protocol import A_RESERVATION_ALLOCATED
from koord.api.koordinator.scheduling import PRE_ALLOCATION_CLUSTER, RESTRICTED, Reservation
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.plugins.reservation.cycle_state import MAX_RESERVATION_SCORE
from koord.scheduler.plugins.reservation.lifecycle import reserved_amounts
from koord.scheduler.plugins.reservation.matches import reservation_request_of
from koord.scheduler.plugins.reservation.matching import ReservationMatcher
from koord.scheduler.plugins.reservation.reservation_info import ReservationInfo
from koord.values.resources import Counts, add_amounts

UNSUPPORTED = "node(s) reservation pre allocation is unsupported with current attributes"
CLUSTER_MODE_OFF = "reservation requires cluster mode pre-allocation which is disabled"
NO_CANDIDATE = "node(s) no pod match reservation with pre allocation required"
NONE_FITS = "node(s) no pod(s) to meet the pre-allocation requirements"


class PreAllocationCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A running pod that may become an owner. The smaller `rank` is tried first."""

    uid: str
    requests: Counts
    rank: tuple[float, str] = (0.0, "")


class PreAllocationRequest(msgspec.Struct, frozen=True, kw_only=True):
    reserved: Counts
    allows_multiple: bool = False  # as many pods as it takes, and not only one
    ranked: bool = False  # by their rank; else those first that fill the reservation best
    prefers_free_capacity: bool = False  # no pod where the node has room without


def choose_pre_allocated(
    demand: PreAllocationRequest, candidates: Sequence[PreAllocationCandidate], free: Counts
) -> tuple[PreAllocationCandidate, ...] | None:
    """Choose the pods that become owners; `free` is unallocated. None when the reservation cannot come to the node."""
    fits_alone = fits_amounts(demand.reserved, free)
    if demand.prefers_free_capacity and fits_alone:
        return ()
    within = [c for c in candidates if fits_amounts(c.requests, demand.reserved, only=demand.reserved)]
    if demand.ranked:
        within.sort(key=lambda c: c.rank)
    else:
        within.sort(key=lambda c: (-score_pre_allocation(demand.reserved, c.requests), c.uid))
    if not demand.allows_multiple:
        return next(
            ((c,) for c in within if fits_amounts(demand.reserved, add_amounts(free, c.requests))),
            () if fits_alone else None,
        )
    chosen: list[PreAllocationCandidate] = []
    allocated: dict[str, int] = {}
    room = dict(free)
    for candidate in within:
        if chosen and fits_amounts(demand.reserved, room):
            break
        more = add_amounts(allocated, candidate.requests)
        if not fits_amounts(more, demand.reserved, only=demand.reserved):
            continue
        chosen.append(candidate)
        allocated, room = more, add_amounts(room, candidate.requests)
    if fits_amounts(demand.reserved, room):
        return tuple(chosen)
    return None


def score_pre_allocation(reserved: Counts, requests: Counts) -> int:
    """Return how much of the reservation the pod would use, averaged over what it reserves."""
    shares = [
        MAX_RESERVATION_SCORE * min(requests.get(name, 0), there) // there
        for name, there in reserved.items()
        if there > 0
    ]
    return sum(shares) // len(shares) if shares else 0


def fits_amounts(wanted: Counts, room: Counts, only: Counts | None = None) -> bool:
    """Return whether the amounts fit. `only` names the resources that count."""
    names = wanted if only is None else [name for name in wanted if name in only]
    return all(wanted[name] <= room.get(name, 0) for name in names)


def pre_allocation_error(reservation: Reservation, config: PreAllocationConfig | None) -> str:
    """Return why a Reservation cannot pre-allocate at all; "" when it can."""
    if reservation.spec.allocate_policy != RESTRICTED:
        return UNSUPPORTED
    if _is_cluster_mode(reservation) and not (config is not None and config.enable_cluster_mode):
        return CLUSTER_MODE_OFF
    return ""


class PreAllocationCandidates:
    """The candidates by node. The framework (`RestoredNodes`) sees nodes without the pods that would become owners."""

    exclusive = False

    def __init__(self, reservation: Reservation, state: ClusterState, config: PreAllocationConfig | None) -> None:
        policy = reservation.spec.pre_allocation_policy
        self.required = requires_pre_allocation(reservation.metadata.labels)
        self._is_cluster_mode = _is_cluster_mode(reservation)
        self._config = config or PreAllocationConfig()
        self._reservation_info = ReservationInfo.from_reservation(reservation)
        self._state = state
        self.demand = PreAllocationRequest(
            reserved=reserved_amounts(reservation),
            allows_multiple=policy is not None and policy.enable_multiple,
            ranked=self._is_cluster_mode,
            prefers_free_capacity=self._config.prefer_no_pre_allocated_pods,
        )
        self.candidates: dict[str, list[PreAllocationCandidate]] = {}
        for pod in state.pods():
            rank = self._rank(pod)
            if rank is not None:
                found = PreAllocationCandidate(uid=pod.uid, requests=pod.requests, rank=rank)
                self.candidates.setdefault(pod.node_name, []).append(found)
        self._chosen: dict[str, tuple[PreAllocationCandidate, ...] | None] = {}

    def rows(self) -> Collection[int]:
        index = self._state.table.index
        return {index[name].row for name in self.candidates if self.chosen_pods(index[name])}

    def holders(self, node: NodeInfo) -> tuple[PodInfo, ...]:
        return tuple(node.pods[c.uid] for c in self.chosen_pods(node) or () if c.uid in node.pods)

    def chosen_pods(self, node: NodeInfo) -> tuple[PreAllocationCandidate, ...] | None:
        """Return the pods to take over on the live node, whatever a dry run removed; None if they do not make room."""
        if node.name not in self._chosen:
            real = self._state.table.index[node.name]
            free = {name: n - real.requested.get(name, 0) for name, n in real.allocatable.items()}
            self._chosen[node.name] = choose_pre_allocated(self.demand, self.candidates.get(node.name, ()), free)
        return self._chosen[node.name]

    def score(self, node: NodeInfo) -> int:
        chosen = self.chosen_pods(node) or ()
        if self.demand.allows_multiple:
            return 100 // (1 + len(chosen))
        return score_pre_allocation(self.demand.reserved, chosen[0].requests) if chosen else 0

    def _rank(self, pod: PodInfo) -> tuple[float, str] | None:
        """Return the rank of a candidate; None for a pod that is none."""
        if (
            pod.is_reserve_pod
            or pod.deleting
            or (A_RESERVATION_ALLOCATED in pod.annotations and not self._is_ours(pod))
            or not self._reservation_info.shares_resource(pod.requests)
        ):
            return None
        if self._is_cluster_mode:
            if not reservation_codecs.is_pre_allocatable(pod.labels, self._config.cluster_label_key):
                return None
            key = self._config.cluster_priority_annotation_key
            return -reservation_codecs.parse_pre_allocatable_priority(pod.annotations, key), pod.uid
        if not any(o.selector is not None and o.selector.matches(pod.labels) for o in self._reservation_info.owners):
            return None
        request = reservation_request_of(pod)
        if isinstance(request, MalformedAnnotation):
            return None
        node = self._state.node(pod.node_name)
        found = ReservationMatcher(request).match(self._reservation_info, node.labels if node is not None else None)
        return (0, pod.uid) if found.matches else None

    def _is_ours(self, pod: PodInfo) -> bool:
        """Return whether the pod was annotated by an attempt that did not complete."""
        allocated = allocated_to(pod.annotations)
        return (
            allocated is not None
            and not isinstance(allocated, MalformedAnnotation)
            and allocated.uid == self._reservation_info.uid
        )


def _is_cluster_mode(reservation: Reservation) -> bool:
    policy = reservation.spec.pre_allocation_policy
    return policy is not None and policy.mode == PRE_ALLOCATION_CLUSTER
