"""Run an API server, a client and a fleet in virtual time, and build pods to put on it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from koord.api.builtin import NODES, PODS
from koord.api.node import Node
from koord.api.pod import Pod
from koord.embedded.apiserver.inprocess import InProcessTransport
from koord.embedded.apiserver.server import Server
from koord.embedded.kubelet.fleet import Fleet
from koord.embedded.kubelet.profile import Pool
from koord.embedded.kubelet.usage import Points
from koord.kube.client import Client
from koord.kube.informers import Informers
from koord.kube.refused import Refused, ok
from koord.telemetry.clock import LoopClock, run_virtual

SMALL = Pool(name="n", count=2, cpu=4, memory="8Gi", threads_per_core=1)


class Sim(msgspec.Struct, frozen=True, kw_only=True):
    clock: LoopClock
    server: Server
    client: Client
    informers: Informers
    fleet: Fleet

    async def put(self, pod: dict[str, Any]) -> Pod:
        return ok(await self.client.create(PODS, pod))

    async def pod(self, name: str) -> Pod | None:
        found = await self.client.get(PODS, name, "default")
        return None if isinstance(found, Refused) else found

    async def shown(self, name: str) -> Pod:
        found = await self.pod(name)
        assert found is not None, f"no pod {name}"
        return found

    async def node(self, name: str) -> Node:
        return ok(await self.client.get(NODES, name))


def pod(
    name: str,
    node: str = "n-0",
    *,
    says: Mapping[str, object] | None = None,
    containers: Sequence[str] = ("main",),
    init: Sequence[str] = (),
    sidecars: Sequence[str] = (),
    cpu: str = "100m",
    **spec: Any,
) -> dict[str, Any]:
    """`says` are sim.koord.sh/ annotations without their prefix."""

    def container(title: str) -> dict[str, Any]:
        return {"name": title, "image": "registry/app:1", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}

    before = [container(title) for title in init]
    before += [{**container(title), "restartPolicy": "Always"} for title in sidecars]
    body: dict[str, Any] = {"containers": [container(title) for title in containers], **spec}
    if node:
        body["nodeName"] = node
    if before:
        body["initContainers"] = before
    annotations = {f"sim.koord.sh/{key}": str(value) for key, value in (says or {}).items()}
    return {"metadata": {"name": name, "namespace": "default", "annotations": annotations}, "spec": body}


@contextlib.asynccontextmanager
async def simulation(
    clock: LoopClock,
    pools: Sequence[Pool] = (SMALL,),
    *,
    seed: int = 7,
    server: Server | None = None,
    traces: Mapping[str, Points] | None = None,
) -> AsyncIterator[Sim]:
    """With `server`, a fleet on a server that lives on."""
    own = server is None
    server = server or Server(clock=clock, chance=random.Random(seed))
    if own:
        await server.start()
    client = Client(InProcessTransport(server), clock=clock, burst=0, chance=random.Random(seed))
    informers = Informers(client, clock, seed=seed)
    fleet = Fleet(client, informers, clock, seed, pools, traces=traces or {})
    await fleet.start()
    informers.start()
    await informers.synced()
    try:
        yield Sim(clock=clock, server=server, client=client, informers=informers, fleet=fleet)
    finally:
        await fleet.stop()
        await informers.stop()
        if own:
            await server.close()


def simulate(story: Callable[[Sim], Awaitable[None]], pools: Sequence[Pool] = (SMALL,), **options: Any) -> None:
    """Run a story on a fresh cluster, in virtual time."""

    async def main(clock: LoopClock) -> None:
        async with simulation(clock, pools, **options) as sim:
            await story(sim)

    run_virtual(main)
