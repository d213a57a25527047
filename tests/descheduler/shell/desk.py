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

from koord.api.builtin import NODES, PODS, REPLICA_SETS
from koord.api.config.descheduler.args import API_VERSION
from koord.api.custom import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.koord_scheduling import PodMigrationJob, Reservation
from koord.api.pod import Pod
from koord.descheduler.assembly import Assembly, assemble, load
from koord.descheduler.metrics import Metrics
from koord.descheduler.program import Descheduler
from koord.descheduler.world import World
from koord.embedded.apiserver.inprocess import InProcessTransport
from koord.embedded.cluster import Cluster, Settings
from koord.kube.cache import Change
from koord.kube.client import Client
from koord.kube.election import Election
from koord.kube.fence import FencedTransport
from koord.kube.informers import Informers
from koord.kube.lease import LeaseConfig
from koord.kube.recorder import Recorder
from koord.kube.refused import Refused, ok
from koord.kube.transport import Answer, Request, Transport, WatchStream
from koord.telemetry.clock import LoopClock, run_virtual
from koord.telemetry.metrics.registry import Registry
from tests.scheduler.shell.trouble import Wire

SCHEDULER = "koord-scheduler"


def assembly_of(
    *, interval: str = "0s", deschedule: dict[str, Any] | None = None, dry_run: bool = False, **migration: Any
) -> Assembly:
    """`deschedule` are plugins with their arguments; the rest are arguments of MigrationController."""
    plugins = deschedule or {}
    config = load(
        {
            "apiVersion": API_VERSION,
            "kind": "DeschedulerConfiguration",
            "deschedulingInterval": interval,
            "dryRun": dry_run,
            "profiles": [
                {
                    "name": "p",
                    "plugins": {"deschedule": {"enabled": [{"name": name} for name in plugins]}},
                    "pluginConfig": [
                        {"name": "MigrationController", "args": migration},
                        *({"name": name, "args": args} for name, args in plugins.items()),
                    ],
                }
            ],
        }
    )
    assert not isinstance(config, list), config
    made = assemble(config)
    assert isinstance(made, Assembly), made
    return made


class SlowWire(Wire):
    """One whose watches can be held up: what happens meanwhile is seen later."""

    def __init__(self, inner: Transport) -> None:
        super().__init__(inner)
        self.moves = asyncio.Event()
        self.moves.set()
        self.held = ""

    def hold(self, path: str) -> None:
        """Watches of paths with this in them stand still."""
        self.held = path
        self.moves.clear()

    async def watch(self, request: Request) -> WatchStream | Answer:
        stream = await super().watch(request)
        return stream if isinstance(stream, Answer) else _Held(stream, self, request.path)


class _Held:
    def __init__(self, inner: WatchStream, wire: SlowWire, path: str) -> None:
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

    def __init__(self, desk: Desk, name: str, assembly: Assembly, *, elects: bool = False) -> None:
        assert desk.cluster.server is not None
        self.name = name
        clock = desk.clock
        self.wire = SlowWire(InProcessTransport(desk.cluster.server, f"system:{name}"))
        inner = FencedTransport(self.wire, lambda: self.election is None or self.election.leading)
        self.client = Client(inner, clock=clock, qps=0, burst=0, chance=random.Random(1))
        self.informers = Informers(self.client, clock, seed=1)
        self.recorder = Recorder(self.client, clock, controller="koord-descheduler", instance=name)
        self.registry = Registry()
        world = World(
            client=self.client,
            informers=self.informers,
            clock=clock,
            recorder=self.recorder,
            metrics=Metrics(self.registry),
            identity=name,
        )
        self.descheduler = Descheduler(world, assembly)
        self.election: Election | None = None
        if elects:
            lease_client = Client(self.wire, clock=clock, qps=0, burst=0, chance=random.Random(2))
            config = LeaseConfig(name="koord-descheduler", namespace="default", identity=name)
            self.election = Election(lease_client, clock, config, on_started=self._lead, rng=random.Random(3))
        work: Any = self.election.run() if self.election is not None else self._lead()
        self.task: asyncio.Task[Any] = asyncio.create_task(work, name=name)

    async def _lead(self) -> None:
        self.recorder.start()
        self.informers.start()
        await self.informers.synced()
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


