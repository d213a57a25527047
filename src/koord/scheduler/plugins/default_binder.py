"""Bind a pod in the usual way. The write itself is the program's: this plugin stands for it in a configuration."""

from __future__ import annotations

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import ROW
from koord.scheduler.state.pod import PodInfo


class DefaultBinder(Plugin):
    name = "DefaultBinder"
    scope = ROW

    def bind(self, cycle: Cycle, pod: PodInfo, node_name: str) -> None:
        """Nothing beside the usual binding."""
