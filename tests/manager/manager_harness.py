"""A whole cluster in this process and in virtual time, with what a part of the manager is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from koord.api.config.gates import default_feature_gates
from koord.embedded.cluster import ADMIN, ClusterSettings, EmbeddedCluster, InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.events.recorder import EventRecorder
from koord.kube.transport.interface import ApiRequest, ApiResponse, Transport, WatchStream
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.reconcile_loop import ManagerContext, ManagerSettings
from koord.telemetry.clock import LoopClock, run_virtual

T = TypeVar("T")


class FaultyTransport:
    """The way to the API server, on which a test can hold or lose requests."""

    def __init__(self, server: Transport) -> None:
        self._server = server
        self.disturb: Callable[[ApiRequest], Awaitable[ApiResponse | None]] | None = None

    async def send(self, request: ApiRequest) -> ApiResponse:
        answer = await self.disturb(request) if self.disturb is not None else None
        return answer if answer is not None else await self._server.send(request)

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        return await self._server.watch(request)

    async def close(self) -> None:
        """The cluster closes its own end."""


def run_with_context(main: Callable[[ManagerContext], Awaitable[T]], **gates: bool) -> T:
    """Run `main` with informers that start as soon as they are asked for."""
    return run_with_faulty_transport(lambda context, _: main(context), **gates)


def run_with_faulty_transport(main: Callable[[ManagerContext, FaultyTransport], Awaitable[T]], **gates: bool) -> T:
    """The same, for tests of what happens when the API server is slow or says no."""

    async def run(clock: LoopClock) -> T:
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), clock=clock)
        await cluster.start()
        try:
            assert cluster.server is not None
            assert cluster.informers is not None
            transport, informers = FaultyTransport(InProcessTransport(cluster.server, ADMIN)), cluster.informers
            client = Client(transport, clock=clock, qps=0, burst=0)
            recorder = EventRecorder(client, clock, controller="koord-manager", instance="koord-manager-test")
            settings = ManagerSettings(gates={**default_feature_gates(MANAGER_GATES), **gates})
            informers.start()
            async with recorder:
                context = ManagerContext(
                    client=client, informers=informers, clock=clock, recorder=recorder, settings=settings
                )
                return await main(context, transport)
        finally:
            await cluster.stop()

    return run_virtual(run)
