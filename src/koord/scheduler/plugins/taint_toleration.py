"""TaintToleration rejects nodes with taints that a pod does not tolerate, and prefers nodes with fewer soft taints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from koord.api.kubernetes.affinity import Taint, Toleration
from koord.policy.node_match import PREFER_NO_SCHEDULE, find_untolerated_taint, is_tolerated
from koord.scheduler.cache.columns import CodedColumn
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.normaliser import ScoreNormaliser
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, Fault, Reject, Skip, unresolvable

Taints = tuple[Taint, ...]


def without_times(taints: Iterable[Taint]) -> Taints:
    """Return the taints without the times when they were added, which change nothing here and differ on every node."""
    return tuple(Taint(key=taint.key, value=taint.value, effect=taint.effect) for taint in taints)


def _node_taints(node: NodeInfo) -> Taints:
    return without_times(node.node.spec.taints) if node.node is not None else ()


def taint_column(table: NodeTable) -> CodedColumn:
    """Return each node's taints as codes: clusters have thousands of nodes and a handful of different taint sets."""
    return table.coded_column("taints", _node_taints)


def has_untolerated_taint(taints: Taints, tolerations: tuple[Toleration, ...]) -> bool:
    """Return whether any taint that keeps pods off a node is not tolerated."""
    return find_untolerated_taint(tolerations, taints) is not None


_UNTOLERATED_TAINT = unresolvable("node(s) had untolerated taint(s)")


class TaintToleration(Plugin):
    name = "TaintToleration"
    scope = ROW
    reads_pods = "nothing"
    normaliser = ScoreNormaliser(reverse=True)
    wakes_on = (
        ClusterEvent("Node", ADD),
        ClusterEvent("Node", UPDATE, "taints"),
        ClusterEvent("Pod", UPDATE, "tolerations"),
    )

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        if object_event.event.kind == "Pod":
            return bool(object_event.new.uid == pod.uid)
        mine = pod.shape.spec.tolerations
        was_repelled = object_event.old is None or has_untolerated_taint(object_event.old.spec.taints, mine)
        return was_repelled and not has_untolerated_taint(object_event.new.spec.taints, mine)

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        taints = node.node.spec.taints if node.node is not None else ()
        return _UNTOLERATED_TAINT if taints and has_untolerated_taint(taints, pod.shape.spec.tolerations) else None

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        mine = pod.shape.spec.tolerations
        return taint_column(table).map_values(rows, lambda taints: has_untolerated_taint(taints, mine)).astype(np.int32)

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        return _UNTOLERATED_TAINT

    def pre_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return None  # never skipped: without soft taints every node gets the full score, and totals show it

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        taints = node.node.spec.taints if node.node is not None else ()
        return _count_intolerable_prefer_no_schedule(taints, pod.shape.spec.tolerations) if taints else 0

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        mine = pod.shape.spec.tolerations
        return taint_column(table).map_values(rows, lambda taints: _count_intolerable_prefer_no_schedule(taints, mine))


def _count_intolerable_prefer_no_schedule(taints: Taints, tolerations: tuple[Toleration, ...]) -> int:
    """Count the PreferNoSchedule taints that are not tolerated."""
    return sum(taint.effect == PREFER_NO_SCHEDULE and not is_tolerated(tolerations, taint) for taint in taints)
