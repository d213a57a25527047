"""Keeps one cluster-scoped object per node, named as the node: creates, updates and deletes it with the node.

NodeMetric's spec says what the node's koordlet collects and how often it reports; koordlet owns the status. NodeSLO is
made from slo-controller-config and the node's labels and annotations.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from koord.api.koordinator.custom_kinds import NODE_METRICS, NODE_SLOS
from koord.api.koordinator.protocol import A_COLOCATION_STRATEGY, A_NETWORK_BANDWIDTH
from koord.api.koordinator.slo import Extensions, NodeMetric, NodeSLO
from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.rbac import READ_VERBS, RbacRule
from koord.api.kubernetes.resource import Resource
from koord.api.model import to_dict
from koord.api.patch.merge_patch import create_merge_patch
from koord.kube.controller.controller import Done, ReconcileResult, Requeue, RequeueAfter
from koord.kube.events.recorder import object_reference
from koord.kube.informer.cache import ObjectChange
from koord.kube.rate_limit import RateLimitedLog
from koord.kube.transport.api_error import ApiError
from koord.manager.colocation.strategy import decide_metric_collection, resolve_strategy
from koord.manager.configuration.documents import LastGoodDocument
from koord.manager.configuration.node_slo import NodeSloDecision, NodeSloSection, NodeSloSettings, decide_node_slo
from koord.manager.configuration.watcher import SloControllerConfig
from koord.manager.plugin import NodeSloExtension, run_node_slo_extensions
from koord.manager.reconcile_loop import ManagerContext, ReconcileCounter, ReconcileLoop, reconcile_count
from koord.telemetry.metrics import MetricDeclaration, MetricReading

O = TypeVar("O", bound=Object)  # noqa: E741  an object

_LOG = logging.getLogger(__name__)

WORKERS = 4
REFUSED_RETRY_S = 300.0
BAD_REQUEST = 400  # by a webhook


class NodeObjectMetrics(msgspec.Struct, frozen=True):
    """The metrics of one controller, under the names that dashboards know."""

    reconciled: MetricDeclaration
    parsed: MetricDeclaration


def node_object_metrics(controller: str, kind: str) -> NodeObjectMetrics:
    return NodeObjectMetrics(
        reconcile_count(f"slo_controller_{controller}_reconcile_count", f"Reconciliations of {kind}s, by outcome."),
        reconcile_count(
            f"slo_controller_{controller}_spec_parse_count",
            f"Computations of a {kind}'s spec from slo-controller-config, by outcome.",
        ),
    )


class DesiredSpec(msgspec.Struct, frozen=True):
    """The spec that the object shall have; None leaves it as it is, or does not create it."""

    spec: msgspec.Struct | None
    extra: Mapping[str, Any] = {}  # fields of a new object's spec that models leave out when they are empty


class PerNodeObjectController(ABC, Generic[O]):
    name: ClassVar[str]
    annotation: ClassVar[str]  # of the node: with its labels, all that the decision reads of it

    def __init__(self, context: ManagerContext, resource: Resource[O], metrics: NodeObjectMetrics) -> None:
        self.nodes = context.informers.for_resource(NODES)
        self.objects = context.informers.for_resource(resource)
        self.loop: ReconcileLoop[str] = ReconcileLoop(self.name, context.clock, self.reconcile, workers=WORKERS)
        self.counter = ReconcileCounter(metrics.reconciled)
        self.parse_counter = ReconcileCounter(metrics.parsed)
        self._context = context
        self._resource = resource
        self._quiet = RateLimitedLog(_LOG, context.clock)  # a setting that the schema refuses is refused for every node

    @abstractmethod
    def decide(self, node: Node, stored: O | None) -> DesiredSpec:
        """Return the spec of the node's object; `stored` is the object as it is."""

    async def start(self) -> None:
        self.loop.start(
            (self.nodes, self.objects),
            ((self.nodes, self._node_changed), (self.objects, self._object_changed)),
            resync_s=self._context.settings.sync_period_s,
            resync=self.enqueue_all,
        )

    async def stop(self) -> None:
        await self.loop.stop()

    def readings(self) -> Iterable[MetricReading]:
        return self.counter.reading(), self.parse_counter.reading()

    def enqueue_all(self) -> None:
        for node in self.nodes.list():
            self.loop.queue.add(node.metadata.name)

    async def reconcile(self, name: str) -> ReconcileResult:
        node, obj = self.nodes.get("", name), self.objects.get("", name)
        if node is None:
            return Done() if obj is None else await self._remove(obj)
        wanted = self.decide(node, obj)
        if wanted.spec is None:
            return Done()
        if obj is None:
            return await self._create(node, wanted)
        patch = create_merge_patch(to_dict(obj.spec), to_dict(wanted.spec))  # type: ignore[attr-defined]
        if not patch:
            return Done()
        return await self._update(node, obj, patch)

    async def _create(self, node: Node, wanted: DesiredSpec) -> ReconcileResult:
        assert wanted.spec is not None
        body = {"metadata": {"name": node.metadata.name}, "spec": {**wanted.extra, **to_dict(wanted.spec)}}
        answer = await self._context.client.create(self._resource, body)
        if isinstance(answer, ApiError) and answer.already_exists:
            return Requeue("made by somebody else meanwhile")  # the cache will show it
        return self._outcome(answer, f"create{self._resource.kind}", node)

    async def _update(self, node: Node, obj: O, patch: dict[str, Any]) -> ReconcileResult:
        answer = await self._context.client.patch_object(self._resource, obj, {"spec": patch}, kind="merge")
        if isinstance(answer, ApiError) and (answer.not_found or answer.conflict):
            return Requeue("changed meanwhile")
        return self._outcome(answer, f"update{self._resource.kind}", node)

    async def _remove(self, obj: O) -> ReconcileResult:
        answer = await self._context.client.delete(self._resource, obj.metadata.name, uid=obj.metadata.uid)
        if isinstance(answer, ApiError) and answer.not_found:
            return Done()
        if isinstance(answer, ApiError) and answer.conflict:
            return Requeue("changed meanwhile")
        return self._outcome(answer, f"delete{self._resource.kind}")

    def _outcome(self, answer: object, reason: str, node: Node | None = None) -> ReconcileResult:
        if not isinstance(answer, ApiError):
            self.counter.succeeded(reason)
            return Done()
        self.counter.failed(reason)
        self._quiet.warning("%s: %s refused: %s", self.name, reason, answer)
        if node is None or not (answer.invalid or answer.code == BAD_REQUEST):
            return Requeue(str(answer))
        # The same object would be refused again: only other settings, or another schema, can change that.
        message = f"its {self._resource.kind} keeps what it has: {answer.message}"
        self._context.recorder.record(
            object_reference(NODES, node), "Warning", f"{self._resource.kind}Refused", message
        )
        return RequeueAfter(REFUSED_RETRY_S)

    def _node_changed(self, change: ObjectChange[Node]) -> None:
        old, new = change.old, change.object.metadata
        if (
            change.kind != "updated"
            or old is None
            or old.metadata.labels != new.labels
            or old.metadata.annotations.get(self.annotation) != new.annotations.get(self.annotation)
        ):
            self.loop.queue.add(new.name)

    def _object_changed(self, change: ObjectChange[O]) -> None:
        """Enqueue on a new generation only: koordlets write the status every minute."""
        old = change.old
        if (
            change.kind == "updated"
            and old is not None
            and old.metadata.generation == change.object.metadata.generation
        ):
            return
        self.loop.queue.add(change.object.metadata.name)


