"""Writes each node's NodeSLO from slo-controller-config and the node's labels and annotations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from koord.api.core import Node
from koord.api.custom import NODE_SLOS
from koord.api.protocol import A_NETWORK_BANDWIDTH
from koord.api.right import READ, Right
from koord.api.slo import NodeSLO
from koord.kube.controller import Outcome
from koord.manager.configuration.configuration import Configuration
from koord.manager.configuration.kept import Kept
from koord.manager.controllers.companion import Companion, Wanted
from koord.manager.controllers.tally import Tally
from koord.manager.world import World
from koord.policy.qos.node_slo import Decision, Section, Settings, decide_node_slo
from koord.telemetry.metrics.registry import Reading


class NodeSLOController:
    name: ClassVar[str] = "nodeslo"
    rights: ClassVar[tuple[Right, ...]] = (
        Right("", ("nodes",), READ),
        Right("slo.koordinator.sh", ("nodeslos",), (*READ, "create", "patch", "delete")),
    )

    def __init__(self, world: World, configuration: Configuration) -> None:
        self._configuration = configuration
        self._documents: tuple[Kept[Any], ...] = (
            configuration.threshold,
            configuration.qos,
            configuration.cpu_burst,
            configuration.system,
            configuration.host_applications,
        )
        self.parses = Tally("slo_controller_nodeslo_spec_parse_count", "The count of parsing nodeSLO.spec")
        reconciles = Tally("slo_controller_nodeslo_reconcile_count", "The count of reconciling nodeSLO")
        self.companion = Companion(self.name, world, NODE_SLOS, self._decide, reconciles, relevant=_relevant)
        for kept in self._documents:
            kept.on_change(self.companion.enqueue_all)

    async def start(self) -> None:
        await self.companion.start()

    async def stop(self) -> None:
        await self.companion.stop()

    async def reconcile(self, key: str) -> Outcome:
        return await self.companion.reconcile(key)

    def explain(self, node: Node) -> Decision:
        """Return what the node's NodeSLO shall say and where each part comes from."""
        return self._decision(node, self.companion.objects.get("", node.metadata.name))

    def readings(self) -> Iterable[Reading]:
        return (self.companion.tally.reading(), self.parses.reading())

    def _decide(self, node: Node, stored: NodeSLO | None) -> Wanted:
        if not all(kept.seen for kept in self._documents):
            return Wanted(None)  # the ConfigMap is on its way; its arrival brings every node back here
        decision = self._decision(node, stored)
        if decision.flaw is None:
            self.parses.succeeded()
        else:
            self.parses.failed("getSystemConfigSpec")
        return Wanted(decision.spec, {"extensions": {}})

    def _decision(self, node: Node, stored: NodeSLO | None) -> Decision:
        kept = self._configuration
        settings = Settings(
            threshold=Section(kept.threshold.value, kept.threshold.available),
            qos=Section(kept.qos.value, kept.qos.available),
            cpu_burst=Section(kept.cpu_burst.value, kept.cpu_burst.available),
            system=Section(kept.system.value, kept.system.available),
            host_applications=Section(kept.host_applications.value, kept.host_applications.available),
        )
        meta = node.metadata
        return decide_node_slo(settings, meta.labels, meta.annotations, None if stored is None else stored.spec)


def _relevant(before: Node, after: Node) -> bool:
    return before.metadata.labels != after.metadata.labels or before.metadata.annotations.get(
        A_NETWORK_BANDWIDTH
    ) != after.metadata.annotations.get(A_NETWORK_BANDWIDTH)
