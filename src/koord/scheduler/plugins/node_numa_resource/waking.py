"""NodeNUMAResource gives pods CPUs and NUMA nodes of their own, and rejects nodes that cannot.

It reads NodeResourceTopology. `cache` holds who has what; `node_evaluator` handles one node,
`batch_evaluator` many.
"""

from __future__ import annotations

from koord.api.protocol import A_RESOURCE_STATUS
from koord.policy.topology.refusal import Short
from koord.scheduler.framework.event import Happened
from koord.scheduler.plugins.node_numa_resource.demand import Demands, signature
from koord.scheduler.plugins.node_numa_resource.judge import Judge
from koord.scheduler.state.cluster import ClusterState
from koord.scheduler.state.node import NodeInfo
from koord.scheduler.state.pod import PodInfo


class Waking:
    """The queueing hints: decide whether an event may turn a rejection.

    All caches show the event already. A node that the event is not about stays as it was, so only the one that
    it is about is evaluated.
    """

    def __init__(self, demands: Demands, judge: Judge, state: ClusterState) -> None:
        self._demands = demands
        self._judge = judge
        self._state = state

    def sees_hope(self, pod: PodInfo, happened: Happened) -> bool:
        kind = happened.event.kind
        if kind == "Pod":
            return self._pod_helps(pod, happened.old, happened.new)
        if kind in ("NodeResourceTopology", "Node"):
            found = happened.new if happened.new is not None else happened.old
            node = self._state.node(found.metadata.name)
            return node is not None and self._could_take(pod, node)
        return True  # a device or a reservation: other plugins decide

    def _could_take(self, pod: PodInfo, node: NodeInfo) -> bool:
        """Return whether the node could ever take the pod; an invalid demand is changed by no event."""
        demand = self._demands.of(pod)
        return not isinstance(demand, Short) and not (
            demand.wish.binds and self._judge.sites.of(node).topology.usable.bit_count() < demand.wish.count
        )

    def _pod_helps(self, pod: PodInfo, before: PodInfo | None, now: PodInfo | None) -> bool:
        if now is not None and now.uid == pod.uid:
            return before is None or signature(before) != signature(now) or before.requests != now.requests
        if before is None or not before.node_name:
            return False
        node = self._state.node(before.node_name)
        if node is None:
            return False
        # It held CPUs or NUMA amounts, or it counted on an amplified node; or it stood for a reservation.
        held = A_RESOURCE_STATUS in before.annotations or before.reserve
        return (held or self._judge.sites.of(node).strict) and self._could_take(pod, node)
