"""SchedulingGates holds a pod out of the queue while its spec names scheduling gates."""

from __future__ import annotations

from koord.scheduler.framework.event import UPDATE, Event, Happened
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW, Reject, unresolvable
from koord.scheduler.state.pod import PodInfo


class SchedulingGates(Plugin):
    name = "SchedulingGates"
    scope = ROW
    wakes_on = (Event("Pod", UPDATE, "gates"),)

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        return bool(happened.new.uid == pod.uid)

    def pre_enqueue(self, pod: PodInfo) -> Reject | None:
        return unresolvable(f"waiting for scheduling gates: [{' '.join(pod.gates)}]") if pod.gates else None
