"""The informers of the noderesource controller, and which changes enqueue a node."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from koord.api.protocol import A_CPU_BASIC_INFO
from koord.kube.cache import Change
from koord.kube.informer import Informer
from koord.kube.informers import Informers
from koord.kube.subscription import Subscription
from koord.policy.colocation import wire
from koord.policy.colocation.decision import NodeView
from koord.policy.colocation.zone import capacities

_BY_NODE = "noderesource-node"


class Sight:
    def __init__(self, informers: Informers, resync_s: float = 0.0) -> None:
        """Every node is enqueued each `resync_s` seconds; 0: only when something changed."""
        self.nodes = informers.of(wire.NODES, transform=wire.slim_node, resync_s=resync_s or None)
        self.pods = informers.of(wire.PODS, transform=wire.slim_pod)
        self.metrics = informers.of(wire.NODE_METRICS, transform=wire.slim_metric)
        self.topologies = informers.of(wire.TOPOLOGIES, transform=wire.slim_topology)
        self.devices = informers.of(wire.DEVICES, transform=wire.slim_device)
        if not self.pods.has_index(_BY_NODE):
            self.pods.add_index(_BY_NODE, lambda pod: (pod.spec.node_name,))
        self._heard: list[tuple[Informer[Any], Subscription[Any]]] = []

    async def wait_synced(self) -> None:
        """Wait until every cache is synced: a NodeMetric that is not listed yet must not look missing."""
        for informer in (self.nodes, self.pods, self.metrics, self.topologies, self.devices):
            await informer.wait_synced()

    def view(self, node: wire.Node, now: datetime) -> NodeView:
        name = node.metadata.name
        return NodeView(
            now=now,
            node=node,
            metric=self.metrics.get("", name),
            pods=[pod.share for pod in self.pods.by_index(_BY_NODE, name) if pod.share is not None],
            topology=self.topologies.get("", name),
            device=self.devices.get("", name),
        )

    def listen(
        self,
        look: Callable[[str], object],
        *,
        node_gone: Callable[[str], object],
        metric_gone: Callable[[str], object],
        topology_gone: Callable[[str], object],
    ) -> None:
        """Call `look` with the node's name when something that decides about it changed.

        Pods are not subscribed to: their usage arrives with the next NodeMetric.
        """

        def node(change: Change[wire.Node]) -> None:
            if change.kind == "deleted":
                node_gone(change.object.metadata.name)
            look(change.object.metadata.name)

        def metric(change: Change[wire.NodeMetric]) -> None:
            name = change.object.metadata.name
            if change.kind == "deleted":
                metric_gone(name)
                look(name)
            elif _new_report(change):
                look(name)

        def topology(change: Change[wire.Topology]) -> None:
            name = change.object.metadata.name
            if change.kind == "deleted":
                topology_gone(name)
            elif _new_hardware(change):
                look(name)

        def device(change: Change[wire.Device]) -> None:
            if change.kind != "updated" or change.old is None or change.old.spec != change.object.spec:
                look(change.object.metadata.name)

        self._heard = [
            (self.nodes, self.nodes.on(node)),
            (self.metrics, self.metrics.on(metric)),
            (self.topologies, self.topologies.on(topology)),
            (self.devices, self.devices.on(device)),
        ]

    def ignore(self) -> None:
        for informer, subscription in self._heard:
            informer.off(subscription)
        self._heard = []


def _new_report(change: Change[wire.NodeMetric]) -> bool:
    """Return whether a NodeMetric holds a new report. A new object is empty; one with a report was only unseen,
    and counts.
    """
    if change.old is None:
        return not change.initial and change.object.status.update_time is not None
    return change.old.status != change.object.status


def _new_hardware(change: Change[wire.Topology]) -> bool:
    """Return whether zones came or changed in size, or the CPU changed. Own writes do not count."""
    new = change.object
    if change.old is None:
        return bool(capacities(new)) or A_CPU_BASIC_INFO in new.metadata.annotations
    old = change.old
    return old.metadata.annotations != new.metadata.annotations or capacities(old) != capacities(new)
