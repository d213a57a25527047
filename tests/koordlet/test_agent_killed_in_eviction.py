"""An agent that is killed around any request of an eviction does not make the next one evict a second pod, and the next
one records what the first could not.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, PODS
from koord.embedded.cluster import ADMIN, InProcessTransport
from koord.koordlet.evictor import SUCCESS
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.interface import ApiRequest, ApiResponse, Transport, Unreachable, WatchStream
from koord.policy.eviction import EVICTED
from tests.koordlet.agent_fixture import GI, AgentFixture, expect_ok, in_virtual_time

MEMORY_ORDER = {
    "resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 70, "memoryEvictLowerPercent": 60}
}


class DyingTransport:
    """The line of a process that dies at its first POST to a path: before the server has it, or before it is answered.

    A dead process asks nothing any more, so every later request is lost.
    """

    def __init__(self, inner: Transport, path: str, *, after: bool) -> None:
        self._inner = inner
        self._path = path
        self._after = after
        self.dead = asyncio.Event()

    async def send(self, request: ApiRequest) -> ApiResponse:
        if not self.dead.is_set() and request.method == "POST" and request.path.endswith(self._path):
            if self._after:
                await self._inner.send(request)
            self.dead.set()
        if self.dead.is_set():
            raise Unreachable("the process is dead")
        return await self._inner.send(request)

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        if self.dead.is_set():
            raise Unreachable("the process is dead")
        return await self._inner.watch(request)

    async def close(self) -> None:
        await self._inner.close()


@pytest.mark.parametrize("after", [False, True], ids=["before-it-is-sent", "before-the-answer"])
@pytest.mark.parametrize("path", ["/eviction", "/events"])
def test_one_pod_is_evicted_however_often_the_agent_is_killed(tmp_path: Path, path: str, after: bool) -> None:
    async def story(world: AgentFixture) -> None:
        await world.furnish()
        await world.order(MEMORY_ORDER)
        await world.run_pod("small", "BE", memory_bytes=GI)
        await world.run_pod("large", "BE", memory_bytes=3 * GI)
        world.used_kb = 12 * 1024 * 1024
        assert world.cluster.server is not None
        line = DyingTransport(InProcessTransport(world.cluster.server, ADMIN), path, after=after)
        client = Client(line, clock=world.clock)
        informers = InformerFactory(client, world.clock)
        agent = world.agent(frozenset({"BEMemoryEvict"}), client=client, informers=informers)
        informers.start()
        await agent.start()
        await asyncio.wait_for(line.dead.wait(), 60)
        await agent.stop()
        await informers.stop()
        again = world.agent(frozenset({"BEMemoryEvict"}))
        await again.start()
        await world.clock.sleep(60)
        leaving = [
            name
            for name in ("small", "large")
            if (await expect_ok(world.client.get(PODS, name, "default"))).metadata.deletion_timestamp is not None
        ]
        assert leaving == ["large"]
        assert [(record.name, record.outcome) for record in again.ledger.records()] == [("large", EVICTED)]
        told = await expect_ok(world.client.list(CORE_EVENTS, "default"))
        assert {event.involved_object.name for event in told.items if event.reason == SUCCESS} == {"large"}
        await again.stop()

    in_virtual_time(tmp_path, story)
