"""DefaultBinder and DefaultPreBind stand for the usual binding and the usual patch in a configuration.

The scheduler itself does both writes.
"""

from __future__ import annotations

from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.bind_effects import PodPatch
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW


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
