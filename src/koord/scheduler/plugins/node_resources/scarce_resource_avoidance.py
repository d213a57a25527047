"""ScarceResourceAvoidance keeps pods off nodes with scarce resources that they do not request."""

from __future__ import annotations

from collections.abc import Sequence

from koord.api.config.scheduler.koordinator_args import ScarceResourceAvoidanceArgs
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import MAX_SCORE, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, Skip

ResourceNames = frozenset[str]


class ScarceResourceAvoidance(Plugin):
    name = "ScarceResourceAvoidance"
    scope = ROW

    def __init__(self, args: ScarceResourceAvoidanceArgs) -> None:
        self._scarce = frozenset(args.resources)

    def pre_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return None if self._scarce else SKIP

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return self._score_names(_allocatable_names(node), pod)

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        """Score each distinct set of resources once: a cluster has few kinds of nodes."""
        return table.coded_column((self.name, "kinds"), _allocatable_names).map_values(
            rows, lambda allocatable: self._score_names(allocatable, pod)
        )

    def _score_names(self, allocatable: ResourceNames, pod: PodInfo) -> int:
        """Return the percentage of not scarce resources among those that the pod would leave idle."""
        idle = allocatable - pod.requests.keys()
        wasted = idle & self._scarce
        return (len(idle) - len(wasted)) * MAX_SCORE // len(idle) if wasted else MAX_SCORE


def _allocatable_names(node: NodeInfo) -> ResourceNames:
    return frozenset(name for name, amount in node.allocatable.items() if amount > 0)
