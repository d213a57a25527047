"""A whole cluster in this process and in virtual time, with what a part of the manager is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from koord.api.config.gate_tables import MANAGER
from koord.api.config.gates import defaults
from koord.embedded.apiserver.inprocess import InProcessTransport
from koord.embedded.cluster import ADMIN, Cluster
from koord.embedded.cluster import Settings as ClusterSettings
from koord.kube.client import Client
from koord.kube.recorder import Recorder
from koord.kube.transport import Answer, Request, Transport, WatchStream
from koord.manager.world import Settings, World
from koord.telemetry.clock import LoopClock, run_virtual

T = TypeVar("T")


class Line:
    """The way to the API server, on which a test can hold or lose requests."""

    def __init__(self, server: Transport) -> None:
        self._server = server
        self.disturb: Callable[[Request], Awaitable[Answer | None]] | None = None

    async def send(self, request: Request) -> Answer:
        answer = await self.disturb(request) if self.disturb is not None else None
        return answer if answer is not None else await self._server.send(request)

    async def watch(self, request: Request) -> WatchStream | Answer:
        return await self._server.watch(request)

    async def close(self) -> None:
        """The cluster closes its own end."""


def in_world(main: Callable[[World], Awaitable[T]], **gates: bool) -> T:
    """Run `main` with informers that start as soon as they are asked for."""
    return on_line(lambda world, _: main(world), **gates)


def on_line(main: Callable[[World, Line], Awaitable[T]], **gates: bool) -> T:
    """The same, for tests of what happens when the API server is slow or says no."""

    async def run(clock: LoopClock) -> T:
        cluster = Cluster(ClusterSettings(http=False, seed=1), clock=clock)
        await cluster.start()
        try:
            assert cluster.server is not None
            assert cluster.informers is not None
            line, informers = Line(InProcessTransport(cluster.server, ADMIN)), cluster.informers
            client = Client(line, clock=clock, qps=0, burst=0)
            recorder = Recorder(client, clock, controller="koord-manager", instance="koord-manager-test")
            settings = Settings(gates={**defaults(MANAGER), **gates})
            informers.start()
            async with recorder:
                world = World(client=client, informers=informers, clock=clock, recorder=recorder, settings=settings)
                return await main(world, line)
        finally:
            await cluster.stop()

    return run_virtual(run)
