"""The informers of the noderesource controller, and which changes enqueue a node."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from koord.api.koordinator.protocol import A_CPU_BASIC_INFO
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import Informer
from koord.manager.colocation import models
from koord.manager.colocation.decision import ColocationNodeView
from koord.manager.colocation.numa_zones import zone_capacities

_BY_NODE = "noderesource-node"


class NodeResourceInformers:
    def __init__(self, informers: InformerFactory, resync_s: float = 0.0) -> None:
        """Every node is enqueued each `resync_s` seconds; 0: only when something changed."""
        self.nodes = informers.for_resource(models.NODES, transform=models.transform_node, resync_s=resync_s or None)
        self.pods = informers.for_resource(models.PODS, transform=models.transform_pod)
        self.metrics = informers.for_resource(models.NODE_METRICS, transform=models.transform_metric)
        self.topologies = informers.for_resource(models.TOPOLOGIES, transform=models.transform_topology)
        self.devices = informers.for_resource(models.DEVICES, transform=models.transform_device)
        if not self.pods.has_index(_BY_NODE):
            self.pods.add_index(_BY_NODE, lambda pod: (pod.spec.node_name,))
        # All must be synced: a NodeMetric that is not listed yet must not look missing.
        self.all: tuple[Informer[Any], ...] = (self.nodes, self.pods, self.metrics, self.topologies, self.devices)

    def node_view(self, node: models.ColocationNode, now: datetime) -> ColocationNodeView:
        name = node.metadata.name
        return ColocationNodeView(
            now=now,
            node=node,
            metric=self.metrics.get("", name),
            pods=[pod.share for pod in self.pods.by_index(_BY_NODE, name) if pod.share is not None],
            topology=self.topologies.get("", name),
            device=self.devices.get("", name),
        )

    def handlers(
        self,
        look: Callable[[str], object],
        *,
        node_gone: Callable[[str], object],
        metric_gone: Callable[[str], object],
        topology_gone: Callable[[str], object],
    ) -> tuple[tuple[Informer[Any], Callable[[Any], object]], ...]:
        """Return handlers that call `look` with the node's name when something that decides about it changed.

        Pods have none: their usage arrives with the next NodeMetric.
        """

        def node(change: ObjectChange[models.ColocationNode]) -> None:
            if change.kind == "deleted":
                node_gone(change.object.metadata.name)
            look(change.object.metadata.name)

        def metric(change: ObjectChange[models.ColocationNodeMetric]) -> None:
            name = change.object.metadata.name
            if change.kind == "deleted":
                metric_gone(name)
                look(name)
            elif _is_new_report(change):
                look(name)

        def topology(change: ObjectChange[models.ColocationTopology]) -> None:
            name = change.object.metadata.name
            if change.kind == "deleted":
                topology_gone(name)
            elif _is_new_hardware(change):
                look(name)

        def device(change: ObjectChange[models.ColocationDevice]) -> None:
            if change.kind != "updated" or change.old is None or change.old.spec != change.object.spec:
                look(change.object.metadata.name)

        return (self.nodes, node), (self.metrics, metric), (self.topologies, topology), (self.devices, device)


def _is_new_report(change: ObjectChange[models.ColocationNodeMetric]) -> bool:
    """Return whether there is a new report. A new object is empty; one with a report was only unseen, and counts."""
    if change.old is None:
        return not change.initial and change.object.status.update_time is not None
    return change.old.status != change.object.status


def _is_new_hardware(change: ObjectChange[models.ColocationTopology]) -> bool:
    """Return whether zones came or changed in size, or the CPU changed. Own writes do not count."""
    new = change.object
    if change.old is None:
        return bool(zone_capacities(new)) or A_CPU_BASIC_INFO in new.metadata.annotations
    old = change.old
    return old.metadata.annotations != new.metadata.annotations or zone_capacities(old) != zone_capacities(new)
