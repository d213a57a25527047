"""Writes each node's NodeSLO from slo-controller-config and the node's labels and annotations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from koord.api.koordinator.custom_kinds import NODE_SLOS
from koord.api.koordinator.protocol import A_NETWORK_BANDWIDTH
from koord.api.koordinator.slo import NodeSLO
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.kube.controller.controller import ReconcileResult
from koord.manager.configuration.last_good import LastGoodDocument
from koord.manager.configuration.node_slo import NodeSloDecision, NodeSloSection, NodeSloSettings, decide_node_slo
from koord.manager.configuration.watcher import SloControllerConfig
from koord.manager.context import ManagerContext
from koord.manager.controllers.per_node_object import DesiredSpec, PerNodeObjectController
from koord.manager.controllers.reconcile_counter import ReconcileCounter
from koord.telemetry.metrics import MetricReading


class NodeSLOController:
    name: ClassVar[str] = "nodeslo"
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("nodes",), READ_VERBS),
        RbacRule("slo.koordinator.sh", ("nodeslos",), (*READ_VERBS, "create", "patch", "delete")),
    )

    def __init__(self, context: ManagerContext, configuration: SloControllerConfig) -> None:
        self._configuration = configuration
        self._documents: tuple[LastGoodDocument[Any], ...] = (
            configuration.threshold,
            configuration.qos,
            configuration.cpu_burst,
            configuration.system,
            configuration.host_applications,
        )
        self.parse_counter = ReconcileCounter(
            "slo_controller_nodeslo_spec_parse_count", "The count of parsing nodeSLO.spec"
        )
        reconciles = ReconcileCounter("slo_controller_nodeslo_reconcile_count", "The count of reconciling nodeSLO")
        self.per_node_objects = PerNodeObjectController(
            self.name, context, NODE_SLOS, self._decide, reconciles, relevant=_is_relevant
        )
        for kept in self._documents:
            kept.on_change(self.per_node_objects.enqueue_all)

    async def start(self) -> None:
        await self.per_node_objects.start()

    async def stop(self) -> None:
        await self.per_node_objects.stop()

    async def reconcile(self, key: str) -> ReconcileResult:
        return await self.per_node_objects.reconcile(key)

    def explain(self, node: Node) -> NodeSloDecision:
        """Return what the node's NodeSLO shall say and where each part comes from."""
        return self._decision(node, self.per_node_objects.objects.get("", node.metadata.name))

    def readings(self) -> Iterable[MetricReading]:
        return (self.per_node_objects.counter.reading(), self.parse_counter.reading())

    def _decide(self, node: Node, stored: NodeSLO | None) -> DesiredSpec:
        if not all(kept.is_known for kept in self._documents):
            return DesiredSpec(None)  # the ConfigMap is on its way; its arrival brings every node back here
        decision = self._decision(node, stored)
        if decision.flaw is None:
            self.parse_counter.succeeded()
        else:
            self.parse_counter.failed("getSystemConfigSpec")
        return DesiredSpec(decision.spec, {"extensions": {}})

    def _decision(self, node: Node, stored: NodeSLO | None) -> NodeSloDecision:
        kept = self._configuration
        settings = NodeSloSettings(
            threshold=NodeSloSection(kept.threshold.value, kept.threshold.available),
            qos=NodeSloSection(kept.qos.value, kept.qos.available),
            cpu_burst=NodeSloSection(kept.cpu_burst.value, kept.cpu_burst.available),
            system=NodeSloSection(kept.system.value, kept.system.available),
            host_applications=NodeSloSection(kept.host_applications.value, kept.host_applications.available),
        )
        meta = node.metadata
        return decide_node_slo(settings, meta.labels, meta.annotations, None if stored is None else stored.spec)


def _is_relevant(before: Node, after: Node) -> bool:
    return before.metadata.labels != after.metadata.labels or before.metadata.annotations.get(
        A_NETWORK_BANDWIDTH
    ) != after.metadata.annotations.get(A_NETWORK_BANDWIDTH)
