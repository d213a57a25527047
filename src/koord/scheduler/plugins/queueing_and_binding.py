"""The plugins of the two ends of a cycle: PrioritySort orders the queue by priority, then by time; SchedulingGates
holds pods with gates out of it; DefaultBinder and DefaultPreBind stand for the binding and the patch that the
scheduler itself writes.
"""

from __future__ import annotations

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.bind_effects import PodPatch
from koord.scheduler.framework.cluster_event import UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW, Reject, unresolvable


class PrioritySort(Plugin):
    name = "PrioritySort"
    scope = ROW

    def sort_key(self, pod: PodInfo, queued_at: float) -> tuple[int, float]:
        return (-pod.priority, queued_at)


class SchedulingGates(Plugin):
    name = "SchedulingGates"
    scope = ROW
    wakes_on = (ClusterEvent("Pod", UPDATE, "gates"),)

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        return bool(object_event.new.uid == pod.uid)

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        return unresolvable(f"waiting for scheduling gates: [{' '.join(pod.gates)}]") if pod.gates else None


class DefaultBinder(Plugin):
    name = "DefaultBinder"
    scope = ROW

    def bind(self, cycle: CycleState, pod: PodInfo, node_name: str) -> None:
        """Return None: the scheduler writes the usual binding."""


class DefaultPreBind(Plugin):
    name = "DefaultPreBind"
    scope = ROW

    def apply_patch(self, cycle: CycleState, pod: PodInfo, node_name: str, mark: PodPatch) -> PodPatch:
        return mark
