"""One pod on its way to one node: everything that the steps after the decision need to go on or to undo it."""

from __future__ import annotations

from collections.abc import Mapping

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.decision import Chosen
from koord.scheduler.framework.profile import Profile
from koord.scheduler.queue.entry import QueuedPod
from koord.scheduler.state.pod import PodInfo


class Bond:
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
        """Undo Reserve in reverse order, for every plugin: it must work for those that were never asked."""
        for plugin in reversed(self.profile.at("reserve")):
            plugin.unreserve(self.cycle, self.pod, self.node_name)
