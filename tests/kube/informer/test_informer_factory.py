"""Sharing, starting and stopping informers, and what the cache costs."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest

from koord.api.kubernetes.meta import ObjectMeta
from koord.kube.client.retrying_caller import NEVER_RETRY
from koord.kube.client.typed_client import Client
from koord.kube.informer.cache import ObjectCache
from koord.kube.informer.factory import InformerFactory
from koord.telemetry.clock import LoopClock, run_virtual
from tests.kube.informer.informer_harness import run_scenario
from tests.kube.scripted_server import THINGS, ScriptedServer, Thing, ThingSpec


def test_views_are_shared_by_what_they_select() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        assert informers.for_resource(THINGS) is informers.for_resource(THINGS)
        assert informers.for_resource(THINGS) is not informers.for_resource(THINGS, "ns")
        assert informers.for_resource(THINGS, labels="a=b") is not informers.for_resource(THINGS)
        await informers.wait_for_cache_sync()
        assert len(server.sent("GET")) == 3
        assert {r.query.get("labelSelector") for r in server.sent("GET")} == {None, "a=b"}

    run_scenario(scenario)


def test_an_informer_that_dies_is_not_silent(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: LoopClock) -> None:
        server = ScriptedServer()

        def bug(_: object) -> None:
            raise RuntimeError("a bug in the transport")

        server.before = bug
        informers = InformerFactory(Client(server, clock=clock, burst=0), clock)
        informers.for_resource(THINGS)
        informers.start()
        with pytest.raises(RuntimeError, match="a bug"):
            await informers.wait_for_cache_sync()
        assert informers.dead_informers == ("informer-things",)
        with pytest.raises(ExceptionGroup, match="informers died"):
            await informers.stop()
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main)
    assert "informer-things died" in caplog.text


def test_the_same_seed_reconnects_at_the_same_times() -> None:
    def times(seed: int) -> list[float]:
        asked: list[float] = []

        async def main(clock: LoopClock) -> None:
            server = ScriptedServer()
            server.down = True
            server.before = lambda _: asked.append(clock.monotonic())
            client = Client(server, clock=clock, burst=0, retry=NEVER_RETRY)
            async with InformerFactory(client, clock, seed=seed) as informers:
                informers.for_resource(THINGS)
                await asyncio.sleep(300)

        run_virtual(main)
        return asked

    assert len(times(1)) > 5
    assert times(1) == times(1) != times(2)


def _no_error(index: str, thing: Thing, error: Exception) -> None:
    raise error


def test_keys_and_one_index_stay_under_250_bytes_an_object() -> None:
    count = 20_000
    things = [
        Thing(
            metadata=ObjectMeta(namespace=f"ns{n % 50}", name=f"t{n}", uid=f"uid-{n}", resource_version="1"),
            spec=ThingSpec(node=f"n{n % 500}"),
        )
        for n in range(count)
    ]
    cache: ObjectCache[Thing] = ObjectCache(_no_error)
    cache.add_index("node", lambda thing: [thing.spec.node])
    gc.collect()
    tracemalloc.start()
    cache.replace(things)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(cache) == count
    assert used / count < 250
