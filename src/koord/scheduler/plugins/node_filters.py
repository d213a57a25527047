"""NodeName, NodeUnschedulable and NodePorts filter nodes by the node's own name, cordon and held host ports."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from koord.policy.node_match import UNSCHEDULABLE_TAINT, is_tolerated
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import NodeTable, Rows
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.cache.pod_shape import HostPort
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Codes, Plugin
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, PreFilterResult, Reject, Skip, reject, unresolvable

_NODE_NAME_MISMATCH = unresolvable("node(s) didn't match the requested node name")


class NodeName(Plugin):
    name = "NodeName"
    scope = ROW
    reads_pods = "nothing"
    wakes_on = (ClusterEvent("Node", ADD),)

    def signature(self, pod: PodInfo) -> str:
        return pod.node_name

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        return None if not pod.node_name or pod.node_name == node.name else _NODE_NAME_MISMATCH

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        if not pod.node_name:
            return np.zeros(len(table.alive[rows]), np.int32)
        codes = np.ones(table.size, np.int32)
        wanted = table.index.get(pod.node_name)
        if wanted is not None:
            codes[wanted.row] = 0
        return codes[rows]

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        return _NODE_NAME_MISMATCH


_NODE_UNSCHEDULABLE = unresolvable("node(s) were unschedulable")


class NodeUnschedulable(Plugin):
    name = "NodeUnschedulable"
    scope = ROW
    reads_pods = "nothing"
    wakes_on = (
        ClusterEvent("Node", ADD),
        ClusterEvent("Node", UPDATE, "unschedulable"),
        ClusterEvent("Pod", UPDATE, "tolerations"),
    )

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        if object_event.event.kind == "Pod":
            return object_event.new.uid == pod.uid and is_tolerated(
                object_event.new.shape.spec.tolerations, UNSCHEDULABLE_TAINT
            )
        before, now = object_event.old, object_event.new
        return not now.spec.unschedulable and (before is None or before.spec.unschedulable)

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        assert node.node is not None
        if not node.node.spec.unschedulable or is_tolerated(pod.shape.spec.tolerations, UNSCHEDULABLE_TAINT):
            return None
        return _NODE_UNSCHEDULABLE

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        cordoned = table.node_column(self.name, np.int32, _is_cordoned)[rows]
        return (
            np.zeros_like(cordoned)
            if is_tolerated(pod.shape.spec.tolerations, UNSCHEDULABLE_TAINT)
            else cordoned.copy()
        )

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        return _NODE_UNSCHEDULABLE


def _is_cordoned(node: NodeInfo) -> bool:
    return node.node is not None and node.node.spec.unschedulable


_ANY_ADDRESS = "0.0.0.0"
_PORT_CONFLICT = reject("node(s) didn't have free ports for the requested pod ports")


class NodePorts(Plugin):
    name = "NodePorts"
    scope = ROW
    wakes_on = (ClusterEvent("Node", ADD), ClusterEvent("Pod", DELETE))

    def queueing_hint(self, pod: PodInfo, object_event: ObjectEvent) -> bool:
        if object_event.event.kind == "Node":
            return True
        gone: PodInfo = object_event.old
        if not gone.node_name and not gone.nominated_node:
            return False
        return any(_conflicts_with(wanted, gone.shape.host_ports) for wanted in pod.shape.host_ports)

    def pre_filter(self, cycle: CycleState, pod: PodInfo) -> Reject | Skip | PreFilterResult | Fault | None:
        return None if pod.shape.host_ports else SKIP

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        held = node.ports
        if held and any(_conflicts_with(wanted, held) for wanted in pod.shape.host_ports):
            return _PORT_CONFLICT
        return None

    def filter_columns(self, cycle: CycleState, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        codes = np.zeros(len(table.alive[rows]), np.int32)
        for wanted in pod.shape.host_ports:
            codes |= table.column((self.name, wanted), np.bool_, partial(_conflicts_on_node, wanted))[rows]
        return codes

    def explain_code(self, cycle: CycleState, pod: PodInfo, code: int) -> Reject:
        return _PORT_CONFLICT


def _conflicts_on_node(wanted: HostPort, node: NodeInfo) -> bool:
    return _conflicts_with(wanted, node.ports)


def _conflicts_with(wanted: HostPort, held: Iterable[HostPort]) -> bool:
    """Return whether the port conflicts with a held one: equal protocol and number, and one address or 0.0.0.0."""
    protocol, address, number = wanted
    return any(
        port == number and kind == protocol and (other == address or _ANY_ADDRESS in (other, address))
        for kind, other, port in held
    )