class Desk:
    def __init__(self, cluster: Cluster, clock: LoopClock) -> None:
        assert cluster.client is not None
        self.cluster = cluster
        self.clock = clock
        self.client = cluster.client
        self.replicas: list[Replica] = []
        self.gone: Counter[str] = Counter()  # uids of deleted pods

    def start(self, name: str = "one", *, elects: bool = False, **config: Any) -> Replica:
        replica = Replica(self, name, assembly_of(**config), elects=elects)
        self.replicas.append(replica)
        return replica

    def witness(self, change: Change[Pod]) -> None:
        if change.kind == "deleted":
            self.gone[change.object.metadata.uid] += 1

    async def settle(self, seconds: float = 5.0) -> None:
        await self.clock.sleep(seconds)

    # The rest of the cluster -------------------------------------------------------------------------------------

    async def add_nodes(self, *names: str) -> None:
        room = {"cpu": "16", "memory": "64Gi", "pods": "110"}
        for name in names:
            ok(
                await self.client.create(
                    NODES, {"metadata": {"name": name}, "status": {"allocatable": room, "capacity": room}}
                )
            )

    async def add_workload(self, name: str = "rs", replicas: int = 10) -> None:
        labels = {"app": name}
        container = {"name": "c", "image": "app"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        ok(await self.client.create(REPLICA_SETS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec}))

    async def add_pod(
        self, name: str, node: str = "n1", *, owner: str = "rs", ready: bool = True, grace: int = 0, **meta: Any
    ) -> Pod:
        found = ok(await self.client.get(REPLICA_SETS, owner, "default"))
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
                "containers": [{"name": "c", "image": "app"}],
            },
        }
        ok(await self.client.create(PODS, body))
        conditions = [{"type": "Ready", "status": str(ready)}, {"type": "PodScheduled", "status": "True"}]
        status = {"status": {"phase": "Running", "conditions": conditions}}
        return ok(await self.client.patch(PODS, name, status, "default", kind="merge", subresource="status"))

    async def pod(self, name: str) -> Pod | None:
        found = await self.client.get(PODS, name, "default")
        return None if isinstance(found, Refused) else found

    async def remove_pod(self, name: str) -> None:
        await self.client.delete(PODS, name, "default", grace_seconds=0)

    async def add_job(self, name: str = "j", pod: str = "a", **spec: Any) -> PodMigrationJob:
        body = {"metadata": {"name": name}, "spec": {"podRef": {"namespace": "default", "name": pod}, **spec}}
        return ok(await self.client.create(POD_MIGRATION_JOBS, body))

    async def job(self, name: str = "j") -> PodMigrationJob:
        return ok(await self.client.get(POD_MIGRATION_JOBS, name))

    async def jobs(self) -> list[PodMigrationJob]:
        return list(ok(await self.client.list(POD_MIGRATION_JOBS)).items)

    async def reservations(self) -> list[Reservation]:
        return list(ok(await self.client.list(RESERVATIONS)).items)

    async def place(self, name: str, node: str = "n2") -> None:
        """As koord-scheduler would."""
        await self.say(name, phase="Available", nodeName=node)

    async def say(self, name: str, **status: Any) -> None:
        ok(await self.client.patch(RESERVATIONS, name, {"status": status}, kind="merge", subresource="status"))

    async def arrive(self, reservation: str, pod: Pod) -> None:
        owner = {"namespace": "default", "name": pod.metadata.name, "uid": pod.metadata.uid}
        await self.say(reservation, phase="Succeeded", currentOwners=[owner])


@asynccontextmanager
async def opened(clock: LoopClock, seed: int = 1) -> AsyncIterator[Desk]:
    cluster = Cluster(Settings(http=False, seed=seed), [], clock=clock)
    await cluster.start()
    assert cluster.informers is not None
    desk = Desk(cluster, clock)
    cluster.informers.of(PODS).on(desk.witness)
    try:
        yield desk
    finally:
        for replica in desk.replicas:
            await replica.stop()
        await cluster.stop()


def at_desk(story: Callable[[Desk], Awaitable[None]], seed: int = 1) -> None:
    """Three nodes, a workload of ten, and the story."""

    async def main(clock: LoopClock) -> None:
        async with opened(clock, seed) as desk:
            await desk.add_nodes("n1", "n2", "n3")
            await desk.add_workload()
            await story(desk)

    run_virtual(main)
