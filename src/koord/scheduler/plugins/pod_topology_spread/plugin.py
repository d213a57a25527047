"""PodTopologySpread spreads pods evenly over zones, hosts or any other node label, as a filter and as a score.

Its queueing hints let through the events that change what is counted.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from koord.api.config.scheduler.in_tree_args import PodTopologySpreadArgs
from koord.api.kubernetes.node import Node
from koord.scheduler.cache.cluster_state import ClusterState, TopologyDomainIndex
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, RowList, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.selector_counts import SelectorCounts
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.scoring import FeasibleNodes
from koord.scheduler.framework.verdict import CLUSTER, SKIP, Fault, PreFilterResult, Reject, Skip
from koord.scheduler.plugins.node_filters import without_times
from koord.scheduler.plugins.pod_topology_spread import constraint
from koord.scheduler.plugins.pod_topology_spread.constraint import OwnerSelectors
from koord.scheduler.plugins.pod_topology_spread.filter import REJECTIONS, SpreadFilterState
from koord.scheduler.plugins.pod_topology_spread.score import SpreadScoreNormaliser, SpreadScoreState


def pod_event_helps(pod: PodInfo, spread: constraint.PodSpread, object_event: ObjectEvent) -> bool:
    """Return whether a pod event changes what the waiting pod's constraints count."""
    old: PodInfo | None = object_event.old
    new: PodInfo | None = object_event.new
    if any(p is not None and not _involved(p, pod, spread) for p in (old, new)):
        return False
    if old is not None and new is not None:
        if new.uid == pod.uid and old.shape.spec.tolerations != new.shape.spec.tolerations:
            return any(c.honors_taints for c in spread.hard) or _differ(spread, old, new)
        return _differ(spread, old, new)
    one = new if new is not None else old
    return one is not None and any(c.selector.matches(one.labels) for c in spread.hard)


def _involved(one: PodInfo, pod: PodInfo, spread: constraint.PodSpread) -> bool:
    return one.uid == pod.uid or (bool(one.node_name) and one.namespace == spread.namespace)


def _differ(spread: constraint.PodSpread, old: PodInfo, new: PodInfo) -> bool:
    return any(c.selector.matches(old.labels) != c.selector.matches(new.labels) for c in spread.hard)


def node_event_helps(spread: constraint.PodSpread, object_event: ObjectEvent) -> bool:
    """Return whether a node event changes the domains of the waiting pod's constraints."""
    old: Node | None = object_event.old
    new: Node | None = object_event.new
    before = old is not None and _has_keys(old.metadata.labels, spread.hard)
    after = new is not None and _has_keys(new.metadata.labels, spread.hard)
    if old is None or new is None:
        return before or after
    if before != after:
        return True
    return after and (
        any(old.metadata.labels[c.topology_key] != new.metadata.labels[c.topology_key] for c in spread.hard)
        or without_times(old.spec.taints) != without_times(new.spec.taints)
    )


def _has_keys(labels: Mapping[str, str], constraints: tuple[constraint.ResolvedSpreadConstraint, ...]) -> bool:
    return all(c.topology_key in labels for c in constraints)


class _SpreadCycleState:
    """The state of one class of pods. Either part is None when there is no such constraint."""

    __slots__ = ("hard", "soft")

    def __init__(self, hard: SpreadFilterState | None, soft: SpreadScoreState | None) -> None:
        self.hard = hard
        self.soft = soft

    def copy(self) -> _SpreadCycleState:
        return _SpreadCycleState(self.hard.copy() if self.hard is not None else None, self.soft)


class PodTopologySpread(Plugin):
    name = "PodTopologySpread"
    scope = CLUSTER
    normaliser = SpreadScoreNormaliser()
    wakes_on = (
        ClusterEvent("Pod", ADD),
        ClusterEvent("Pod", UPDATE, "labels"),
        ClusterEvent("Pod", UPDATE, "tolerations"),
        ClusterEvent("Pod", DELETE),
        ClusterEvent("Node", ADD),
        ClusterEvent("Node", DELETE),
        ClusterEvent("Node", UPDATE, "labels"),
        ClusterEvent("Node", UPDATE, "taints"),
    )

    def __init__(self, args: PodTopologySpreadArgs, state: ClusterState, owners: OwnerSelectors) -> None:
        """Take defaulted arguments; `owners` say what default constraints count."""
        self._resolver = constraint.PodSpreadResolver(args, owners)
        self._atlas = state.derived(TopologyDomainIndex)
        self._tallies = state.derived(SelectorCounts)

    def signature(self, pod: PodInfo) -> Hashable:
        return self._resolver.resolve(pod)

    def epoch(self, cycle: CycleState) -> Hashable:
        hard = cycle.read(self.name, _SpreadCycleState).hard
        if hard is None:
            return 0
        hard.refresh()
        return hard.version

    def moved_rows(self, cycle: CycleState) -> RowList | None:
        hard = cycle.read(self.name, _SpreadCycleState).hard
        return hard.moved_rows() if hard is not None else None

    def score_epoch(self, cycle: CycleState) -> Hashable:
        soft = cycle.read(self.name, _SpreadCycleState).soft
        if soft is None:
            return 0
        soft.refresh()
        return soft.version

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        spread = self._resolver.resolve(pod)
        if not isinstance(spread, constraint.PodSpread):
            return True
        return (
            pod_event_helps(pod, spread, object_event)
            if object_event.event.kind == "Pod"
            else node_event_helps(spread, object_event)
        )

    # Filter ------------------------------------------------------------------------------------------------------

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Skip | PreFilterResult | Fault | None:
        spread = self._resolver.resolve(pod)
        if isinstance(spread, Fault):
            return spread
        if spread is None:
            cycle.write(self.name, _SpreadCycleState(None, None))
            return SKIP
        table, atlas, tallies = cycle.state.table, self._atlas, self._tallies
        hard = SpreadFilterState(spread, pod.shape, table, atlas, tallies) if spread.hard else None
        soft = SpreadScoreState(spread, pod.shape, table, atlas, tallies) if spread.soft else None
        cycle.write(self.name, _SpreadCycleState(hard, soft))
        return None if hard is not None else SKIP

    def add_pod(self, cycle: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        hard = cycle.read(self.name, _SpreadCycleState).hard
        if hard is not None:
            hard.update_with_pod(other, node, 1)

    def remove_pod(self, cycle: CycleState, pod: PodInfo, other: PodInfo, node: NodeInfo) -> None:
        hard = cycle.read(self.name, _SpreadCycleState).hard
        if hard is not None:
            hard.update_with_pod(other, node, -1)

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        hard = cycle.read(self.name, _SpreadCycleState).hard
        return REJECTIONS.get(hard.code(node.row)) if hard is not None else None

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        hard = cycle.read(self.name, _SpreadCycleState).hard
        return hard.codes(rows) if hard is not None else np.zeros(len(table.alive[rows]), np.int32)

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        return REJECTIONS[code]

    # Score -------------------------------------------------------------------------------------------------------

    def pre_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        soft = cycle.read(self.name, _SpreadCycleState).soft
        if soft is None:
            return SKIP
        rows = nodes.rows if isinstance(nodes, FeasibleNodes) else np.asarray([n.row for n in nodes], np.intp)
        soft.refresh()
        soft.update_weights(rows)
        return None

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        soft = cycle.read(self.name, _SpreadCycleState).soft
        return soft.score(node.row) if soft is not None else 0

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        soft = cycle.read(self.name, _SpreadCycleState).soft
        return soft.scores(rows) if soft is not None else np.zeros(len(table.alive[rows]), np.int64)
