"""The plugins of the two ends of a cycle: PrioritySort orders the queue by priority, then by time; SchedulingGates
holds pods with gates out of it; SchedulingHint follows a pod's hint annotation; DefaultBinder and DefaultPreBind stand
for the binding and the patch that the scheduler itself writes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from koord.api.annotations import pod_codecs
from koord.api.annotations.codec import MalformedAnnotation
from koord.api.config.scheduler.koordinator_args import SchedulingHintArgs
from koord.api.koordinator.protocol import A_SCHEDULING_HINT, A_SCHEDULING_HINT_DEPRECATED
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, PodPatch, PreFilterResult, Reject, Skip, unresolvable


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


class SchedulingHintPlugin(Plugin):
    name = "SchedulingHint"
    scope = ROW
    idle_without_keys = (Plugin.signature, Plugin.pre_filter, Plugin.prefer_nodes)
    wakes_on = (ClusterEvent("Pod", UPDATE),)

    def __init__(self, args: SchedulingHintArgs) -> None:
        """Take arguments that are already defaulted."""
        self._max_hint_nodes = args.max_hint_nodes or 0

    def signature(self, pod: PodInfo) -> Hashable:
        """Return the hint. Hints are rare: pods without one share an equivalence class."""
        annotations = pod.annotations
        if not annotations:
            return None
        return annotations.get(A_SCHEDULING_HINT) or annotations.get(A_SCHEDULING_HINT_DEPRECATED)

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        """Return whether the pod got another hint; nothing else helps."""
        new, old = object_event.new, object_event.old
        return new is not None and new.uid == pod.uid and self.signature(new) != self.signature(old)

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Skip | PreFilterResult | Fault | None:
        hint = pod_codecs.parse_scheduling_hint(pod.annotations)
        if isinstance(hint, MalformedAnnotation):
            return Fault(str(hint))
        return SKIP if hint is None or not hint.node_names else PreFilterResult(frozenset(hint.node_names))

    def prefer_nodes(self, cycle: CycleState, pod: PodInfo) -> Sequence[str] | Skip:
        if not pod.annotations or self.signature(pod) is None:
            return SKIP
        hint = pod_codecs.parse_scheduling_hint(pod.annotations)
        if hint is None or isinstance(hint, MalformedAnnotation):
            return SKIP
        names = hint.preferred_node_names[: self._max_hint_nodes]
        if cycle.allowed_nodes is not None:
            names = tuple(name for name in names if name in cycle.allowed_nodes)
        return names or SKIP
