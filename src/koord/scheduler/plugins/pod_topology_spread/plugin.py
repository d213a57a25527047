"""PodTopologySpread spreads pods evenly over zones, hosts or any other node label, as a filter and as a score."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from koord.api.config.scheduler.in_tree import PodTopologySpreadArgs
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, DELETE, UPDATE, Event, Happened
from koord.scheduler.framework.feasible import FeasibleNodes
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.verdict import CLUSTER, SKIP, Fault, Only, Reject, Skip
from koord.scheduler.plugins.pod_topology_spread.constraint import Spread, Spreads
from koord.scheduler.plugins.pod_topology_spread.filter import VERDICTS, Balances
from koord.scheduler.plugins.pod_topology_spread.hint import node_helps, pod_helps
from koord.scheduler.plugins.pod_topology_spread.owner import Owners
from koord.scheduler.plugins.pod_topology_spread.score import Fewest, Preferences
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.domain import Atlas
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, RowList, Rows
from koord.scheduler.state.tally import Tallies


class _Kept:
    """The state of one class of pods. Either part is None when there is no such constraint."""

    __slots__ = ("hard", "soft")

    def __init__(self, hard: Balances | None, soft: Preferences | None) -> None:
        self.hard = hard
        self.soft = soft

    def copy(self) -> _Kept:
        return _Kept(self.hard.copy() if self.hard is not None else None, self.soft)


class PodTopologySpread(Plugin):
    name = "PodTopologySpread"
    scope = CLUSTER
    normaliser = Fewest()
    wakes_on = (
        Event("Pod", ADD),
        Event("Pod", UPDATE, "labels"),
        Event("Pod", UPDATE, "tolerations"),
        Event("Pod", DELETE),
        Event("Node", ADD),
        Event("Node", DELETE),
        Event("Node", UPDATE, "labels"),
        Event("Node", UPDATE, "taints"),
    )

    def __init__(self, args: PodTopologySpreadArgs, state: ClusterState, owners: Owners) -> None:
        """Take defaulted arguments; `owners` say what default constraints count."""
        self._spreads = Spreads(args, owners)
        self._atlas = state.derived(Atlas)
        self._tallies = state.derived(Tallies)

    def signature(self, pod: PodInfo) -> Hashable:
        return self._spreads.of(pod)

    def epoch(self, cycle: Cycle) -> Hashable:
        hard = cycle.of(self.name, _Kept).hard
        if hard is None:
            return 0
        hard.refresh()
        return hard.version

    def moved_rows(self, cycle: Cycle) -> RowList | None:
        hard = cycle.of(self.name, _Kept).hard
        return hard.moved_rows() if hard is not None else None

    def score_epoch(self, cycle: Cycle) -> Hashable:
        soft = cycle.of(self.name, _Kept).soft
        if soft is None:
            return 0
        soft.refresh()
        return soft.version

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        spread = self._spreads.of(pod)
        if not isinstance(spread, Spread):
            return True
        return pod_helps(pod, spread, happened) if happened.event.kind == "Pod" else node_helps(spread, happened)

    # Filter ------------------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | Only | Fault | None:
        spread = self._spreads.of(pod)
        if isinstance(spread, Fault):
            return spread
        if spread is None:
            cycle.keep(self.name, _Kept(None, None))
            return SKIP
        table, atlas, tallies = cycle.state.table, self._atlas, self._tallies
        hard = Balances(spread, pod.shape, table, atlas, tallies) if spread.hard else None
        soft = Preferences(spread, pod.shape, table, atlas, tallies) if spread.soft else None
        cycle.keep(self.name, _Kept(hard, soft))
        return None if hard is not None else SKIP

    def add_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        hard = cycle.of(self.name, _Kept).hard
        if hard is not None:
            hard.what_if(other, node, 1)

    def remove_pod(self, cycle: Cycle, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        hard = cycle.of(self.name, _Kept).hard
        if hard is not None:
            hard.what_if(other, node, -1)

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        hard = cycle.of(self.name, _Kept).hard
        return VERDICTS.get(hard.code(node.row)) if hard is not None else None

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        hard = cycle.of(self.name, _Kept).hard
        return hard.codes(rows) if hard is not None else np.zeros(len(table.alive[rows]), np.int32)

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        return VERDICTS[code]

    # Score -------------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        soft = cycle.of(self.name, _Kept).soft
        if soft is None:
            return SKIP
        rows = nodes.rows if isinstance(nodes, FeasibleNodes) else np.asarray([n.row for n in nodes], np.intp)
        soft.refresh()
        soft.weigh(rows)
        return None

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        soft = cycle.of(self.name, _Kept).soft
        return soft.score(node.row) if soft is not None else 0

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        soft = cycle.of(self.name, _Kept).soft
        return soft.scores(rows) if soft is not None else np.zeros(len(table.alive[rows]), np.int64)
