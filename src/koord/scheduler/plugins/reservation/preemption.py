"""Room for reservations and their owners by evicting pods of lower priority, where the operator allows that."""

from __future__ import annotations

from koord.api.config.scheduler.in_tree import DefaultPreemptionArgs
from koord.api.config.scheduler.reservation import ReservationArgs
from koord.api.protocol import L_DISABLE_PREEMPTIBLE, TRUE
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.default_preemption import DefaultPreemption
from koord.scheduler.state.pod import PodInfo


class ReservationPreemption(DefaultPreemption):
    """The usual search; pods that say so are spared."""

    name = "Reservation"

    def __init__(self, args: ReservationArgs, handle: Handle) -> None:
        limits = DefaultPreemptionArgs(
            min_candidate_nodes_percentage=args.min_candidate_nodes_percentage,
            min_candidate_nodes_absolute=args.min_candidate_nodes_absolute,
        )
        super().__init__(limits, handle, may_evict=may_evict)


def may_evict(victim: PodInfo) -> bool:
    return victim.labels.get(L_DISABLE_PREEMPTIBLE) != TRUE
