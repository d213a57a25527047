"""Writes each node's NodeSLO from slo-controller-config and the node's labels and annotations."""

from __future__ import annotations

from typing import Any, ClassVar

from koord.api.koordinator.custom_kinds import NODE_SLOS
from koord.api.koordinator.protocol import A_NETWORK_BANDWIDTH
from koord.api.koordinator.slo import NodeSLO
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.manager.configuration.last_good import LastGoodDocument
from koord.manager.configuration.node_slo import NodeSloDecision, NodeSloSection, NodeSloSettings, decide_node_slo
from koord.manager.configuration.watcher import SloControllerConfig
from koord.manager.context import ManagerContext
from koord.manager.controllers.per_node_object import DesiredSpec, PerNodeObjectController, node_object_metrics

COUNTS = node_object_metrics("nodeslo", "NodeSLO")
NODESLO_METRICS = (COUNTS.reconciled, COUNTS.parsed)


class NodeSLOController(PerNodeObjectController[NodeSLO]):
    name: ClassVar[str] = "nodeslo"
    annotation: ClassVar[str] = A_NETWORK_BANDWIDTH
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("nodes",), READ_VERBS),
        RbacRule("slo.koordinator.sh", ("nodeslos",), (*READ_VERBS, "create", "patch", "delete")),
        RbacRule("events.k8s.io", ("events",), ("create", "patch")),
    )

    def __init__(self, context: ManagerContext, configuration: SloControllerConfig) -> None:
        super().__init__(context, NODE_SLOS, COUNTS)
        self._configuration = configuration
        self._documents: tuple[LastGoodDocument[Any], ...] = (
            configuration.threshold,
            configuration.qos,
            configuration.cpu_burst,
            configuration.system,
            configuration.host_applications,
            configuration.interference,
        )
        for kept in self._documents:
            kept.on_change(self.enqueue_all)

    def explain(self, node: Node) -> NodeSloDecision:
        """Return what the node's NodeSLO shall say and where each part comes from."""
        return self._decision(node, self.objects.get("", node.metadata.name))

    def decide(self, node: Node, stored: NodeSLO | None) -> DesiredSpec:
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
            interference=NodeSloSection(kept.interference.value, kept.interference.available),
        )
        meta = node.metadata
        return decide_node_slo(settings, meta.labels, meta.annotations, None if stored is None else stored.spec)
