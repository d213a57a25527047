"""Writes each node's NodeMetric spec: what its koordlet collects and how often it reports. koordlet owns the status."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.api.koordinator.protocol import A_COLOCATION_STRATEGY
from koord.api.koordinator.slo import NodeMetric
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.manager.colocation.strategy import decide_metric_collection, resolve_strategy
from koord.manager.configuration.watcher import SloControllerConfig
from koord.manager.context import ManagerContext
from koord.manager.controllers.per_node_object import DesiredSpec, PerNodeObjectController, node_object_metrics
from koord.telemetry.metrics import MetricDeclaration, MetricReading

COUNTS = node_object_metrics("nodemetric", "NodeMetric")
# Beyond upstream: the age of a report is the first thing to look at when a node lends nothing.
UPDATE_TIME = MetricDeclaration(
    "koord_manager_nodemetric_update_time_seconds",
    "Unix time of a node's last NodeMetric report; a node that never reported has no series.",
    "gauge",
    ("node",),
)
NODEMETRIC_METRICS = (COUNTS.reconciled, COUNTS.parsed, UPDATE_TIME)


class NodeMetricController(PerNodeObjectController[NodeMetric]):
    name: ClassVar[str] = "nodemetric"
    # Upstream waits for another change of the node when only the annotation changed.
    annotation: ClassVar[str] = A_COLOCATION_STRATEGY
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("nodes",), READ_VERBS),
        RbacRule("slo.koordinator.sh", ("nodemetrics",), (*READ_VERBS, "create", "patch", "delete")),
        RbacRule("events.k8s.io", ("events",), ("create", "patch")),
    )

    def __init__(self, context: ManagerContext, configuration: SloControllerConfig) -> None:
        super().__init__(context, NODE_METRICS, COUNTS)
        self._colocation = configuration.colocation
        self._colocation.on_change(self.enqueue_all)

    def readings(self) -> Iterable[MetricReading]:
        yield from super().readings()
        reported = ((one.metadata.name, one.status.update_time) for one in self.objects.list())
        yield UPDATE_TIME.reading([((name,), at.timestamp()) for name, at in sorted(reported) if at is not None])

    def decide(self, node: Node, stored: NodeMetric | None) -> DesiredSpec:
        config = self._colocation
        if not config.available:
            return DesiredSpec(None)
        if config.error and stored is not None:
            self.parse_counter.failed("getNodeMetricCollectPolicy")
            return DesiredSpec(None)  # what the cluster says is not what is in use: leave a node as it is
        self.parse_counter.succeeded()
        resolved = resolve_strategy(config.value, node.metadata.labels, node.metadata.annotations)
        return DesiredSpec(decide_metric_collection(resolved.strategy))
