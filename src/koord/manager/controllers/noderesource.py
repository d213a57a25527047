"""The noderesource controller: keeps batch and mid resources, devices and ratios written on each node.

It reconciles a node when its NodeMetric, the node or a setting changed, and writes its decisions as patches of the node
and its topology, and as events.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from random import Random
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec

from koord.api.koordinator.custom_kinds import NODE_RESOURCE_TOPOLOGIES
from koord.api.koordinator.protocol import A_CPU_BASIC_INFO
from koord.api.koordinator.resource_name import BATCH_CPU, BATCH_MEMORY, GPU_SHARED, MID_CPU, MID_MEMORY
from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.kube.client.typed_client import Client
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, RequeueAfter
from koord.kube.events.recorder import EventRecorder, EventType, object_reference
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import Informer
from koord.kube.rate_limit import jitter
from koord.kube.transport.api_error import ApiError
from koord.manager import reconcile_loop
from koord.manager.colocation import models
from koord.manager.colocation.decision import (
    ColocationDecision,
    ColocationNodeView,
    ColocationSettings,
    decide_colocation,
    enabled_plugins,
    revise_zones,
    should_write_zones,
    zone_capacities,
)
from koord.manager.colocation.models import ColocationNode
from koord.manager.colocation.node_metric import EXPECTED_CAUSES, DegradeCause, DegradedMetric
from koord.manager.colocation.node_patch import NodePatch, decide_node_patch
from koord.manager.configuration.watcher import SloControllerConfig
from koord.manager.explain.lending_history import NodeLendingHistory
from koord.manager.plugin import NodeResourcePlugin, run_node_resource_plugins
from koord.manager.reconcile_loop import ReconcileCounter
from koord.telemetry.clock import Clock, now
from koord.telemetry.metrics import MetricDeclaration, MetricReading

MAX_TRIES = 4
BACKOFF_BASE_S, BACKOFF_FACTOR, BACKOFF_JITTER = 0.01, 5.0, 0.1


class NodeResourceWriter:
    def __init__(self, client: Client, clock: Clock, counter: ReconcileCounter, rng: Random) -> None:
        self._client = client
        self._clock = clock
        self._counter = counter
        self._rng = rng

    async def patch_node(self, node: ColocationNode, write: NodePatch) -> ApiError | None:
        """Patch resources and metadata at once: a node's status subresource accepts annotations and labels.

        A node that is gone, or another one of its name, needs nothing more.
        """
        meta = node.metadata
        reason = "updateNodeStatus" if write.status_due else "patchNodeMeta"
        answer = await self._client.dynamic.patch(
            NODES, meta.name, write.patch(), kind="merge", subresource="status", uid=meta.uid
        )
        if not isinstance(answer, ApiError):
            self._counter.succeeded(reason)
            return None
        if answer.not_found or (answer.code == 422 and answer.conflict):
            self._counter.failed("updateNodeNotFound")
            return None
        self._counter.failed(reason)
        return answer

    async def patch_zones(self, name: str, decision: ColocationDecision, *, overdue: bool) -> ApiError | None:
        """Patch the zones. They are one list, and the koordlet writes it too: read, change own entries, write that
        version.

        The object is read as plain data, so that fields that no model knows are kept.
        """
        if decision.batch is None:
            return None
        ratio = None if decision.normalization is None else decision.normalization.ratio
        refused: ApiError | None = None
        for tried in range(MAX_TRIES):
            if tried:
                await self._clock.sleep(
                    jitter(BACKOFF_BASE_S * BACKOFF_FACTOR ** (tried - 1), BACKOFF_JITTER, self._rng)
                )
            found = await self._client.dynamic.get(NODE_RESOURCE_TOPOLOGIES, name)
            if isinstance(found, ApiError):
                return None if found.not_found else self._failed(found)
            zones = revise_zones(
                found.get("zones") or [], decision.batch.zones, ratio, decision.rules.diff_threshold, overdue=overdue
            )
            if zones is None:
                return None
            answer = await self._client.dynamic.patch(
                NODE_RESOURCE_TOPOLOGIES,
                name,
                {"zones": zones},
                kind="merge",
                uid=found["metadata"]["uid"],
                resource_version=found["metadata"]["resourceVersion"],
            )
            if not isinstance(answer, ApiError):
                self._counter.succeeded("updateNodeResourceTopology")
                return None
            if answer.not_found:
                return None
            refused = answer
            if not answer.conflict:
                break
        return None if refused is None else self._failed(refused)

    def _failed(self, refused: ApiError) -> ApiError:
        self._counter.failed("updateNodeResourceTopology")
        return refused


ABNORMAL_REASON = "NodeMetricAbnormal"
RESTORED_REASON = "NodeMetricRestored"
GPU_SHARED_REASON = "GPUSharedNotSynced"

_LOG = logging.getLogger(__name__)


class NodeEventReporter:
    """Records an event on the node when its NodeMetric becomes unusable or usable again: once per change.

    A node that never reported gets no event: its koordlet may not have started yet.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self.reported: dict[str, DegradeCause] = {}
        self._without_gpu_shared: set[str] = set()

    def report(self, node: ColocationNode, degraded: DegradedMetric | None) -> None:
        """Record the change, if any. `degraded` is None for a usable report and for a node without co-location."""
        name = node.metadata.name
        before = self.reported.get(name)
        if degraded is not None and degraded.cause not in EXPECTED_CAUSES:
            if degraded.cause != before:
                self.reported[name] = degraded.cause
                self._record(node, "Warning", ABNORMAL_REASON, f"nothing is lent to batch and mid pods: {degraded}")
        elif before is not None:
            del self.reported[name]
            if degraded is None:
                self._record(node, "Normal", RESTORED_REASON, "the NodeMetric is usable again")

    def report_gpu_shared(self, node: ColocationNode, *, synced: bool) -> None:
        """Say once of a node with GPUs that no pod that shares one fits on it."""
        name = node.metadata.name
        if synced or GPU_SHARED in node.status.allocatable:
            self._without_gpu_shared.discard(name)
        elif name not in self._without_gpu_shared:
            self._without_gpu_shared.add(name)
            message = (
                f"pods that share GPUs are made to ask for {GPU_SHARED}, which this node does not offer:"
                " start koord-manager with --feature-gates=EnableSyncGPUSharedResource=true"
            )
            self._record(node, "Warning", GPU_SHARED_REASON, message)

    def forget(self, name: str) -> None:
        self.reported.pop(name, None)
        self._without_gpu_shared.discard(name)

    def _record(self, node: ColocationNode, type: EventType, reason: str, message: str) -> None:
        _LOG.info("node %s: %s: %s", node.metadata.name, reason, message)
        self._recorder.record(object_reference(NODES, node), type, reason, message)


