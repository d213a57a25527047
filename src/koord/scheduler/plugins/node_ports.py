"""NodePorts rejects nodes where a host port that the pod wants is taken."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from koord.scheduler.framework.cycle import Cycle
from koord.scheduler.framework.event import ADD, DELETE, Event, Happened
from koord.scheduler.framework.plugin import Codes, Plugin
from koord.scheduler.framework.verdict import ROW, SKIP, Fault, Only, Reject, Skip, reject
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo
from koord.scheduler.state.shape import HostPort
from koord.scheduler.state.table import NodeTable, Rows

_EVERY_ADDRESS = "0.0.0.0"
_REFUSAL = reject("node(s) didn't have free ports for the requested pod ports")


class NodePorts(Plugin):
    name = "NodePorts"
    scope = ROW
    wakes_on = (Event("Node", ADD), Event("Pod", DELETE))

    def might_help(self, pod: PodInfo, happened: Happened) -> bool:
        if happened.event.kind == "Node":
            return True
        gone: PodInfo = happened.old
        if not gone.node_name and not gone.nominated_node:
            return False
        return any(_taken(wanted, gone.shape.host_ports) for wanted in pod.shape.host_ports)

    def pre_filter(self, cycle: Cycle, pod: PodInfo) -> Reject | Skip | Only | Fault | None:
        return None if pod.shape.host_ports else SKIP

    def filter(self, cycle: Cycle, pod: PodInfo, node: NodeInfo) -> Reject | None:
        held = node.ports
        if held and any(_taken(wanted, held) for wanted in pod.shape.host_ports):
            return _REFUSAL
        return None

    def filter_columns(self, cycle: Cycle, pod: PodInfo, table: NodeTable, rows: Rows) -> Codes:
        codes = np.zeros(len(table.alive[rows]), np.int32)
        for wanted in pod.shape.host_ports:
            codes |= table.column((self.name, wanted), np.bool_, partial(_clashes, wanted))[rows]
        return codes

    def explain_code(self, cycle: Cycle, pod: PodInfo, code: int) -> Reject:
        return _REFUSAL


def _clashes(wanted: HostPort, node: NodeInfo) -> bool:
    return _taken(wanted, node.ports)


def _taken(wanted: HostPort, held: Iterable[HostPort]) -> bool:
    """Return whether the port conflicts with a held one: equal protocol and number, and a shared address.

    All addresses are shared with 0.0.0.0.
    """
    protocol, address, number = wanted
    return any(
        port == number and kind == protocol and (other == address or _EVERY_ADDRESS in (other, address))
        for kind, other, port in held
    )
