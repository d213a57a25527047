"""DefaultBinder and DefaultPreBind stand for the usual binding and the usual patch in a configuration.

The scheduler itself does both writes.
"""

from __future__ import annotations

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW
from koord.scheduler.state.pod import PodInfo


class DefaultBinder(Plugin):
    name = "DefaultBinder"
    scope = ROW

    def bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> None:
        """Return None: the scheduler writes the usual binding."""
