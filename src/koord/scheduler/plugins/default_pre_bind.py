"""Write what PreBind plugins marked, as it is and at once. The write itself is the program's."""

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
