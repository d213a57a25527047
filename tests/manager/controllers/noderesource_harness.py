"""A cluster in virtual time with a noderesource controller whose requests are remembered and can be made to fail."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

from koord.api.config.gates import default_feature_gates
from koord.api.koordinator.custom_kinds import DEVICES, NODE_METRICS, NODE_RESOURCE_TOPOLOGIES
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, EVENTS_EVENTS, NAMESPACES, NODES, PODS
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster, InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.interface import ApiRequest, ApiResponse, WatchStream
from koord.manager.configuration.watcher import SloControllerConfig
from koord.manager.controllers.noderesource import NodeResourceController
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.reconcile_loop import ManagerContext, ManagerSettings
from koord.telemetry.clock import LoopClock, run_virtual
from koord.values.timestamp import text

T = TypeVar("T")

NAMESPACE, NAME = "koordinator-system", "slo-controller-config"
BATCH_CPU = "kubernetes.io/batch-cpu"
ON = {"enable": True, "cpuReclaimThresholdPercent": 65, "memoryReclaimThresholdPercent": 65}

Plain = dict[str, Any]


class RecordingTransport:
    """Between the controller and the server. `before` sees each request first and may answer in the server's place."""

    def __init__(self, inner: InProcessTransport) -> None:
        self._inner = inner
        self.requests: list[ApiRequest] = []
        self.before: Callable[[ApiRequest], Awaitable[ApiResponse | None]] | None = None

    async def send(self, request: ApiRequest) -> ApiResponse:
        self.requests.append(request)
        if self.before is not None and (answer := await self.before(request)) is not None:
            return answer
        return await self._inner.send(request)

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        self.requests.append(request)
        return await self._inner.watch(request)

    async def close(self) -> None:
        await self._inner.close()

    @property
    def writes(self) -> list[ApiRequest]:
        """Of the controller; events are the recorder's."""
        return [r for r in self.requests if r.method != "GET" and "/events" not in r.path]


class NodeResourceHarness:
    def __init__(self, client: Client, wire: RecordingTransport, clock: LoopClock, **settings: Any) -> None:
        self.client = client
        self.wire = wire
        self.clock = clock
        self.settings = ManagerSettings(**{"gates": default_feature_gates(MANAGER_GATES), **settings})
        self.controller: NodeResourceController
        self._ends: list[Callable[[], Awaitable[None]]] = []

    # -- the manager

    async def manage(self) -> None:
        """Start a manager, as after a restart: it knows nothing but what the cluster shows."""
        own = Client(self.wire, clock=self.clock, qps=0, burst=0)
        informers = InformerFactory(own, self.clock, seed=1)
        recorder = EventRecorder(own, self.clock, controller="koord-manager", instance="koord-manager-test")
        context = ManagerContext(
            client=own, informers=informers, clock=self.clock, recorder=recorder, settings=self.settings
        )
        configuration = SloControllerConfig(context)
        self.controller = NodeResourceController(context, configuration)
        recorder.start()
        informers.start()
        await configuration.start()
        await self.controller.start()
        self._ends = [self.controller.stop, configuration.stop, informers.stop, recorder.stop]
        await self.settle()

    async def unmanage(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            await end()

    async def settle(self, seconds: float = 2.0) -> None:
        await self.clock.sleep(seconds)

    # -- the cluster

    async def configure(self, colocation: Plain | str = ON, **other: Plain) -> None:
        documents: dict[str, Any] = {"colocation-config": colocation, **other}
        data = {key: value if isinstance(value, str) else json.dumps(value) for key, value in documents.items()}
        body = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data}
        await self.client.apply(CONFIG_MAPS, body, field_manager="test", force=True, namespace=NAMESPACE)

    async def node(self, name: str = "n1", **given: Any) -> None:
        size = {"cpu": "100", "memory": "120G"}
        meta = {"name": name, "annotations": {"owner": "somebody"}, **given.pop("metadata", {})}
        status = {"capacity": size, "allocatable": size, **given}
        unwrap(await self.client.create(NODES, {"metadata": meta, "status": status}))
        unwrap(await self.client.dynamic.patch(NODES, name, {"status": status}, kind="merge", subresource="status"))

    async def report(self, name: str = "n1", *, cpu: Any = 7, age_s: float = 0, **status: Any) -> None:
        """The koordlet's part: create the NodeMetric where it is missing, and write its status."""
        found = await self.client.get(NODE_METRICS, name)
        if isinstance(found, ApiError):
            assert found.not_found
            unwrap(await self.client.create(NODE_METRICS, {"metadata": {"name": name}, "spec": {}}))
        at = datetime.fromtimestamp(self.clock.time() - age_s, UTC)
        usage = {"resources": {"cpu": str(cpu), "memory": "12G"}}
        body = {
            "updateTime": text(at),
            "nodeMetric": {"nodeUsage": usage, "systemUsage": usage},
            "podsMetric": [],
            **status,
        }
        unwrap(
            await self.client.dynamic.patch(NODE_METRICS, name, {"status": body}, kind="merge", subresource="status")
        )

    async def pod(self, name: str, node: str = "n1", cpu: str = "20") -> None:
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu, "memory": "20G"}}}
        body = {
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": node, "containers": [container]},
        }
        unwrap(await self.client.create(PODS, body))

    async def topology(self, *zones: Plain, name: str = "n1") -> None:
        made = [
            {
                "name": f"node-{i}",
                "type": "Node",
                "resources": [{"name": n, "capacity": v, "allocatable": v, "available": v} for n, v in zone.items()],
            }
            for i, zone in enumerate(zones)
        ]
        body = {"metadata": {"name": name}, "topologyPolicies": ["None"], "zones": made}
        unwrap(await self.client.create(NODE_RESOURCE_TOPOLOGIES, body))

    async def device(self, *infos: Plain, name: str = "n1") -> None:
        body = {"metadata": {"name": name}, "spec": {"devices": list(infos)}}
        unwrap(await self.client.apply(DEVICES, body, field_manager="test", force=True))

    async def show(self, name: str = "n1") -> Plain:
        return unwrap(await self.client.dynamic.get(NODES, name))

    async def lent(self, name: str = "n1", resource: str = BATCH_CPU) -> str | None:
        found: str | None = (await self.show(name))["status"]["allocatable"].get(resource)
        return found

    async def zones(self, name: str = "n1") -> list[Plain]:
        found: list[Plain] = unwrap(await self.client.dynamic.get(NODE_RESOURCE_TOPOLOGIES, name))["zones"]
        return found

    async def reasons(self) -> list[str]:
        """Of the events about nodes."""
        events = unwrap(await self.client.dynamic.list(EVENTS_EVENTS)).items
        return [event["reason"] for event in events if event["regarding"]["kind"] == "Node"]


def run_in_harness(main: Callable[[NodeResourceHarness], Awaitable[T]], **settings: Any) -> T:
    async def run(clock: LoopClock) -> T:
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), clock=clock)
        await cluster.start()
        try:
            assert cluster.client is not None
            assert cluster.server is not None
            harness = NodeResourceHarness(
                cluster.client, RecordingTransport(InProcessTransport(cluster.server)), clock, **settings
            )
            await cluster.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
            try:
                return await main(harness)
            finally:
                await harness.unmanage()
        finally:
            await cluster.stop()

    return run_virtual(run)
