"""Writes each node's NodeMetric spec: what its koordlet collects and how often it reports. koordlet owns the
status.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from koord.api.core import Node
from koord.api.custom import NODE_METRICS
from koord.api.protocol import A_COLOCATION_STRATEGY
from koord.api.right import READ, Right
from koord.api.slo import NodeMetric
from koord.kube.controller import Outcome
from koord.manager.configuration.configuration import Configuration
from koord.manager.controllers.companion import Companion, Wanted
from koord.manager.controllers.tally import Tally
from koord.manager.world import World
from koord.policy.colocation.collection import decide_collection
from koord.policy.colocation.strategy import resolve
from koord.telemetry.metrics.registry import Reading


class NodeMetricController:
    name: ClassVar[str] = "nodemetric"
    rights: ClassVar[tuple[Right, ...]] = (
        Right("", ("nodes",), READ),
        Right("slo.koordinator.sh", ("nodemetrics",), (*READ, "create", "patch", "delete")),
    )

    def __init__(self, world: World, configuration: Configuration) -> None:
        self._colocation = configuration.colocation
        self.parses = Tally("slo_controller_nodemetric_spec_parse_count", "The count of parsing nodeMetric.spec")
        reconciles = Tally("slo_controller_nodemetric_reconcile_count", "The count of reconciling nodeMetric")
        self.companion = Companion(self.name, world, NODE_METRICS, self._decide, reconciles, relevant=_relevant)
        self._colocation.on_change(self.companion.enqueue_all)

    async def start(self) -> None:
        await self.companion.start()

    async def stop(self) -> None:
        await self.companion.stop()

    async def reconcile(self, key: str) -> Outcome:
        return await self.companion.reconcile(key)

    def readings(self) -> Iterable[Reading]:
        return (self.companion.tally.reading(), self.parses.reading())

    def _decide(self, node: Node, stored: NodeMetric | None) -> Wanted:
        config = self._colocation
        if not config.available:
            return Wanted(None)
        if config.error and stored is not None:
            self.parses.failed("getNodeMetricCollectPolicy")
            return Wanted(None)  # what the cluster says is not what is in use: leave a node as it is
        self.parses.succeeded()
        resolved = resolve(config.value, node.metadata.labels, node.metadata.annotations)
        return Wanted(decide_collection(resolved.strategy))


def _relevant(before: Node, after: Node) -> bool:
    """Return whether the change matters. Upstream waits for another change of the node when only the annotation
    changed.
    """
    return before.metadata.labels != after.metadata.labels or before.metadata.annotations.get(
        A_COLOCATION_STRATEGY
    ) != after.metadata.annotations.get(A_COLOCATION_STRATEGY)
