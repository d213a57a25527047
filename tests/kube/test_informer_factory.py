"""Sharing, starting and stopping informers, and what the cache costs."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest

from koord.api.meta import ObjectMeta
from koord.kube.cache import Cache
from koord.kube.client import Client
from koord.kube.informers import Informers
from koord.kube.retry import NEVER
from koord.telemetry.clock import LoopClock, run_virtual
from tests.kube.scripted import THINGS, ScriptedServer, Thing, ThingSpec
from tests.kube.story import play


def test_views_are_shared_by_what_they_select() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        assert informers.of(THINGS) is informers.of(THINGS)
        assert informers.of(THINGS) is not informers.of(THINGS, "ns")
        assert informers.of(THINGS, labels="a=b") is not informers.of(THINGS)
        await informers.synced()
        assert len(server.sent("GET")) == 3
        assert {r.query.get("labelSelector") for r in server.sent("GET")} == {None, "a=b"}

    play(story)


def test_an_informer_that_dies_is_not_silent(caplog: pytest.LogCaptureFixture) -> None:
    async def main(clock: LoopClock) -> None:
        server = ScriptedServer()

        def bug(_: object) -> None:
            raise RuntimeError("a bug in the transport")

        server.before = bug
        informers = Informers(Client(server, clock=clock, burst=0), clock)
        informers.of(THINGS)
        informers.start()
        with pytest.raises(RuntimeError, match="a bug"):
            await informers.synced()
        assert informers.dead == ("informer-things",)
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
            client = Client(server, clock=clock, burst=0, retry=NEVER)
            async with Informers(client, clock, seed=seed) as informers:
                informers.of(THINGS)
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
    cache: Cache[Thing] = Cache(_no_error)
    cache.add_index("node", lambda thing: [thing.spec.node])
    gc.collect()
    tracemalloc.start()
    cache.replace(things)
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(cache) == count
    assert used / count < 250
