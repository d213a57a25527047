"""TaintToleration rejects nodes with taints that a pod does not tolerate, and prefers nodes with fewer soft
taints.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from koord.api.affinity import Toleration
from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, UPDATE, Event, Happened
from koord.scheduler.framework.normaliser import Normaliser
from koord.scheduler.framework.plugin import Codes, Plugin, Scores
from koord.scheduler.framework.verdict import ROW, Fault, Reject, Skip, unresolvable
from koord.scheduler.plugins.toleration import (
    PREFER_NO_SCHEDULE,
    TaintSet,
    repels,
    taint_set,
    taint_sets,
    taints_of,
    tolerated,
)
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, Rows

_REFUSAL = unresolvable("node(s) had untolerated taint(s)")


class TaintToleration(Plugin):
    name = "TaintToleration"
    scope = ROW
    reads_pods = "nothing"
    normaliser = Normaliser(reverse=True)
    wakes_on = (
        Event("Node", ADD),
        Event("Node", UPDATE, "taints"),
        Event("Pod", UPDATE, "tolerations"),
    )

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        if happened.event.kind == "Pod":
            return bool(happened.new.uid == pod.uid)
        mine = pod.shape.spec.tolerations
        was_repelled = happened.old is None or repels(taint_set(happened.old.spec.taints), mine)
        return was_repelled and not repels(taint_set(happened.new.spec.taints), mine)

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        taints = taints_of(node)
        return _REFUSAL if taints and repels(taints, pod.shape.spec.tolerations) else None

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        mine = pod.shape.spec.tolerations
        return taint_sets(table).spread(rows, lambda taints: repels(taints, mine)).astype(np.int32)

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        return _REFUSAL

    def pre_score(self, cycle: Cycle, pod: PodInfo, nodes: Sequence[NodeInfo]) -> Skip | Fault | None:
        return None  # never skipped: without soft taints every node gets the full score, and totals show it

    def score(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> int:
        taints = taints_of(node)
        return _soft_taints(taints, pod.shape.spec.tolerations) if taints else 0

    def score_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Scores:
        mine = pod.shape.spec.tolerations
        return taint_sets(table).spread(rows, lambda taints: _soft_taints(taints, mine))


def _soft_taints(taints: TaintSet, tolerations: tuple[Toleration, ...]) -> int:
    """Count the PreferNoSchedule taints that are not tolerated."""
    return sum(taint[2] == PREFER_NO_SCHEDULE and not tolerated(tolerations, taint) for taint in taints)
