"""How an informer stays in step through cuts, expiries, restores and outages."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from koord.kube.config.connection import BadConfig
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.interface import ApiResponse, Unreachable, UnstructuredBody
from tests.kube.informer.informer_harness import names, run_scenario, summarize_changes
from tests.kube.scripted_server import THINGS, ScriptedServer, Thing, api_response, failure_status


def test_a_cut_stream_is_resumed_where_it_was_and_nothing_is_listed_again() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        things = informers.for_resource(THINGS)
        await informers.wait_for_cache_sync()
        await asyncio.sleep(1)
        server.create("ns", "a")
        await asyncio.sleep(1)
        server.cut(clean=False)
        server.create("ns", "b")
        server.delete("ns", "a")
        await asyncio.sleep(60)
        assert names(things.list()) == ["b"]
        assert things.counts.lists == 1
        resumed = server.sent("GET", watch=True)[-1]
        assert resumed.query["resourceVersion"] == "101", "the version of the last event that was seen"

    run_scenario(scenario)


def test_a_bookmark_moves_the_place_to_resume() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        things = informers.for_resource(THINGS, "mine")
        await informers.wait_for_cache_sync()
        await asyncio.sleep(1)
        server.create("other", "x")
        server.bookmark()
        await asyncio.sleep(1)
        server.compact()  # without the bookmark the watch would be too old now
        server.cut(clean=True)
        server.create("mine", "y")
        await asyncio.sleep(30)
        assert names(things.list()) == ["y"]
        assert (things.counts.lists, things.counts.expired) == (1, 0)

    run_scenario(scenario)


def test_lists_are_never_older_than_what_was_seen() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        things = informers.for_resource(THINGS)
        await informers.wait_for_cache_sync()
        await asyncio.sleep(1)
        server.watch_faults.append(api_response(403, failure_status(403, "Forbidden")))
        server.cut(clean=True)
        await asyncio.sleep(30)
        server.compact()
        server.create("ns", "a")
        server.error(410, "Expired")
        await asyncio.sleep(30)
        asked = [(r.query.get("resourceVersion"), r.query.get("resourceVersionMatch")) for r in server.sent("GET")]
        assert asked == [("0", None), ("100", "NotOlderThan"), (None, None)]
        assert things.counts.expired == 1

    run_scenario(scenario)


def test_a_version_from_before_a_restore_is_given_up() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        server.create("ns", "a")
        things = informers.for_resource(THINGS)
        await informers.wait_for_cache_sync()
        await asyncio.sleep(1)
        server.revision = 50  # restored from a backup
        server.log.clear()
        server.watch_faults.append(api_response(403, failure_status(403, "Forbidden")))
        server.cut(clean=True)
        await asyncio.sleep(120)
        assert things.counts.lists == 2
        server.create("ns", "b")
        await asyncio.sleep(1)
        assert set(names(things.list())) == {"a", "b"}

    run_scenario(scenario)


def test_what_was_deleted_unseen_is_told_as_a_tombstone() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        server.create("ns", "a")
        changes: list[ObjectChange[Thing]] = []
        informers.for_resource(THINGS).add_event_handler(changes.append)
        await informers.wait_for_cache_sync()
        await asyncio.sleep(1)
        server.cut(clean=False)
        server.delete("ns", "a")
        server.create("ns", "b")
        server.compact()
        await asyncio.sleep(30)
        assert summarize_changes(changes) == [("added", "a", True), ("deleted", "a", False), ("added", "b", False)]
        assert changes[1].final_unknown
        assert changes[1].object is changes[0].object

    run_scenario(scenario)


@pytest.mark.parametrize("seen", [True, False], ids=["in-one-modified-event", "across-a-relist"])
def test_a_name_with_a_new_uid_is_another_object(seen: bool) -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        server.create("ns", "a")
        changes: list[ObjectChange[Thing]] = []
        things = informers.for_resource(THINGS)
        things.add_index("namespace", lambda thing: thing.metadata.namespace)
        things.add_event_handler(changes.append)
        await informers.wait_for_cache_sync()
        await asyncio.sleep(1)
        if seen:
            server.update("ns", "a", metadata={"namespace": "ns", "name": "a", "uid": "uid-new"})
        else:
            server.cut(clean=False)
            server.delete("ns", "a")
            server.create("ns", "a")
            server.compact()
        await asyncio.sleep(30)
        assert [c.kind for c in changes] == ["added", "deleted", "added"]
        assert changes[1].final_unknown
        assert changes[2].object.metadata.uid != changes[0].object.metadata.uid
        assert things.by_index("namespace", "ns") == [changes[2].object]

    run_scenario(scenario)


def test_a_dead_server_is_asked_less_and_less_often_and_says_so_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        server.down = True
        informers.for_resource(THINGS)
        with pytest.raises(TimeoutError, match=r"things \(list: connection refused\)"):
            await informers.wait_for_cache_sync(timeout=3600)
        asked = len(server.requests)  # each try of ours is up to five of the client's
        assert 3600 / 80 < asked < 3600 / 30 * 5
        server.down = False
        await informers.wait_for_cache_sync(timeout=120)

    run_scenario(scenario)
    lines = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert 1 <= len(lines) < 3600 / 30 + 10


def test_a_server_that_lists_but_never_watches_is_not_listed_without_end() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        server.watch_faults = [api_response(403, failure_status(403, "Forbidden"))] * 1000
        informers.for_resource(THINGS)
        await asyncio.sleep(600)
        assert 10 < len(server.sent("GET")) < 40

    run_scenario(scenario)


def test_long_streams_that_end_are_followed_by_the_next_at_once() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        things = informers.for_resource(THINGS)
        await informers.wait_for_cache_sync()
        for number in range(100):
            await asyncio.sleep(2)
            server.cut(clean=True)
            server.create("ns", f"t{number}")
            await asyncio.sleep(0.01)
            assert len(things) == number + 1
        assert things.counts.lists == 1

    run_scenario(scenario)


def test_streams_that_end_at_once_and_empty_are_taken_for_a_fault() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        things = informers.for_resource(THINGS)
        await informers.wait_for_cache_sync()
        server.end_at_once = True
        server.cut(clean=True)
        await asyncio.sleep(600)
        assert 10 < things.counts.watches < 60
        assert things.counts.failures > 10

    run_scenario(scenario)


def test_a_stream_that_never_ends_and_never_speaks_is_left() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        things = informers.for_resource(THINGS)
        await informers.wait_for_cache_sync()
        await asyncio.sleep(1)
        server.streams.clear()  # the connection is dead and nobody says so
        server.create("ns", "a")
        await asyncio.sleep(700)
        assert names(things.list()) == ["a"]

    run_scenario(scenario)


def test_lost_watch_requests_are_tried_again_without_a_list() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        things = informers.for_resource(THINGS)
        server.watch_faults = [Unreachable("reset")] * 20
        await informers.wait_for_cache_sync()
        server.create("ns", "a")
        await asyncio.sleep(600)
        assert len(things) == 1
        assert things.counts.lists == 1

    run_scenario(scenario)


def test_a_watch_that_the_server_keeps_failing_is_begun_anew_with_a_list() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        things = informers.for_resource(THINGS)
        await informers.wait_for_cache_sync()
        for _ in range(6):
            server.error(500, "InternalError")
            await asyncio.sleep(61)
        assert things.counts.lists == 2

    run_scenario(scenario)


def test_credentials_that_cannot_be_used_for_a_while_are_an_outage_and_not_the_end() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        server.create("ns", "a")
        server.faults = [BadConfig("token", "", "it cannot be read", "wait"), msgspec.DecodeError("half an answer")]
        things = informers.for_resource(THINGS)
        await informers.wait_for_cache_sync(timeout=30)
        assert len(things) == 1
        assert things.counts.failures == 2

    run_scenario(scenario)


def test_a_pause_that_the_server_asks_for_is_kept() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        body = UnstructuredBody(failure_status(429, "TooManyRequests"))
        server.faults.append(ApiResponse(status=429, body=body, headers={"Retry-After": "300"}))
        informers.for_resource(THINGS)
        with pytest.raises(TimeoutError):
            await informers.wait_for_cache_sync(timeout=299)
        await informers.wait_for_cache_sync(timeout=3)

    run_scenario(scenario)
