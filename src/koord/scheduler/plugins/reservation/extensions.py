"""Ask the other plugins of a profile about single reservations: whether a pod may use one, and how good it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.profile import SchedulerProfile
from koord.scheduler.framework.reservation import reservations_of
from koord.scheduler.framework.runtime import (
    PluginRejection,
    run_filter_reservation,
    run_score_reservation,
)
from koord.scheduler.framework.verdict import Fault
from koord.scheduler.plugins.reservation.reservation_info import ReservationUsage


class ReservationExtensions:
    """The plugins of a profile with FilterReservation, FilterNominateReservation or ScoreReservation."""

    def __init__(self, profile: SchedulerProfile) -> None:
        self._profile = profile
        self._filters = bool(profile.plugins_at(Plugin.filter_reservation))
        self._nominates = bool(profile.plugins_at(Plugin.filter_nominated_reservation))
        self._scores = bool(profile.plugins_at(Plugin.score_reservation))

    def question(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> ReservationQuestion | None:
        """Return who answers for this pod and node; None where no plugin has a say."""
        if not (self._filters or self._nominates or self._scores):
            return None
        return ReservationQuestion(self._profile, cycle, pod, node, scores=self._scores)


class ReservationQuestion:
    """Ask about the reservations of one node; `fault` is what a plugin said instead of an answer."""

    def __init__(
        self, profile: SchedulerProfile, cycle: CycleState, pod: PodInfo, node: NodeInfo, *, scores: bool
    ) -> None:
        self._profile, self._cycle, self._pod, self._node = profile, cycle, pod, node
        self._matched = {reserved.uid: reserved for reserved in reservations_of(cycle).matched.get(node.name, ())}
        self.fault: Fault | None = None
        self.score: Callable[[ReservationUsage], int] | None = self._score if scores else None

    def objections(self, usage: ReservationUsage) -> Sequence[str]:
        """Return why the pod may not use the reservation."""
        return self._filter(usage, nominating=False)

    def suits(self, usage: ReservationUsage) -> bool:
        """Return whether the reservation may be nominated for the pod."""
        return not self._filter(usage, nominating=True)

    def _filter(self, usage: ReservationUsage, *, nominating: bool) -> Sequence[str]:
        reserved = self._matched.get(usage.info.uid)
        if reserved is None:
            return ()
        return self._reasons(
            run_filter_reservation(self._profile, self._cycle, self._pod, reserved, self._node, nominating=nominating)
        )

    def _score(self, usage: ReservationUsage) -> int:
        reserved = self._matched.get(usage.info.uid)
        if reserved is None:
            return 0
        return run_score_reservation(self._profile, self._cycle, self._pod, reserved, self._node)

    def _reasons(self, rejection: PluginRejection | None) -> Sequence[str]:
        if rejection is None:
            return ()
        if isinstance(rejection.answer, Fault):
            self.fault = self.fault or Fault(f"{rejection.plugin}: {rejection.answer.message}")
            return (rejection.answer.message,)
        return rejection.answer.reasons
