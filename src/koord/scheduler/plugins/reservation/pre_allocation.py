"""PreAllocationCandidates finds the running pods that a Reservation may take over, by node.

It is made anew for every attempt: pods come and go, and few Reservations are of this kind.
"""

from __future__ import annotations

from collections.abc import Collection

from koord.api.annotations import pre_allocatable
from koord.api.annotations.codec import Malformed
from koord.api.annotations.reservation_allocated import parse as allocated_to
from koord.api.annotations.reservation_options import needs_pre_allocation
from koord.api.config.scheduler.reservation import PreAllocationConfig
from koord.api.koord_scheduling import PRE_ALLOCATION_CLUSTER, RESTRICTED, Reservation
from koord.api.protocol import A_RESERVATION_ALLOCATED
from koord.policy.reservation.holding import Holding
from koord.policy.reservation.lifecycle import reserved
from koord.policy.reservation.matching import Wish
from koord.policy.reservation.pre_allocation import CLUSTER_MODE_OFF, UNSUPPORTED, Candidate, Demand, choose, score
from koord.scheduler.plugins.reservation.interest import seeker_of
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo


def barred(reservation: Reservation, config: PreAllocationConfig | None) -> str:
    """Return why a Reservation cannot pre-allocate at all; "" when it can."""
    if reservation.spec.allocate_policy != RESTRICTED:
        return UNSUPPORTED
    if _cluster_wide(reservation) and not (config is not None and config.enable_cluster_mode):
        return CLUSTER_MODE_OFF
    return ""


class Over:
    """The candidates by node. The framework (`RestoredNodes`) sees nodes without the pods that would become owners."""

    exclusive = False

    def __init__(self, reservation: Reservation, state: ClusterState, config: PreAllocationConfig | None) -> None:
        policy = reservation.spec.pre_allocation_policy
        self.required = needs_pre_allocation(reservation.metadata.labels)
        self._wide = _cluster_wide(reservation)
        self._config = config or PreAllocationConfig()
        self._holding = Holding.of(reservation)
        self._state = state
        self.demand = Demand(
            reserved=reserved(reservation),
            several=policy is not None and policy.enable_multiple,
            ranked=self._wide,
            rather_none=self._config.prefer_no_pre_allocated_pods,
        )
        self.candidates: dict[str, list[Candidate]] = {}
        for pod in state.pods():
            rank = self._rank(pod)
            if rank is not None:
                found = Candidate(uid=pod.uid, requests=pod.requests, rank=rank)
                self.candidates.setdefault(pod.node_name, []).append(found)
        self._chosen: dict[str, tuple[Candidate, ...] | None] = {}

    def rows(self) -> Collection[int]:
        index = self._state.table.index
        return {index[name].row for name in self.candidates if self.chosen(index[name])}

    def holders(self, node: NodeInfo) -> tuple[PodInfo, ...]:
        return tuple(node.pods[c.uid] for c in self.chosen(node) or () if c.uid in node.pods)

    def chosen(self, node: NodeInfo) -> tuple[Candidate, ...] | None:
        """Return the pods to take over on the live node, whatever a dry run removed; None when they do not make it
        fit.
        """
        if node.name not in self._chosen:
            real = self._state.table.index[node.name]
            free = {name: n - real.requested.get(name, 0) for name, n in real.allocatable.items()}
            self._chosen[node.name] = choose(self.demand, self.candidates.get(node.name, ()), free)
        return self._chosen[node.name]

    def worth(self, node: NodeInfo) -> int:
        chosen = self.chosen(node) or ()
        if self.demand.several:
            return 100 // (1 + len(chosen))
        return score(self.demand.reserved, chosen[0].requests) if chosen else 0

    def _rank(self, pod: PodInfo) -> tuple[float, str] | None:
        """Return the rank of a candidate; None for a pod that is none."""
        if pod.reserve or pod.deleting or (A_RESERVATION_ALLOCATED in pod.annotations and not self._is_ours(pod)):
            return None
        if self._wide:
            if not pre_allocatable.is_candidate(pod.labels, self._config.cluster_label_key):
                return None
            key = self._config.cluster_priority_annotation_key
            return -pre_allocatable.parse_priority(pod.annotations, key), pod.uid
        if not any(o.selector is not None and o.selector.matches(pod.labels) for o in self._holding.owners):
            return None
        seeker = seeker_of(pod)
        if isinstance(seeker, Malformed):
            return None
        node = self._state.node(pod.node_name)
        found = Wish(seeker).match(self._holding, node.labels if node is not None else None)
        return (0, pod.uid) if found.matches else None

    def _is_ours(self, pod: PodInfo) -> bool:
        """Return whether the pod was annotated by an attempt that did not complete."""
        allocated = allocated_to(pod.annotations)
        return allocated is not None and not isinstance(allocated, Malformed) and allocated.uid == self._holding.uid


def _cluster_wide(reservation: Reservation) -> bool:
    policy = reservation.spec.pre_allocation_policy
    return policy is not None and policy.mode == PRE_ALLOCATION_CLUSTER
