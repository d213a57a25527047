"""ScarceResourceAvoidance keeps pods off nodes with scarce resources that they do not request."""

from __future__ import annotations

from collections.abc import Sequence

from koord.api.config.scheduler.scarce_resource import ScarceResourceAvoidanceArgs
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.plugin import MAX_SCORE, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, Skip
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, Rows

Kinds = frozenset[str]


class ScarceResourceAvoidance(Plugin):
    name = "ScarceResourceAvoidance"
    scope = ROW

    def __init__(self, args: ScarceResourceAvoidanceArgs) -> None:
        self._scarce = frozenset(args.resources)

    def pre_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return None if self._scarce else SKIP

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        return self._worth(_kinds(node), pod)

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        """Score each distinct set of resources once: a cluster has few kinds of nodes."""
        return table.coded((self.name, "kinds"), _kinds).spread(rows, lambda kinds: self._worth(kinds, pod))

    def _worth(self, kinds: Kinds, pod: PodInfo) -> int:
        """Return the percentage of not scarce resources among those that the pod would leave idle."""
        idle = kinds - pod.requests.keys()
        wasted = idle & self._scarce
        return (len(idle) - len(wasted)) * MAX_SCORE // len(idle) if wasted else MAX_SCORE


def _kinds(node: NodeInfo) -> Kinds:
    return frozenset(name for name, amount in node.allocatable.items() if amount > 0)
