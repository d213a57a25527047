"""DefaultPreBind writes the patches of the PreBind plugins unchanged. The scheduler does the write."""

from __future__ import annotations

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW
from koord.scheduler.framework.work import Mark
from koord.scheduler.state.pod import PodInfo


class DefaultPreBind(Plugin):
    name = "DefaultPreBind"
    scope = ROW

    def apply_patch(self, cycle: Cycle, pod: PodInfo, node_name: str, mark: Mark) -> Mark:
        return mark
