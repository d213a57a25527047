"""Whom a pod may push out, and whom rather than whom. Kinds of preemption differ in this and share everything else."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime

from koord.scheduler.framework.verdict import Reject
from koord.scheduler.preemption.relief import Reliefs
from koord.scheduler.state.pod import PodInfo

_NOT_STARTED = datetime.max.replace(tzinfo=UTC)

Importance = tuple[int, datetime]


class Rules:
    """Kubernetes' own: pods of lower priority, except those that `may_evict` protects.

    Another kind of preemption overrides `may_take` and, if need be, `importance` and `objection`.
    """

    name = ""  # of the plugin whose refusal of the pod itself `objection` tells about

    def __init__(self, may_evict: Callable[[PodInfo], bool] | None = None) -> None:
        self._may_evict = may_evict

    def may_take(self, pod: PodInfo, victim: PodInfo) -> bool:
        if victim.reserve:  # room that is kept for somebody: whoever made the Reservation decides about it
            return False
        return victim.priority < pod.priority and (self._may_evict is None or self._may_evict(victim))

    def importance(self, pod: PodInfo) -> Importance:
        """Smaller is more important, and is spared first: a higher priority, then an earlier start."""
        return -pod.priority, started(pod)

    def objection(self, pod: PodInfo, gone: Collection[PodInfo]) -> Reject | None:
        """What keeps the pod out even where a node has room for it, once those pods are gone."""
        return None

    @property
    def reliefs(self) -> type[Reliefs] | None:
        """Sums of what those hold who may be taken; None where only a closer look tells who may."""
        return Reliefs if self._may_evict is None and type(self).may_take is Rules.may_take else None


def started(pod: PodInfo) -> datetime:
    """One that has not started yet has run for the shortest time of all."""
    return pod.started or _NOT_STARTED