NODEMETRIC_COUNTS = node_object_metrics("nodemetric", "NodeMetric")
# Beyond upstream: the age of a report is the first thing to look at when a node lends nothing.
UPDATE_TIME = MetricDeclaration(
    "koord_manager_nodemetric_update_time_seconds",
    "Unix time of a node's last NodeMetric report; a node that never reported has no series.",
    "gauge",
    ("node",),
)
NODEMETRIC_METRICS = (NODEMETRIC_COUNTS.reconciled, NODEMETRIC_COUNTS.parsed, UPDATE_TIME)


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
        super().__init__(context, NODE_METRICS, NODEMETRIC_COUNTS)
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


NODESLO_COUNTS = node_object_metrics("nodeslo", "NodeSLO")
NODESLO_METRICS = (NODESLO_COUNTS.reconciled, NODESLO_COUNTS.parsed)


class NodeSLOController(PerNodeObjectController[NodeSLO]):
    name: ClassVar[str] = "nodeslo"
    annotation: ClassVar[str] = A_NETWORK_BANDWIDTH
    rights: ClassVar[tuple[RbacRule, ...]] = (
        RbacRule("", ("nodes",), READ_VERBS),
        RbacRule("slo.koordinator.sh", ("nodeslos",), (*READ_VERBS, "create", "patch", "delete")),
        RbacRule("events.k8s.io", ("events",), ("create", "patch")),
    )

    def __init__(
        self,
        context: ManagerContext,
        configuration: SloControllerConfig,
        plugins: Mapping[str, NodeSloExtension] = MappingProxyType({}),
    ) -> None:
        super().__init__(context, NODE_SLOS, NODESLO_COUNTS)
        self._plugins = plugins
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
        if plugins:
            configuration.watcher.on_change(self.enqueue_all)

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
        decision = decide_node_slo(settings, meta.labels, meta.annotations, None if stored is None else stored.spec)
        if not self._plugins:
            return decision
        had = (decision.spec.extensions and decision.spec.extensions.object) or {}
        wanted = run_node_slo_extensions(self._plugins, node, kept.watcher.data, had)
        if wanted == had:
            return decision
        spec = msgspec.structs.replace(decision.spec, extensions=Extensions(object=wanted or None))
        return msgspec.structs.replace(decision, spec=spec)
