"""A cluster in virtual time with deschedulers that can be killed, cut off and replaced; the test is all the rest.

Nobody else is there: reservations get their nodes, and pods their successors, when the test says so.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from koord.api.config.descheduler.plugin_args import API_VERSION
from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.koordinator.scheduling import PodMigrationJob, Reservation
from koord.api.kubernetes.builtin_kinds import NODES, PODS, REPLICA_SETS
from koord.api.kubernetes.pod import Pod
from koord.descheduler.configuration import DeschedulerSetup, build_setup, load_config
from koord.descheduler.context import DeschedulerContext, DeschedulerMetrics
from koord.descheduler.program import Descheduler
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster, InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.leader_election import LeaderElector, LeaseConfig
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.interface import ApiRequest, ApiResponse, Transport, Unreachable, WatchStream
from koord.telemetry.clock import LoopClock, run_virtual
from koord.telemetry.metrics import MetricRegistry
from tests.scheduler.faulty_cluster import FaultyTransport

SCHEDULER = "koord-scheduler"


def setup_of(
    *,
    interval: str = "0s",
    deschedule: dict[str, Any] | None = None,
    balance: dict[str, Any] | None = None,
    dry_run: bool = False,
    evictor: str = "",
    **migration: Any,
) -> DeschedulerSetup:
    """`deschedule` and `balance` are plugins with their arguments; the rest are arguments of MigrationController."""
    first, then = deschedule or {}, balance or {}
    other = {"enabled": [{"name": evictor}], "disabled": [{"name": "*"}]} if evictor else {}
    config = load_config(
        {
            "apiVersion": API_VERSION,
            "kind": "DeschedulerConfiguration",
            "deschedulingInterval": interval,
            "dryRun": dry_run,
            "profiles": [
                {
                    "name": "p",
                    "plugins": {
                        "deschedule": {"enabled": [{"name": name} for name in first]},
                        "balance": {"enabled": [{"name": name} for name in then]},
                        "evict": other,
                        "filter": other,
                    },
                    "pluginConfig": [
                        {"name": "MigrationController", "args": migration},
                        *({"name": name, "args": args} for name, args in {**first, **then}.items()),
                    ],
                }
            ],
        }
    )
    assert not isinstance(config, list), config
    made = build_setup(config)
    assert isinstance(made, DeschedulerSetup), made
    return made


class SlowTransport(FaultyTransport):
    """One whose watches can be held up: what happens meanwhile is seen later. It carries no writes of a process that
    does not lead.
    """

    def __init__(self, inner: Transport, may_write: Callable[[], bool]) -> None:
        super().__init__(inner)
        self._may_write = may_write
        self.moves = asyncio.Event()
        self.moves.set()
        self.held = ""

    def hold(self, path: str) -> None:
        """Watches of paths with this in them stand still."""
        self.held = path
        self.moves.clear()

    async def send(self, request: ApiRequest) -> ApiResponse:
        passes = request.method == "GET" or "/apis/events.k8s.io/" in request.path or "/leases" in request.path
        if not passes and not self._may_write():
            raise Unreachable("held back", sent=False)
        return await super().send(request)

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        stream = await super().watch(request)
        return stream if isinstance(stream, ApiResponse) else _HeldStream(stream, self, request.path)


class _HeldStream:
    def __init__(self, inner: WatchStream, wire: SlowTransport, path: str) -> None:
        self._inner = inner
        self._wire = wire
        self._path = path

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for frame in self._inner:
            if self._wire.held in self._path:
                await self._wire.moves.wait()
            yield frame

    async def close(self) -> None:
        await self._inner.close()


class Replica:
    """One process: with `elects` it works only while it holds the lease."""

    def __init__(
        self,
        harness: DeschedulerHarness,
        name: str,
        descheduler_setup: DeschedulerSetup,
        *,
        elects: bool = False,
        gates: frozenset[str] = frozenset(),
    ) -> None:
        assert harness.cluster.server is not None
        self.name = name
        clock = harness.clock
        self.wire = SlowTransport(
            InProcessTransport(harness.cluster.server, f"system:{name}"),
            lambda: self.election is None or self.election.is_leading,
        )
        self.client = Client(self.wire, clock=clock, qps=0, burst=0, chance=random.Random(1))
        self.informers = InformerFactory(self.client, clock, seed=1)
        self.recorder = EventRecorder(self.client, clock, controller="koord-descheduler", instance=name)
        self.registry = MetricRegistry()
        context = DeschedulerContext(
            client=self.client,
            informers=self.informers,
            clock=clock,
            recorder=self.recorder,
            metrics=DeschedulerMetrics(self.registry),
            identity=name,
            gates=gates,
        )
        self.descheduler = Descheduler(context, descheduler_setup)
        self.election: LeaderElector | None = None
        if elects:
            lease_client = Client(self.wire, clock=clock, qps=0, burst=0, chance=random.Random(2))
            config = LeaseConfig(name="koord-descheduler", namespace="default", identity=name)
            self.election = LeaderElector(lease_client, clock, config, on_started=self._lead, rng=random.Random(3))
        work: Any = self.election.run() if self.election is not None else self._lead()
        self.task: asyncio.Task[Any] = asyncio.create_task(work, name=name)

    async def _lead(self) -> None:
        self.recorder.start()
        self.informers.start()
        await self.informers.wait_for_cache_sync()
        await self.descheduler.lead()

    async def kill(self) -> None:
        """As a power cut: nothing that is still to be sent arrives."""
        self.wire.cut = True
        await self.wire.break_watches()
        await self.stop()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.informers.stop()
        await self.recorder.stop()

    def evictions(self) -> list[str]:
        """Names of the pods that it asked to leave."""
        return [r.path.split("/")[-2] for r in self.wire.requests if r.path.endswith("/eviction")]


class DeschedulerHarness:
    def __init__(self, cluster: EmbeddedCluster, clock: LoopClock) -> None:
        assert cluster.client is not None
        self.cluster = cluster
        self.clock = clock
        self.client = cluster.client
        self.replicas: list[Replica] = []
        self.gone: Counter[str] = Counter()  # uids of deleted pods

    def start(
        self, name: str = "one", *, elects: bool = False, gates: frozenset[str] = frozenset(), **config: Any
    ) -> Replica:
        replica = Replica(self, name, setup_of(**config), elects=elects, gates=gates)
        self.replicas.append(replica)
        return replica

    def witness(self, change: ObjectChange[Pod]) -> None:
        if change.kind == "deleted":
            self.gone[change.object.metadata.uid] += 1

    async def settle(self, seconds: float = 5.0) -> None:
        await self.clock.sleep(seconds)

    # The rest of the cluster -------------------------------------------------------------------------------------

    async def add_nodes(self, *names: str) -> None:
        room = {"cpu": "16", "memory": "64Gi", "pods": "110"}
        for name in names:
            unwrap(
                await self.client.create(
                    NODES, {"metadata": {"name": name}, "status": {"allocatable": room, "capacity": room}}
                )
            )

    async def add_workload(self, name: str = "rs", replicas: int = 10) -> None:
        labels = {"app": name}
        container = {"name": "c", "image": "app"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        unwrap(
            await self.client.create(REPLICA_SETS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
        )

    async def add_pod(
        self,
        name: str,
        node: str = "n1",
        *,
        owner: str = "rs",
        ready: bool = True,
        grace: int = 0,
        cpu: str = "",
        volumes: list[dict[str, Any]] | None = None,
        **meta: Any,
    ) -> Pod:
        found = unwrap(await self.client.get(REPLICA_SETS, owner, "default"))
        reference = {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": owner,
            "uid": found.metadata.uid,
            "controller": True,
        }
        body = {
            "metadata": {
                "name": name,
                "namespace": "default",
                "ownerReferences": [reference],
                "labels": {"app": owner},
                **meta,
            },
            "spec": {
                "nodeName": node,
                "schedulerName": SCHEDULER,
                "terminationGracePeriodSeconds": grace,
                "volumes": volumes or [],
                "containers": [{"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}} if cpu else {}}],
            },
        }
        unwrap(await self.client.create(PODS, body))
        conditions = [{"type": "Ready", "status": str(ready)}, {"type": "PodScheduled", "status": "True"}]
        status = {"status": {"phase": "Running", "conditions": conditions}}
        return unwrap(await self.client.patch(PODS, name, status, "default", kind="merge", subresource="status"))

    async def pod(self, name: str) -> Pod | None:
        found = await self.client.get(PODS, name, "default")
        return None if isinstance(found, ApiError) else found

    async def remove_pod(self, name: str) -> None:
        await self.client.delete(PODS, name, "default", grace_seconds=0)

    async def add_job(self, name: str = "j", pod: str = "a", **spec: Any) -> PodMigrationJob:
        body = {"metadata": {"name": name}, "spec": {"podRef": {"namespace": "default", "name": pod}, **spec}}
        return unwrap(await self.client.create(POD_MIGRATION_JOBS, body))

    async def job(self, name: str = "j") -> PodMigrationJob:
        return unwrap(await self.client.get(POD_MIGRATION_JOBS, name))

    async def jobs(self) -> list[PodMigrationJob]:
        return list(unwrap(await self.client.list(POD_MIGRATION_JOBS)).items)

    async def reservations(self) -> list[Reservation]:
        return list(unwrap(await self.client.list(RESERVATIONS)).items)

    async def place(self, name: str, node: str = "n2") -> None:
        """As koord-scheduler would."""
        await self.say(name, phase="Available", nodeName=node)

    async def say(self, name: str, **status: Any) -> None:
        unwrap(await self.client.patch(RESERVATIONS, name, {"status": status}, kind="merge", subresource="status"))

    async def arrive(self, reservation: str, pod: Pod) -> None:
        owner = {"namespace": "default", "name": pod.metadata.name, "uid": pod.metadata.uid}
        await self.say(reservation, phase="Succeeded", currentOwners=[owner])


@asynccontextmanager
async def open_harness(clock: LoopClock, seed: int = 1) -> AsyncIterator[DeschedulerHarness]:
    cluster = EmbeddedCluster(ClusterSettings(http=False, seed=seed), [], clock=clock)
    await cluster.start()
    assert cluster.informers is not None
    harness = DeschedulerHarness(cluster, clock)
    cluster.informers.for_resource(PODS).add_event_handler(harness.witness)
    try:
        yield harness
    finally:
        for replica in harness.replicas:
            await replica.stop()
        await cluster.stop()


def run_in_harness(story: Callable[[DeschedulerHarness], Awaitable[None]], seed: int = 1) -> None:
    """Three nodes, a workload of ten, and the story."""

    async def main(clock: LoopClock) -> None:
        async with open_harness(clock, seed) as harness:
            await harness.add_nodes("n1", "n2", "n3")
            await harness.add_workload()
            await story(harness)

    run_virtual(main)
