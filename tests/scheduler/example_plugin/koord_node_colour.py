"""Pods that say a colour run only on nodes of that colour; emptier nodes are preferred."""

from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import Reject, unresolvable


class NodeColour(Plugin):
    name = "NodeColour"

    def filter(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Reject | None:
        wanted = pod.labels.get("example.com/colour")
        if wanted is None or node.labels.get("example.com/colour") == wanted:
            return None
        return unresolvable(f"node(s) were not {wanted}")

    def score(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> int:
        return max(0, 100 - len(node.pods))
