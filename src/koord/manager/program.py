"""koord-manager as a component: every controller and webhook, built from one context, and its explain endpoint.

Webhooks run on all replicas, controllers on the leader alone. Ports, certificates and leader election are added by
whoever runs it: `koord-manager` over HTTPS, `koord up` inside one process.

Informer transforms are for a process where only the manager reads pods and NodeMetrics: a tenth of their bytes. Pods
of one template share their containers. Inside `koord up` other components read the same caches, and nothing is cut.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any, ClassVar, Protocol

import msgspec

from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.api.koordinator.slo import NodeMetric
from koord.api.kubernetes.builtin_kinds import PODS
from koord.api.kubernetes.pod import Container, Pod, PodSpec, PodStatus
from koord.api.kubernetes.rbac import RbacRule
from koord.api.model import Submodel, decode, encode
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.kube.leader_election import lease_rules
from koord.manager.configuration.watcher import SloControllerConfig
from koord.manager.controllers.colocation_profile import ColocationProfileController, ProfileControllerOptions
from koord.manager.controllers.noderesource import NodeResourceController
from koord.manager.controllers.per_node_object import NodeMetricController, NodeSLOController
from koord.manager.controllers.quota_profile import QuotaProfileController
from koord.manager.controllers.recommender.controller import RecommenderController
from koord.manager.controllers.webhook_bypass import WebhookBypassController
from koord.manager.plugin import ManagerPlugins
from koord.manager.quota_topology_cache import EvaluatorOptions, QuotaEvaluator, QuotaTopologyCache
from koord.manager.reconcile_loop import ManagerContext, ManagerSettings
from koord.manager.webhook_server.cert_rotator import CertRotator
from koord.manager.webhook_server.handlers import WebhookHandlers, WebhookOptions
from koord.manager.webhook_server.metrics import WebhookMetrics
from koord.manager.webhook_server.self_probe import WebhookSelfProbe, WebhookServing, WebhookServingSettings
from koord.telemetry import http_routing
from koord.telemetry.component_server import ComponentServer, ServiceRoutes
from koord.telemetry.http_routing import HttpCall, HttpReply
from koord.telemetry.metrics import MetricDeclaration, MetricReading, MetricRegistry

_LOG = logging.getLogger(__name__)


class ManagerController(Protocol):
    name: ClassVar[str]
    rights: ClassVar[tuple[RbacRule, ...]]

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class ManagerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line beside the context's settings."""

    controllers: tuple[str, ...] = ("*",)  # "*", "name", "-name"
    profile_controller: ProfileControllerOptions = ProfileControllerOptions()
    evaluator: EvaluatorOptions = EvaluatorOptions()
    webhooks: WebhookOptions = WebhookOptions()
    plugins: ManagerPlugins = ManagerPlugins()  # of other packages


# In the order of starting. The gate, where there is one, must be on as well.
CONTROLLERS: tuple[
    tuple[
        type[ManagerController], str, Callable[[ManagerContext, SloControllerConfig, ManagerOptions], ManagerController]
    ],
    ...,
] = (
    (NodeMetricController, "", lambda w, c, _: NodeMetricController(w, c)),
    (NodeResourceController, "", lambda w, c, options: NodeResourceController(w, c, options.plugins.node_resources)),
    (NodeSLOController, "", lambda w, c, options: NodeSLOController(w, c, options.plugins.node_slo)),
    (QuotaProfileController, "", lambda w, _, __: QuotaProfileController(w)),
    (
        ColocationProfileController,
        ColocationProfileController.gate,
        lambda w, _, options: ColocationProfileController(w, options.profile_controller),
    ),
    (RecommenderController, "", lambda w, _, __: RecommenderController(w)),
    (WebhookBypassController, "PodMutatingWebhook", lambda w, _, __: WebhookBypassController(w)),
)
CONTROLLER_NAMES = tuple(kind.name for kind, _, _ in CONTROLLERS)

LEASE_NAME = "koordinator-manager"
IS_LEADER = MetricDeclaration(
    "koordinator_manager_is_leader", "1 while this replica holds the lease and its controllers run, 0 otherwise."
)


def rbac_rules() -> tuple[RbacRule, ...]:
    """Return all RBAC rules that koord-manager may ever need, whatever its gates."""
    parts: Sequence[Any] = (
        EventRecorder,
        *(kind for kind, _, _ in CONTROLLERS),
        SloControllerConfig,
        WebhookHandlers,
        CertRotator,
        WebhookSelfProbe,
    )
    return (*lease_rules(LEASE_NAME), *(right for part in parts for right in part.rights))


def unknown_controllers(controllers: Iterable[str]) -> list[str]:
    return [name for name in controllers if name != "*" and name.removeprefix("-") not in CONTROLLER_NAMES]


def is_enabled(name: str, controllers: Sequence[str]) -> bool:
    """Return whether a controller is enabled: the first exact name decides, without one the star."""
    for word in controllers:
        if word in (name, f"-{name}"):
            return word == name
    return "*" in controllers


