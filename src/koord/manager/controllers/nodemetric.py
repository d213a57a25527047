"""Writes each node's NodeMetric spec: what its koordlet collects and how often it reports. koordlet owns the
status.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.api.koordinator.protocol import A_COLOCATION_STRATEGY
from koord.api.koordinator.slo import NodeMetric
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.kube.controller.controller import ReconcileResult
from koord.manager.colocation.strategy import decide_metric_collection, resolve_strategy
from koord.manager.configuration.watcher import SloControllerConfig
from koord.manager.context import ManagerContext
from koord.manager.controllers.per_node_object import DesiredSpec, PerNodeObjectController
from koord.manager.controllers.reconcile_counter import ReconcileCounter
from koord.telemetry.metrics import MetricReading


class NodeMetricController:
    name: ClassVar[str] = "nodemetric"
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("nodes",), READ_VERBS),
        RbacRule("slo.koordinator.sh", ("nodemetrics",), (*READ_VERBS, "create", "patch", "delete")),
    )

    def __init__(self, context: ManagerContext, configuration: SloControllerConfig) -> None:
        self._colocation = configuration.colocation
        self.parse_counter = ReconcileCounter(
            "slo_controller_nodemetric_spec_parse_count", "The count of parsing nodeMetric.spec"
        )
        reconciles = ReconcileCounter(
            "slo_controller_nodemetric_reconcile_count", "The count of reconciling nodeMetric"
        )
        self.per_node_objects = PerNodeObjectController(
            self.name, context, NODE_METRICS, self._decide, reconciles, relevant=_is_relevant
        )
        self._colocation.on_change(self.per_node_objects.enqueue_all)

    async def start(self) -> None:
        await self.per_node_objects.start()

    async def stop(self) -> None:
        await self.per_node_objects.stop()

    async def reconcile(self, key: str) -> ReconcileResult:
        return await self.per_node_objects.reconcile(key)

    def readings(self) -> Iterable[MetricReading]:
        return (self.per_node_objects.counter.reading(), self.parse_counter.reading())

    def _decide(self, node: Node, stored: NodeMetric | None) -> DesiredSpec:
        config = self._colocation
        if not config.available:
            return DesiredSpec(None)
        if config.error and stored is not None:
            self.parse_counter.failed("getNodeMetricCollectPolicy")
            return DesiredSpec(None)  # what the cluster says is not what is in use: leave a node as it is
        self.parse_counter.succeeded()
        resolved = resolve_strategy(config.value, node.metadata.labels, node.metadata.annotations)
        return DesiredSpec(decide_metric_collection(resolved.strategy))


def _is_relevant(before: Node, after: Node) -> bool:
    """Return whether the change matters. Upstream waits for another change of the node when only the annotation
    changed.
    """
    return before.metadata.labels != after.metadata.labels or before.metadata.annotations.get(
        A_COLOCATION_STRATEGY
    ) != after.metadata.annotations.get(A_COLOCATION_STRATEGY)
