"""Reservation schedules a Reservation like a pod that holds its room, and gives that room to its owners.

    before PreFilter   which reservations a pod may use, on which nodes          -> matched_reservations, restored_nodes
    Filter             on those nodes without the reserve pods: whether it fits, and into which reservation
    Score              the fuller the reservation would be, the better; a stated order goes first
    nominate           the reservation that it takes                              -> nominated_reservations
    Reserve            the part is assumed; PreBind annotates the pod; Bind of a Reservation writes its status

What reservations hold and what is left of them is in the cache. Plain pods see the cluster's sums and
nothing of this.
"""

from __future__ import annotations

from koord.api.config.scheduler.in_tree import DefaultPreemptionArgs
from koord.api.config.scheduler.reservation import ReservationArgs
from koord.api.protocol import L_DISABLE_PREEMPTIBLE, TRUE
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.default_preemption import DefaultPreemption
from koord.scheduler.state.pod import PodInfo


class ReservationPreemption(DefaultPreemption):
    """Preempts for reservations and their owners with the usual search; pods that forbid it by label are spared."""

    name = "Reservation"

    def __init__(self, args: ReservationArgs, handle: Handle) -> None:
        limits = DefaultPreemptionArgs(
            min_candidate_nodes_percentage=args.min_candidate_nodes_percentage,
            min_candidate_nodes_absolute=args.min_candidate_nodes_absolute,
        )
        super().__init__(limits, handle, may_evict=may_evict)


def may_evict(victim: PodInfo) -> bool:
    return victim.labels.get(L_DISABLE_PREEMPTIBLE) != TRUE
