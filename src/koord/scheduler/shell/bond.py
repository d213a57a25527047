"""Bind decided pods: wait at Permit, run PreBind, write the binding once, and find out what became of it.

    submit -> [Permit: wait] -> PreBind -> bind --201--> confirmed later by the watch
                   |               |         |
                   | rejected      | failed  | refused: undo          no answer: ask the server what is true
                   +---------------+---------+----------------> undo: unreserve, forget, wake others, report, requeue

An answer that never came is not a failure: the pod keeps its resources until the server says whether it is bound.
A reserve pod has no binding: the status of its Reservation is written instead (`StatusBinder`).
"""

from __future__ import annotations

from collections.abc import Mapping

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.decision import Chosen
from koord.scheduler.framework.profile import Profile
from koord.scheduler.queue.entry import QueuedPod
from koord.scheduler.state.pod import PodInfo


class Bond:
    """Carry what the steps after a decision need to bind one pod to its node, or to undo that."""
    __slots__ = ("cycle", "decision", "pod", "profile", "queued", "started", "waits")

    def __init__(
        self,
        queued: QueuedPod,
        profile: Profile,
        cycle: Cycle,
        decision: Chosen,
        waits: Mapping[str, float],
        started: float,
    ) -> None:
        self.queued = queued
        self.pod: PodInfo = queued.pod  # as it was decided about; `queued.pod` follows the server
        self.profile = profile
        self.cycle = cycle
        self.decision = decision
        self.waits = waits  # by plugin: how long Permit may hold it
        self.started = started

    @property
    def node_name(self) -> str:
        return self.decision.node

    def unreserve(self) -> None:
        """Run Unreserve of all plugins in reverse order; it must work for plugins whose Reserve was never run."""
        for plugin in reversed(self.profile.at("reserve")):
            plugin.unreserve(self.cycle, self.pod, self.node_name)
