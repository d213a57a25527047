"""Run an API server, a client and a fleet in virtual time, and build pods to put on it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from koord.api.kubernetes.builtin_kinds import NODES, PODS
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod import Pod
from koord.embedded.apiserver.server import ApiServer
from koord.embedded.cluster import InProcessTransport
from koord.embedded.kubelet.fleet import SimulatedFleet
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.embedded.kubelet.usage_model import UsageTrace
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError, unwrap
from koord.telemetry.clock import LoopClock, run_virtual

SMALL = SimulatedPool(name="n", count=2, cpu=4, memory="8Gi", threads_per_core=1)


class Sim(msgspec.Struct, frozen=True, kw_only=True):
    clock: LoopClock
    server: ApiServer
    client: Client
    informers: InformerFactory
    fleet: SimulatedFleet

    async def put(self, pod: dict[str, Any]) -> Pod:
        return unwrap(await self.client.create(PODS, pod))

    async def pod(self, name: str) -> Pod | None:
        found = await self.client.get(PODS, name, "default")
        return None if isinstance(found, ApiError) else found

    async def shown(self, name: str) -> Pod:
        found = await self.pod(name)
        assert found is not None, f"no pod {name}"
        return found

    async def node(self, name: str) -> Node:
        return unwrap(await self.client.get(NODES, name))


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
    pools: Sequence[SimulatedPool] = (SMALL,),
    *,
    seed: int = 7,
    server: ApiServer | None = None,
    traces: Mapping[str, UsageTrace] | None = None,
) -> AsyncIterator[Sim]:
    """With `server`, a fleet on a server that lives on."""
    own = server is None
    server = server or ApiServer(clock=clock, chance=random.Random(seed))
    if own:
        await server.start()
    client = Client(InProcessTransport(server), clock=clock, burst=0, chance=random.Random(seed))
    informers = InformerFactory(client, clock, seed=seed)
    fleet = SimulatedFleet(client, informers, clock, seed, pools, traces=traces or {})
    await fleet.start()
    informers.start()
    await informers.wait_for_cache_sync()
    try:
        yield Sim(clock=clock, server=server, client=client, informers=informers, fleet=fleet)
    finally:
        await fleet.stop()
        await informers.stop()
        if own:
            await server.close()


def simulate(
    story: Callable[[Sim], Awaitable[None]], pools: Sequence[SimulatedPool] = (SMALL,), **options: Any
) -> None:
    """Run a story on a fresh cluster, in virtual time."""

    async def main(clock: LoopClock) -> None:
        async with simulation(clock, pools, **options) as sim:
            await story(sim)

    run_virtual(main)
