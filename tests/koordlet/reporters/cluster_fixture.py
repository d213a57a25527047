"""A cluster in this process in virtual time, for tests of what the node agent writes to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.telemetry.clock import LoopClock, run_virtual

NODE = "node-1"
GIB = 2**30


def run(test: Callable[[Client, InformerFactory, LoopClock], Awaitable[None]]) -> None:
    async def main(clock: LoopClock) -> None:
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), clock=clock)
        await cluster.start()
        assert cluster.client is not None
        assert cluster.informers is not None
        try:
            await test(cluster.client, cluster.informers, clock)
        finally:
            await cluster.stop()

    run_virtual(main)