WORKERS = 4
GPU_SHARED_GATE = "EnableSyncGPUSharedResource"
RECONCILED = reconcile_loop.reconcile_count(
    "slo_controller_node_resource_reconcile_count", "Reconciliations of nodes' batch and mid resources, by outcome."
)
PLUGIN_RUNS = MetricDeclaration(
    "slo_controller_node_resource_run_plugin_status",
    "Runs of the plugins that compute batch and mid resources of a node, by outcome and by step.",
    "counter",
    ("plugin", "status", "reason"),
)
EXTENDED_ALLOCATABLE = MetricDeclaration(
    "slo_controller_node_extended_resource_allocatable_internal",
    "Batch and mid resources computed for a node: batch-cpu in cores, mid-cpu in thousandths, memory in bytes.",
    "gauge",
    ("node", "resource", "unit"),
)
NODERESOURCE_METRICS = (RECONCILED, PLUGIN_RUNS, EXTENDED_ALLOCATABLE)

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


class NodeResourceController:
    name: ClassVar[str] = "noderesource"
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("nodes", "pods"), READ_VERBS),
        RbacRule("", ("nodes/status",), ("patch",)),
        RbacRule("slo.koordinator.sh", ("nodemetrics",), READ_VERBS),
        RbacRule("scheduling.koordinator.sh", ("devices",), READ_VERBS),
        RbacRule("topology.node.k8s.io", ("noderesourcetopologies",), (*READ_VERBS, "patch")),
        RbacRule("events.k8s.io", ("events",), ("create", "patch")),
    )

    def __init__(
        self,
        context: reconcile_loop.ManagerContext,
        configuration: SloControllerConfig,
        plugins: Mapping[str, NodeResourcePlugin] = MappingProxyType({}),
    ) -> None:
        self._plugins = plugins
        self._clock = context.clock
        self._configuration = configuration
        self._parts = enabled_plugins(context.settings.plugins)
        gate = context.settings.is_gate_enabled
        self._gpu_shared = gate(GPU_SHARED_GATE)
        self._webhook_asks_for_gpu_shared = gate("PodMutatingWebhook") and not gate("DisableDeviceResourceSpec")
        self.counter = reconcile_loop.ReconcileCounter(RECONCILED)
        self._plugin_runs: Counter[tuple[str, str, str]] = Counter()
        self.informers = NodeResourceInformers(context.informers, context.settings.sync_period_s)
        self.loop: reconcile_loop.ReconcileLoop[str] = reconcile_loop.ReconcileLoop(
            self.name, context.clock, self.reconcile, workers=WORKERS
        )
        self._writer = NodeResourceWriter(context.client, context.clock, self.counter, context.rng)
        self._event_reporter = NodeEventReporter(context.recorder)
        self._synced_at: dict[str, float] = {}  # when each node's resources were last brought in line
        self._zones_synced_at: dict[str, float] = {}
        self._decisions: dict[str, ColocationDecision] = {}
        self.history = NodeLendingHistory()
        self._documents = (
            configuration.colocation,
            configuration.cpu_normalization,
            configuration.resource_amplification,
        )
        for kept in self._documents:
            kept.on_change(self._enqueue_all)

    async def start(self) -> None:
        self.loop.start(
            self.informers.all,
            self.informers.handlers(
                self._enqueue, node_gone=self._forget, metric_gone=self._forget_sync, topology_gone=self._forget_zones
            ),
        )

    async def stop(self) -> None:
        await self.loop.stop()

    async def reconcile(self, key: str) -> ReconcileResult:
        if not self._configuration.colocation.available:
            return Done()
        node = self.informers.nodes.get("", key)
        if node is None:
            self._forget(key)
            self.counter.failed("reconcileNodeNotFound")
            return Done()
        view = self.informers.node_view(node, now(self._clock))
        decision = self._decide(view)
        self._decisions[key] = decision
        self._count_plugin_runs(decision)
        self._event_reporter.report(node, decision.degraded)
        if decision.gpu is not None and decision.gpu.healthy and self._webhook_asks_for_gpu_shared:
            self._event_reporter.report_gpu_shared(node, synced=self._gpu_shared)
        refused = [why for why in (await self._write_zones(view, decision), await self._write(view, decision)) if why]
        if refused:
            return Requeue("; ".join(refused))
        return self._requeue_at_expiry(view, decision)

    def explain(self, name: str) -> ColocationDecision | None:
        """Return what would be decided now, with all its terms; None without such a node or a configuration."""
        node = self.informers.nodes.get("", name)
        if node is None or not self._configuration.colocation.available:
            return None
        return self._decide(self.informers.node_view(node, now(self._clock)))

    def _decide(self, view: ColocationNodeView) -> ColocationDecision:
        decision = decide_colocation(view, self.settings())
        if not self._plugins:
            return decision
        return msgspec.structs.replace(decision, of_plugins=run_node_resource_plugins(self._plugins, view))

    def settings(self) -> ColocationSettings:
        colocation, normalization, amplification = self._documents
        return ColocationSettings(
            colocation=colocation.value,
            # One that was never readable says nothing about any node, so it must not undo what is written there.
            normalization=normalization.value if normalization.available else None,
            amplification=amplification.value if amplification.available else None,
            parts=self._parts,
            gpu_shared=self._gpu_shared,
        )

    def readings(self) -> Iterable[MetricReading]:
        values = tuple(
            (labels, amount)
            for name, decision in sorted(self._decisions.items())
            for labels, amount in _allocatable(name, decision)
        )
        yield self.counter.reading()
        yield PLUGIN_RUNS.reading(tuple((labels, float(count)) for labels, count in sorted(self._plugin_runs.items())))
        yield EXTENDED_ALLOCATABLE.reading(values)

    def _count_plugin_runs(self, decision: ColocationDecision) -> None:
        step = "ResourceCalculate" if decision.enabled else "ResourceReset"
        for part, fine in decision.outcomes.items():
            self._plugin_runs[part, reconcile_loop.SUCCEEDED if fine else reconcile_loop.FAILED, step] += 1

    def remembered_nodes(self) -> int:
        """Return the number of nodes that some state is kept of."""
        return len(
            {*self._synced_at, *self._zones_synced_at, *self._decisions, *self._event_reporter.reported, *self.history}
        )

    async def _write(self, view: ColocationNodeView, decision: ColocationDecision) -> str:
        node, key = view.node, view.node.metadata.name
        write = decide_node_patch(node, decision, self._seconds_since(self._synced_at, key))
        if not write.is_empty:
            refused = await self._writer.patch_node(node, write)
            if refused is not None:
                return str(refused)
            _LOG.debug("node %s: written because of %s", key, ", ".join(write.reasons))
            if write.allocatable:
                self.history.record(view.now, node, decision, write.allocatable, write.reasons)
        if write.status_due:
            self._synced_at[key] = self._clock.monotonic()
        return ""

    async def _write_zones(self, view: ColocationNodeView, decision: ColocationDecision) -> str:
        if decision.batch is None or not decision.batch.zones:
            return ""
        key = view.node.metadata.name
        since = self._seconds_since(self._zones_synced_at, key)
        overdue = since is not None and since > decision.rules.update_seconds
        ratio = None if decision.normalization is None else decision.normalization.ratio
        threshold = decision.rules.diff_threshold
        if should_write_zones(view.topology, decision.batch.zones, ratio, threshold, overdue=overdue):
            refused = await self._writer.patch_zones(key, decision, overdue=overdue)
            if refused is not None:
                return str(refused)
        elif since is not None and not overdue:
            return ""
        self._zones_synced_at[key] = self._clock.monotonic()
        return ""

    def _requeue_at_expiry(self, view: ColocationNodeView, decision: ColocationDecision) -> ReconcileResult:
        """Requeue when the NodeMetric expires: a koordlet that falls silent sends no event."""
        metric = view.metric
        if not decision.enabled or decision.degraded is not None or metric is None or metric.status.update_time is None:
            return Done()
        age_s = (view.now - metric.status.update_time).total_seconds()
        return RequeueAfter(max(1.0, decision.rules.degrade_minutes * 60 - age_s + 1.0))

    def _seconds_since(self, times: dict[str, float], key: str) -> float | None:
        at = times.get(key)
        return None if at is None else self._clock.monotonic() - at

    def _enqueue(self, name: str) -> None:
        self.loop.queue.add(name)

    def _enqueue_all(self) -> None:
        for node in self.informers.nodes.list():
            self._enqueue(node.metadata.name)

    def _forget_sync(self, name: str) -> None:
        self._synced_at.pop(name, None)

    def _forget_zones(self, name: str) -> None:
        self._zones_synced_at.pop(name, None)

    def _forget(self, name: str) -> None:
        self._forget_sync(name)
        self._forget_zones(name)
        self._decisions.pop(name, None)
        self.history.forget(name)
        self._event_reporter.forget(name)


def _allocatable(name: str, decision: ColocationDecision) -> Iterable[tuple[tuple[str, str, str], float]]:
    """Yield the allocatable in upstream's units: batch-cpu in cores, mid-cpu in milli-cores."""
    batch, mid = decision.batch, decision.mid
    if batch is not None and batch.cpu_milli is not None and batch.memory is not None:
        yield (name, BATCH_CPU, "integer"), batch.cpu_milli / 1000
        yield (name, BATCH_MEMORY, "byte"), float(batch.memory)
    if mid is not None and mid.cpu is not None and mid.memory is not None:
        yield (name, MID_CPU, "integer"), float(mid.cpu.result)
        yield (name, MID_MEMORY, "byte"), float(mid.memory.result)
