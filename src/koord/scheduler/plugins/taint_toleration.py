"""TaintToleration rejects nodes with taints that a pod does not tolerate, and prefers nodes with fewer soft
taints.

The matching of taints and tolerations is shared with other plugins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from koord.api.kubernetes.affinity import Toleration
from koord.scheduler.cache.columns import CodedColumn
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cluster_event import ADD, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.normaliser import ScoreNormaliser
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, Fault, Reject, Skip, unresolvable

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
# Effects that keep a pod off a node.
HARD_EFFECTS = frozenset((NO_SCHEDULE, NO_EXECUTE))

# (key, value, effect): when a taint was added changes nothing here, and would make every node's taints its own.
TaintKey = tuple[str, str, str]
TaintSet = tuple[TaintKey, ...]


def taint_keys(taints: Iterable[Any]) -> TaintSet:
    return tuple((taint.key, taint.value, taint.effect) for taint in taints)


def node_taints(node: NodeInfo) -> TaintSet:
    return taint_keys(node.node.spec.taints) if node.node is not None else ()


def taint_column(table: NodeTable) -> CodedColumn:
    """Return each node's taints as codes: clusters have thousands of nodes and a handful of different taint sets."""
    return table.coded_column("taints", node_taints)


def tolerates(toleration: Toleration, taint: TaintKey) -> bool:
    """Return whether the toleration matches the taint.

    Comparison operators (Gt, Lt) belong to a feature gate that is off in Kubernetes 1.35, so they tolerate
    nothing.
    """
    key, value, effect = taint
    if toleration.effect and toleration.effect != effect:
        return False
    if toleration.key and toleration.key != key:
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == value
    return toleration.operator == "Exists"


def tolerations_tolerate_taint(tolerations: Iterable[Toleration], taint: TaintKey) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)


def has_untolerated_taint(taints: TaintSet, tolerations: tuple[Toleration, ...]) -> bool:
    """Return whether any taint that keeps pods off a node is not tolerated."""
    return any(taint[2] in HARD_EFFECTS and not tolerations_tolerate_taint(tolerations, taint) for taint in taints)


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
        was_repelled = object_event.old is None or has_untolerated_taint(taint_keys(object_event.old.spec.taints), mine)
        return was_repelled and not has_untolerated_taint(taint_keys(object_event.new.spec.taints), mine)

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        taints = node_taints(node)
        return _UNTOLERATED_TAINT if taints and has_untolerated_taint(taints, pod.shape.spec.tolerations) else None

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        mine = pod.shape.spec.tolerations
        return taint_column(table).map_values(rows, lambda taints: has_untolerated_taint(taints, mine)).astype(np.int32)

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        return _UNTOLERATED_TAINT

    def pre_score(self, cycle: CycleState, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return None  # never skipped: without soft taints every node gets the full score, and totals show it

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        taints = node_taints(node)
        return _count_intolerable_prefer_no_schedule(taints, pod.shape.spec.tolerations) if taints else 0

    def score_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        mine = pod.shape.spec.tolerations
        return taint_column(table).map_values(rows, lambda taints: _count_intolerable_prefer_no_schedule(taints, mine))


def _count_intolerable_prefer_no_schedule(taints: TaintSet, tolerations: tuple[Toleration, ...]) -> int:
    """Count the PreferNoSchedule taints that are not tolerated."""
    return sum(
        taint[2] == PREFER_NO_SCHEDULE and not tolerations_tolerate_taint(tolerations, taint) for taint in taints
    )
