"""NodeName, NodeUnschedulable, NodePorts and TaintToleration filter nodes by the node's own name, cordon, held host
ports and taints; TaintToleration prefers nodes with fewer soft taints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np

from koord.api.kubernetes.affinity import Taint, Toleration
from koord.policy.node_match import PREFER_NO_SCHEDULE, UNSCHEDULABLE_TAINT, find_untolerated_taint, is_tolerated
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.node_table import CodedColumn, NodeTable, Rows
from koord.scheduler.cache.pod_info import HostPort, PodInfo
from koord.scheduler.framework.cluster_event import ADD, DELETE, UPDATE, ClusterEvent, ObjectEvent
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Codes, Plugin, ScoreNormaliser, Scores
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
