"""The noderesource controller: reconciles a node when its NodeMetric, the node or a setting changed."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

from koord.api.resource_name import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY
from koord.api.right import READ, Right
from koord.kube.controller import Controller, Done, Outcome, Requeue, Retry
from koord.kube.workqueue import WorkQueue
from koord.manager.configuration.configuration import Configuration
from koord.manager.controllers.noderesource.news import News
from koord.manager.controllers.noderesource.pen import Pen
from koord.manager.controllers.noderesource.sight import Sight
from koord.manager.controllers.tally import FAILED, SUCCEEDED, Tally
from koord.manager.explain.history import History
from koord.manager.world import World
from koord.policy.colocation.decision import Decision, NodeView, Settings, decide, enabled_parts
from koord.policy.colocation.difference import decide_write
from koord.policy.colocation.zone import decide_zones
from koord.telemetry.clock import now
from koord.telemetry.metrics.registry import Reading

_LOG = logging.getLogger(__name__)

WORKERS = 4
GPU_SHARED_GATE = "EnableSyncGPUSharedResource"


class NodeResourceController:
    name: ClassVar[str] = "noderesource"
    rights: ClassVar[tuple[Right, ...]] = (
        Right("", ("nodes", "pods"), READ),
        Right("", ("nodes/status",), ("patch",)),
        Right("slo.koordinator.sh", ("nodemetrics",), READ),
        Right("scheduling.koordinator.sh", ("devices",), READ),
        Right("topology.node.k8s.io", ("noderesourcetopologies",), (*READ, "patch")),
        Right("events.k8s.io", ("events",), ("create", "patch")),
    )

    def __init__(self, world: World, configuration: Configuration) -> None:
        self._clock = world.clock
        self._configuration = configuration
        self._parts = enabled_parts(world.settings.plugins)
        self._gpu_shared = world.settings.gate(GPU_SHARED_GATE)
        self.tally = Tally("slo_controller_node_resource_reconcile_count", "The count of reconciling node resource")
        self._runs: Counter[tuple[str, str, str]] = Counter()
        self.sight = Sight(world.informers, world.settings.sync_period_s)
        self.queue: WorkQueue[str] = WorkQueue(world.clock, name=self.name)
        self._pen = Pen(world.client, world.clock, self.tally)
        self._news = News(world.recorder)
        self._controller = Controller(self.name, self.queue, self.reconcile, workers=WORKERS)
        self._synced_at: dict[str, float] = {}  # when each node's resources were last brought in line
        self._zones_synced_at: dict[str, float] = {}
        self._lent: dict[str, Decision] = {}
        self.history = History()
        self._task: asyncio.Task[None] | None = None
        self._configured = (
            configuration.colocation,
            configuration.cpu_normalization,
            configuration.resource_amplification,
        )
        for kept in self._configured:
            kept.on_change(self._look_at_all)

    async def start(self) -> None:
        self.sight.listen(
            self.queue.add,
            node_gone=self._forget,
            metric_gone=self._forget_sync,
            topology_gone=self._forget_zones,
        )
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        self.sight.ignore()
        self.queue.shutdown(drain=False)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def reconcile(self, key: str) -> Outcome:
        if not self._configuration.colocation.available:
            return Done()
        node = self.sight.nodes.get("", key)
        if node is None:
            self._forget(key)
            self.tally.failed("reconcileNodeNotFound")
            return Done()
        view = self.sight.view(node, now(self._clock))
        decision = decide(view, self.settings())
        self._lent[key] = decision
        self._count(decision)
        self._news.tell(node, decision.degraded)
        refused = [why for why in (await self._write_zones(view, decision), await self._write(view, decision)) if why]
        if refused:
            return Requeue("; ".join(refused))
        return self._until_expiry(view, decision)

    def explain(self, name: str) -> Decision | None:
        """Return what would be decided now, with all its terms; None without such a node or a configuration."""
        node = self.sight.nodes.get("", name)
        if node is None or not self._configuration.colocation.available:
            return None
        return decide(self.sight.view(node, now(self._clock)), self.settings())

    def settings(self) -> Settings:
        colocation, normalization, amplification = self._configured
        return Settings(
            colocation=colocation.value,
            # One that was never readable says nothing about any node, so it must not undo what is written there.
            normalization=normalization.value if normalization.available else None,
            amplification=amplification.value if amplification.available else None,
            parts=self._parts,
            gpu_shared=self._gpu_shared,
        )

    def readings(self) -> Iterable[Reading]:
        values = tuple(
            (labels, amount)
            for name, decision in sorted(self._lent.items())
            for labels, amount in _allocatable(name, decision)
        )
        yield self.tally.reading()
        yield Reading(
            "slo_controller_node_resource_run_plugin_status",
            "the status of running plugins of the node resource controller",
            "counter",
            ("plugin", "status", "reason"),
            tuple((labels, float(count)) for labels, count in sorted(self._runs.items())),
        )
        yield Reading(
            "slo_controller_node_extended_resource_allocatable_internal",
            "the internal allocatable of extended resources which is updated by koord-manager",
            "gauge",
            ("node", "resource", "unit"),
            values,
        )

    def _count(self, decision: Decision) -> None:
        step = "ResourceCalculate" if decision.enabled else "ResourceReset"
        for part, fine in decision.outcomes.items():
            self._runs[part, SUCCEEDED if fine else FAILED, step] += 1

    def remembered(self) -> int:
        """Return the number of nodes that some state is kept of."""
        return len({*self._synced_at, *self._zones_synced_at, *self._lent, *self._news.told, *self.history})

    async def _run(self) -> None:
        await self.sight.wait_synced()
        await self._controller.run()

    async def _write(self, view: NodeView, decision: Decision) -> str:
        node, key = view.node, view.node.metadata.name
        write = decide_write(node, decision, self._since(self._synced_at, key))
        if not write.empty:
            refused = await self._pen.node(node, write)
            if refused is not None:
                return str(refused)
            _LOG.debug("node %s: written because of %s", key, ", ".join(write.reasons))
            if write.allocatable:
                self.history.note(view.now, node, decision, write.allocatable, write.reasons)
        if write.status_due:
            self._synced_at[key] = self._clock.monotonic()
        return ""

    async def _write_zones(self, view: NodeView, decision: Decision) -> str:
        if decision.batch is None or not decision.batch.zones:
            return ""
        key = view.node.metadata.name
        since = self._since(self._zones_synced_at, key)
        overdue = since is not None and since > decision.rules.update_seconds
        ratio = None if decision.normalization is None else decision.normalization.ratio
        threshold = decision.rules.diff_threshold
        if decide_zones(view.topology, decision.batch.zones, ratio, threshold, overdue=overdue):
            refused = await self._pen.zones(key, decision, overdue=overdue)
            if refused is not None:
                return str(refused)
        elif since is not None and not overdue:
            return ""
        self._zones_synced_at[key] = self._clock.monotonic()
        return ""

    def _until_expiry(self, view: NodeView, decision: Decision) -> Outcome:
        """Requeue when the NodeMetric expires: a koordlet that falls silent sends no event."""
        metric = view.metric
        if not decision.enabled or decision.degraded is not None or metric is None or metric.status.update_time is None:
            return Done()
        age_s = (view.now - metric.status.update_time).total_seconds()
        return Retry(max(1.0, decision.rules.degrade_minutes * 60 - age_s + 1.0))

    def _since(self, times: dict[str, float], key: str) -> float | None:
        at = times.get(key)
        return None if at is None else self._clock.monotonic() - at

    def _look_at_all(self) -> None:
        for node in self.sight.nodes.list():
            self.queue.add(node.metadata.name)

    def _forget_sync(self, name: str) -> None:
        self._synced_at.pop(name, None)

    def _forget_zones(self, name: str) -> None:
        self._zones_synced_at.pop(name, None)

    def _forget(self, name: str) -> None:
        self._forget_sync(name)
        self._forget_zones(name)
        self._lent.pop(name, None)
        self.history.forget(name)
        self._news.forget(name)


def _allocatable(name: str, decision: Decision) -> Iterable[tuple[tuple[str, str, str], float]]:
    """Yield the allocatable in upstream's units: batch-cpu in cores, mid-cpu in milli-cores."""
    batch, mid = decision.batch, decision.mid
    if batch is not None and batch.cpu_milli is not None and batch.memory is not None:
        yield (name, BATCH_CPU, "integer"), batch.cpu_milli / 1000
        yield (name, BATCH_MEMORY, "byte"), float(batch.memory)
    if mid is not None and mid.cpu is not None and mid.memory is not None:
        yield (name, MID_CPU, "integer"), float(mid.cpu.result)
        yield (name, MID_MEMORY, "byte"), float(mid.memory.result)
