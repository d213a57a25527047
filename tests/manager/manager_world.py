"""A whole cluster in this process and in virtual time, with what a part of the manager is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from koord.api.config.gate_tables import MANAGER
from koord.api.config.gates import defaults
from koord.embedded.cluster import Cluster
from koord.embedded.cluster import Settings as ClusterSettings
from koord.kube.recorder import Recorder
from koord.manager.world import Settings, World
from koord.telemetry.clock import LoopClock, run_virtual

T = TypeVar("T")


def in_world(main: Callable[[World], Awaitable[T]], **gates: bool) -> T:
    """Run `main` with informers that start as soon as they are asked for."""

    async def run(clock: LoopClock) -> T:
        cluster = Cluster(ClusterSettings(http=False, seed=1), clock=clock)
        await cluster.start()
        try:
            client, informers = cluster.client, cluster.informers
            assert client is not None
            assert informers is not None
            recorder = Recorder(client, clock, controller="koord-manager", instance="koord-manager-test")
            settings = Settings(gates={**defaults(MANAGER), **gates})
            informers.start()
            async with recorder:
                return await main(
                    World(client=client, informers=informers, clock=clock, recorder=recorder, settings=settings)
                )
        finally:
            await cluster.stop()

    return run_virtual(run)
