"""Run a whole cluster in virtual time whose scheduler talks over a transport that can fail in every way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

from koord.api.config.scheduler.configuration import Extender
from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.api.kubernetes.pod import Pod
from koord.cli import scheduler_setup
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster, InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.interface import (
    ApiRequest,
    ApiResponse,
    Transport,
    Unreachable,
    UnstructuredBody,
    WatchStream,
)
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.cache.pod_model import PODS as SLIM
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.extender import ExtenderTransport, HttpExtenderTransport
from koord.scheduler.scheduler import Scheduler, StandaloneScheduler
from koord.scheduler.workload_auditor import WorkloadAuditorSettings
from koord.telemetry.clock import LoopClock
from koord.telemetry.metrics import MetricRegistry

RequestFate = Literal["well", "lost", "lost-after", "403", "409", "429", "500", "500-after", "503"]
WRITES = ("POST", "PATCH", "DELETE")


class FaultyTransport:
    """Fail requests: `fate` decides about each request; "-after" means that it took effect all the same."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.fate: Callable[[ApiRequest], RequestFate] = lambda _: "well"
        self.arrival: Callable[[ApiRequest], asyncio.Event | None] = lambda _: None  # arrives when the event is set
        self.cut = False
        self.requests: list[ApiRequest] = []
        self._streams: set[_BreakableWatch] = set()

    async def send(self, request: ApiRequest) -> ApiResponse:
        if self.cut:
            raise Unreachable("the wire is cut")
        self.requests.append(request)
        fate = self.fate(request)
        if fate == "lost":
            raise Unreachable("lost on the way")
        if fate in ("403", "409", "429", "500", "503"):
            return _status(int(fate))
        held = self.arrival(request)
        if held is not None:
            await held.wait()
        answer = await self._inner.send(request)
        if fate == "lost-after" or self.cut:
            raise Unreachable("the answer was lost")
        return _status(500) if fate == "500-after" else answer

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        if self.cut:
            raise Unreachable("the wire is cut")
        stream = await self._inner.watch(request)
        if isinstance(stream, ApiResponse):
            return stream
        wrapped = _BreakableWatch(stream, self._streams)
        self._streams.add(wrapped)
        return wrapped

    async def close(self) -> None:
        await self._inner.close()

    async def break_watches(self) -> None:
        for stream in tuple(self._streams):
            await stream.close()


class _BreakableWatch:
    def __init__(self, inner: WatchStream, among: set[_BreakableWatch]) -> None:
        self._inner = inner
        self._among = among

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for frame in self._inner:
            yield frame

    async def close(self) -> None:
        self._among.discard(self)
        await self._inner.close()


def _status(code: int) -> ApiResponse:
    body = {"kind": "Status", "status": "Failure", "code": code, "message": f"no: {code}", "reason": "Trouble"}
    return ApiResponse(status=code, body=UnstructuredBody(body))


