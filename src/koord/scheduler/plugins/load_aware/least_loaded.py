"""This module decides what happens when load rejects every node that would otherwise fit."""

from __future__ import annotations

from koord.api.config.scheduler.load_aware import LEAST_LOADED, LoadAwareSchedulingArgs
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.handle import Handle
from koord.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import RowList

_WHY = f"AllNodesAboveLoadThreshold(policy={LEAST_LOADED})"


class LeastLoaded(LoadAwareScheduling):
    """Takes the least loaded node when all are above a threshold.

    Nodes whose report is expired are never taken this way: nobody knows how loaded they are.
    """

    def relent(self, cycle: Cycle, pod: PodInfo, rows: RowList) -> tuple[int, str] | None:
        table = cycle.state.table
        codes = self.filter_columns(cycle, pod, table, rows)
        hot = rows[(codes > 0) & (codes < self.stale_code)]
        if not len(hot):
            return None
        scores = self.score_columns(cycle, pod, table, hot)
        best = hot[scores == scores.max()]
        nodes = [node for row in best if (node := table.nodes[row]) is not None]
        # Nodes with nothing left all score 0: there it counts how far above its ceiling each would be.
        return min(nodes, key=lambda node: (self.excess(pod, node), node.name)).row, _WHY


def load_aware(args: LoadAwareSchedulingArgs, handle: Handle) -> LoadAwareScheduling:
    """Build the plugin that defaulted arguments ask for."""
    return LeastLoaded(args, handle) if args.when_all_hot == LEAST_LOADED else LoadAwareScheduling(args, handle)
