"""Preempt for Reservations and their owners."""

from __future__ import annotations

from koord.api.annotations.pod_codecs import is_preemptible
from koord.api.config.scheduler.in_tree_args import DefaultPreemptionArgs
from koord.api.config.scheduler.koordinator_args import ReservationArgs
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.default_preemption import DefaultPreemption


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
    return is_preemptible(victim.labels)