class FaultyCluster:
    """Hold a cluster, a scheduler behind a faulty transport, and a witness that no pod ever changes its node."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        clock: LoopClock,
        wire: FaultyTransport,
        leading: StandaloneScheduler,
        informers: InformerFactory,
    ) -> None:
        assert cluster.client is not None
        self.cluster = cluster
        self.client = cluster.client
        self.clock = clock
        self.wire = wire
        self.leading = leading
        self.informers = informers
        self.nodes_of: dict[str, set[str]] = {}

    @property
    def scheduler(self) -> Scheduler:
        return self.leading.scheduler

    def witness(self, change: ObjectChange[Pod]) -> None:
        if change.object.spec.node_name:
            self.nodes_of.setdefault(change.object.metadata.uid, set()).add(change.object.spec.node_name)

    async def add_node(self, name: str, cpu: str = "4", **more: Any) -> None:
        room = {"cpu": cpu, "memory": "16Gi", "pods": "110"}
        body = {"metadata": {"name": name, **more}, "status": {"allocatable": room, "capacity": room}}
        unwrap(await self.client.create(NODES, body))

    async def add_pod(self, name: str, cpu: str = "1", **spec: Any) -> Pod:
        container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
        body = {"metadata": {"name": name, "namespace": "default"}, "spec": {"containers": [container], **spec}}
        return unwrap(await self.client.create(PODS, body))

    async def pod(self, name: str) -> Pod:
        return unwrap(await self.client.get(PODS, name, "default"))

    async def node_of(self, name: str) -> str:
        return (await self.pod(name)).spec.node_name

    async def remove_pod(self, name: str) -> None:
        answer = await self.client.delete(PODS, name, "default", grace_seconds=0)
        assert not isinstance(answer, ApiError) or answer.not_found

    async def settle(self, seconds: float = 400.0) -> None:
        """Wait long enough for every back-off and every retry; in virtual time that is nothing."""
        await self.clock.sleep(seconds)

    async def check(self) -> None:
        """Check what must be true whenever no binding is in progress."""
        live = {p.metadata.uid: p for p in unwrap(await self.client.list(PODS)).items}
        twice = {uid: nodes for uid, nodes in self.nodes_of.items() if len(nodes) > 1}
        assert not twice, "no pod is ever bound twice"
        state, queue = self.scheduler.state, self.scheduler.queue
        assert self.scheduler.binder.in_progress == 0
        assert not [p for p in state.pods() if state.is_assumed(p.uid)], "nothing stays assumed"
        bound = {uid: p.spec.node_name for uid, p in live.items() if p.spec.node_name}
        assert {p.uid: p.node_name for p in state.pods()} == bound
        waiting = {uid for uid, p in live.items() if not p.spec.node_name}
        assert {q.uid for q in queue.pods()} == waiting, "the queue holds exactly the live unassigned pods"
        _same_sums(state, await self.rebuilt())

    async def rebuilt(self) -> ClusterState:
        fresh = ClusterState()
        for node in unwrap(await self.client.list(NODES)).items:
            fresh.set_node(node)
        for pod in unwrap(await self.client.list(SLIM)).items:
            fresh.set_pod(pod)
        return fresh


def _same_sums(one: ClusterState, other: ClusterState) -> None:
    def sums(state: ClusterState) -> dict[str, Any]:
        return {n.name: (n.requested, n.nonzero_cpu, n.ports, set(n.pods)) for n in state.table.index.values()}

    assert sums(one) == sums(other), "the sums equal those of a rebuild"


@asynccontextmanager
async def faulty_cluster(
    clock: LoopClock,
    completed_config: CompletedConfig | None = None,
    seed: int = 1,
    registry: MetricRegistry | None = None,
    extender_transport: Callable[[Extender, str], ExtenderTransport] = HttpExtenderTransport,
    auditor: WorkloadAuditorSettings | None = None,
) -> AsyncIterator[FaultyCluster]:
    cluster = EmbeddedCluster(ClusterSettings(http=False, seed=seed), [], clock=clock)
    await cluster.start()
    assert cluster.server is not None
    assert cluster.informers is not None
    wire = FaultyTransport(InProcessTransport(cluster.server, "system:kube-scheduler"))
    client = Client(wire, clock=clock, qps=0, burst=0, chance=random.Random(seed))
    informers = InformerFactory(client, clock, seed=seed)
    made = completed_config or scheduler_setup.scheduler_assembly()
    assert not isinstance(made, str), made
    scheduler = Scheduler(
        client,
        informers,
        clock,
        made,
        seed=seed,
        registry=registry,
        extender_transport=extender_transport,
        auditor=auditor,
    )
    leading = StandaloneScheduler(scheduler)
    troubled = FaultyCluster(cluster, clock, wire, leading, informers)
    cluster.informers.for_resource(PODS).add_event_handler(troubled.witness)
    await leading.start()
    informers.start()
    await leading.scheduler.wait_synced()
    try:
        yield troubled
    finally:
        await leading.stop()
        await informers.stop()
        await cluster.stop()