class Manager:
    """Build it before the informers start. `start` is for every replica, the leading calls for the leader."""

    def __init__(
        self,
        context: ManagerContext,
        options: ManagerOptions = ManagerOptions(),  # noqa: B008 - a frozen value
        *,
        registry: MetricRegistry | None = None,
        seed: int | None = None,
        webhook_client: Client | None = None,
        serving: WebhookServingSettings | None = None,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        """Build all parts. Without `serving` no webhook is served over HTTPS.

        `webhook_client` is for what webhooks write: every replica serves them, so the client of `context`, which may
        write only while it leads, is not for them.
        """
        self.context = context
        self.everywhere = context if webhook_client is None else msgspec.structs.replace(context, client=webhook_client)
        self.registry = registry if registry is not None else MetricRegistry()
        self.metrics = WebhookMetrics(self.registry)
        self.configuration = SloControllerConfig(context)
        self.quotas = QuotaTopologyCache(context)
        self.evaluator = QuotaEvaluator(self.everywhere, self.quotas, options.evaluator, Random(seed))
        self.webhook_handlers = WebhookHandlers(
            self.everywhere, self.quotas, self.evaluator, self.metrics, options.webhooks, Random(seed)
        )
        self.webhook_serving: WebhookServing | None = None
        if serving is not None:
            self.webhook_serving = WebhookServing(
                self.everywhere,
                self.webhook_handlers.handlers,
                self.metrics,
                serving,
                excluded=self.webhook_handlers.excluded_namespaces,
                pages={"/elasticQuota": self.quotas.to_json},
                leads=leads,
            )
        self.controllers = tuple(
            make(context, self.configuration, options)
            for kind, gate, make in CONTROLLERS
            if is_enabled(kind.name, options.controllers) and (not gate or context.settings.is_gate_enabled(gate))
        )
        self._leads = leads
        self._started: list[ManagerController] = []
        self.registry.source(self._readings)

    async def start(self) -> None:
        self.context.recorder.start()
        await self.configuration.start()
        await self.quotas.start()

    async def on_synced(self) -> None:
        if self.webhook_serving is not None:
            await self.webhook_serving.start()

    async def lead(self) -> None:
        await self.start_leading()
        try:
            await asyncio.Event().wait()
        finally:
            await self.stop_leading()

    async def stop(self) -> None:
        if self.webhook_serving is not None:
            await self.webhook_serving.stop()
        await self.stop_leading()
        await self.evaluator.stop()
        await self.quotas.stop()
        await self.configuration.stop()
        await self.context.recorder.stop()

    async def start_leading(self) -> None:
        for controller in self.controllers:
            self._started.append(controller)
            await controller.start()
        _LOG.info("controllers run: %s", ", ".join(controller.name for controller in self.controllers) or "none")

    async def stop_leading(self) -> None:
        """Stop the controllers; one that fails to stop does not keep the others running."""
        stopping, self._started = self._started[::-1], []
        ends = await asyncio.gather(*(controller.stop() for controller in stopping), return_exceptions=True)
        for controller, end in zip(stopping, ends, strict=True):
            if isinstance(end, Exception):
                _LOG.error("controller %s did not stop cleanly", controller.name, exc_info=end)

    def _readings(self) -> Iterable[MetricReading]:
        yield IS_LEADER.reading((((), float(self._leads())),))
        yield from self.configuration.readings()
        yield from self.quotas.readings()
        for controller in self.controllers:
            yield from getattr(controller, "readings", tuple)()


EXPLAIN_NODES_PATH = "/noderesource/nodes"


def serve_explanations(endpoint: ComponentServer, manager: Manager, leads: Callable[[], bool]) -> None:
    controller = next((one for one in manager.controllers if isinstance(one, NodeResourceController)), None)

    def unavailable() -> str | None:
        if controller is None:
            return "the noderesource controller does not run"
        return None if leads() else "this replica does not lead"

    def changes(call: HttpCall) -> dict[str, Any] | HttpReply:
        assert controller is not None  # `unavailable` came first
        name = call.parameters["name"]
        if controller.informers.nodes.get("", name) is None:
            return http_routing.error_reply(404, f"there is no node {name}")
        return {"node": name, "changes": controller.history.changes_of(name)}

    ServiceRoutes(endpoint, unavailable=unavailable).add("GET", f"{EXPLAIN_NODES_PATH}/:name", changes)


_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class _SharedContainers(Submodel, frozen=True, kw_only=True):
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


def register_transforms(informers: InformerFactory, settings: ManagerSettings) -> None:
    """Register the transforms before anyone else requests these kinds. The profile controller needs whole pods."""
    if not settings.is_gate_enabled(ColocationProfileController.gate):
        informers.for_resource(PODS, transform=trim_pod)
    informers.for_resource(NODE_METRICS, transform=trim_node_metric)


def trim_pod(pod: Pod) -> Pod:
    meta, spec, status = pod.metadata, pod.spec, pod.status
    if _LAST_APPLIED in meta.annotations:
        kept = {key: value for key, value in meta.annotations.items() if key != _LAST_APPLIED}
        meta = msgspec.structs.replace(meta, annotations=kept)
    make = _shared_containers(
        encode(
            _SharedContainers(
                containers=_trim_containers(spec.containers), init_containers=_trim_containers(spec.init_containers)
            )
        )
    )
    return Pod(
        metadata=meta,
        spec=PodSpec(
            node_name=spec.node_name,
            scheduler_name=spec.scheduler_name,
            priority=spec.priority,
            priority_class_name=spec.priority_class_name,
            containers=make.containers,
            init_containers=make.init_containers,
            resources=spec.resources,
            overhead=spec.overhead,
        ),
        status=PodStatus(phase=status.phase, qos_class=status.qos_class),
    )


def trim_node_metric(metric: NodeMetric) -> NodeMetric:
    """Keep the usage of pods; that of the node, with its percentiles, is most of a report and is read elsewhere."""
    return msgspec.structs.replace(metric, status=msgspec.structs.replace(metric.status, node_metric=None))


def _trim_containers(containers: tuple[Container, ...]) -> tuple[Container, ...]:
    return tuple(
        Container(name=one.name, resources=one.resources, restart_policy=one.restart_policy) for one in containers
    )


@functools.lru_cache(maxsize=8192)
def _shared_containers(raw: bytes) -> _SharedContainers:
    return decode(raw, _SharedContainers)
