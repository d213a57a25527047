"""Whom a pod may push out, and whom rather than whom. Kinds of preemption differ in this and share everything else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from koord.scheduler.state.pod import PodInfo

_NOT_STARTED = datetime.max.replace(tzinfo=UTC)

Importance = tuple[int, datetime]


class Rules:
    """Kubernetes' own: pods of lower priority, except those that `may_evict` protects.

    Another kind of preemption overrides `may_take` and, if need be, `importance`.
    """

    def __init__(self, may_evict: Callable[[PodInfo], bool] | None = None) -> None:
        self._may_evict = may_evict

    def may_take(self, pod: PodInfo, victim: PodInfo) -> bool:
        return victim.priority < pod.priority and (self._may_evict is None or self._may_evict(victim))

    def importance(self, pod: PodInfo) -> Importance:
        """Smaller is more important, and is spared first: a higher priority, then an earlier start."""
        return -pod.priority, started(pod)

    @property
    def takes_all_below(self) -> bool:
        """Whether every pod of lower priority may be taken, so that their sums say what could be free."""
        return self._may_evict is None and type(self).may_take is Rules.may_take


def started(pod: PodInfo) -> datetime:
    """One that has not started yet has run for the shortest time of all."""
    return pod.started or _NOT_STARTED
