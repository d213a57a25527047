"""PrioritySort orders the queue by priority, then by time; SchedulingGates holds pods with gates out of it."""

from __future__ import annotations

from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW
from koord.scheduler.state.pod import PodInfo


class PrioritySort(Plugin):
    name = "PrioritySort"
    scope = ROW

    def sort_key(self, pod: PodInfo, queued_at: float) -> tuple[int, float]:
        return (-pod.priority, queued_at)
