"""NodeName, NodeUnschedulable and NodePorts filter nodes by the node's own name, cordon and held host ports."""

from __future__ import annotations

import numpy as np

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, Event
from koord.scheduler.framework.plugin import Codes, Plugin
from koord.scheduler.framework.verdict import ROW, Reject, unresolvable
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.table import NodeTable, Rows

_REFUSAL = unresolvable("node(s) didn't match the requested node name")


class NodeName(Plugin):
    name = "NodeName"
    scope = ROW
    reads_pods = "nothing"
    wakes_on = (Event("Node", ADD),)

    def signature(self, pod: PodInfo) -> str:
        return pod.node_name

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        return None if not pod.node_name or pod.node_name == node.name else _REFUSAL

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        if not pod.node_name:
            return np.zeros(len(table.alive[rows]), np.int32)
        codes = np.ones(table.size, np.int32)
        wanted = table.index.get(pod.node_name)
        if wanted is not None:
            codes[wanted.row] = 0
        return codes[rows]

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        return _REFUSAL
