"""Find the fewest and least important pods that must leave one node for a pod to fit there.

The dry run works on a copy of the node: all eligible pods are removed, and if the pod fits then, they are added back
one by one, budget violations first and the more important before the less; each that the pod still fits beside is
spared. `VictimRules` say who is eligible: kinds of preemption differ in that and share everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime

from koord.scheduler.framework.verdict import Reject
from koord.scheduler.preemption.relief import Reliefs
from koord.scheduler.state.pod import PodInfo

_NOT_STARTED = datetime.max.replace(tzinfo=UTC)

Importance = tuple[int, datetime]


class Rules:
    """Define who may be a victim as Kubernetes does: pods of lower priority that `may_evict` does not protect.

    Another kind of preemption overrides `may_preempt` and, if need be, `importance` and `objection`.
    """

    name = ""  # of the plugin whose refusal of the pod itself `objection` tells about

    def __init__(self, may_evict: Callable[[PodInfo], bool] | None = None) -> None:
        self._may_evict = may_evict

    def may_take(self, pod: PodInfo, victim: PodInfo) -> bool:
        """Return whether the pod may preempt this victim."""
        if victim.reserve:  # room that is kept for somebody: whoever made the Reservation decides about it
            return False
        return victim.priority < pod.priority and (self._may_evict is None or self._may_evict(victim))

    def importance(self, pod: PodInfo) -> Importance:
        """Return a sort key: smaller is more important and is spared first, by higher priority, then earlier start."""
        return -pod.priority, started(pod)

    def objection(self, pod: PodInfo, gone: Collection[PodInfo]) -> Reject | None:
        """Return what still rejects the pod itself once those pods are gone, wherever a node could take it."""
        return None

    @property
    def reliefs(self) -> type[Reliefs] | None:
        """Return the class that sums up what eligible victims hold; None where only a look at each pod tells who is
        eligible.
        """
        return Reliefs if self._may_evict is None and type(self).may_take is Rules.may_take else None


def started(pod: PodInfo) -> datetime:
    """Return when the pod started; one that has not started yet counts as the latest."""
    return pod.started or _NOT_STARTED
