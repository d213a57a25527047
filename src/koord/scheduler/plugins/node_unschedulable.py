"""NodeUnschedulable rejects cordoned nodes unless the pod tolerates the unschedulable taint."""

from __future__ import annotations

import numpy as np

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, UPDATE, Event, Happened
from koord.scheduler.framework.plugin import Codes, Plugin
from koord.scheduler.framework.verdict import ROW, Reject, unresolvable
from koord.scheduler.plugins.toleration import NO_SCHEDULE, TaintKey, tolerated
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, Rows

_TAINT: TaintKey = ("node.kubernetes.io/unschedulable", "", NO_SCHEDULE)
_REFUSAL = unresolvable("node(s) were unschedulable")


class NodeUnschedulable(Plugin):
    name = "NodeUnschedulable"
    scope = ROW
    reads_pods = "nothing"
    wakes_on = (
        Event("Node", ADD),
        Event("Node", UPDATE, "unschedulable"),
        Event("Pod", UPDATE, "tolerations"),
    )

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        if happened.event.kind == "Pod":
            return happened.new.uid == pod.uid and tolerated(happened.new.shape.spec.tolerations, _TAINT)
        before, now = happened.old, happened.new
        return not now.spec.unschedulable and (before is None or before.spec.unschedulable)

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        assert node.node is not None
        if not node.node.spec.unschedulable or tolerated(pod.shape.spec.tolerations, _TAINT):
            return None
        return _REFUSAL

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        cordoned = table.node_column(self.name, np.int32, _is_cordoned)[rows]
        return np.zeros_like(cordoned) if tolerated(pod.shape.spec.tolerations, _TAINT) else cordoned.copy()

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        return _REFUSAL


def _is_cordoned(node: NodeInfo) -> bool:
    return node.node is not None and node.node.spec.unschedulable
