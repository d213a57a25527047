"""How an informer stays in step through cuts, expiries, restores and outages."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from koord.kube.cache import Change
from koord.kube.connection import BadConfig
from koord.kube.informers import Informers
from koord.kube.transport import Answer, PlainBody, Unreachable
from tests.kube.scripted import THINGS, ScriptedServer, Thing, answer, failure
from tests.kube.story import brief, names, play


def test_a_cut_stream_is_resumed_where_it_was_and_nothing_is_listed_again() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        things = informers.of(THINGS)
        await informers.synced()
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

    play(story)


def test_a_bookmark_moves_the_place_to_resume() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        things = informers.of(THINGS, "mine")
        await informers.synced()
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

    play(story)


def test_lists_are_never_older_than_what_was_seen() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        things = informers.of(THINGS)
        await informers.synced()
        await asyncio.sleep(1)
        server.watch_faults.append(answer(403, failure(403, "Forbidden")))
        server.cut(clean=True)
        await asyncio.sleep(30)
        server.compact()
        server.create("ns", "a")
        server.error(410, "Expired")
        await asyncio.sleep(30)
        asked = [(r.query.get("resourceVersion"), r.query.get("resourceVersionMatch")) for r in server.sent("GET")]
        assert asked == [("0", None), ("100", "NotOlderThan"), (None, None)]
        assert things.counts.expired == 1

    play(story)


def test_a_version_from_before_a_restore_is_given_up() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        server.create("ns", "a")
        things = informers.of(THINGS)
        await informers.synced()
        await asyncio.sleep(1)
        server.revision = 50  # restored from a backup
        server.log.clear()
        server.watch_faults.append(answer(403, failure(403, "Forbidden")))
        server.cut(clean=True)
        await asyncio.sleep(120)
        assert things.counts.lists == 2
        server.create("ns", "b")
        await asyncio.sleep(1)
        assert set(names(things.list())) == {"a", "b"}

    play(story)


def test_what_was_deleted_unseen_is_told_as_a_tombstone() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        server.create("ns", "a")
        changes: list[Change[Thing]] = []
        informers.of(THINGS).on(changes.append)
        await informers.synced()
        await asyncio.sleep(1)
        server.cut(clean=False)
        server.delete("ns", "a")
        server.create("ns", "b")
        server.compact()
        await asyncio.sleep(30)
        assert brief(changes) == [("added", "a", True), ("deleted", "a", False), ("added", "b", False)]
        assert changes[1].final_unknown
        assert changes[1].object is changes[0].object

    play(story)


@pytest.mark.parametrize("seen", [True, False], ids=["in-one-modified-event", "across-a-relist"])
def test_a_name_with_a_new_uid_is_another_object(seen: bool) -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        server.create("ns", "a")
        changes: list[Change[Thing]] = []
        things = informers.of(THINGS)
        things.add_index("namespace", lambda thing: thing.metadata.namespace)
        things.on(changes.append)
        await informers.synced()
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

    play(story)


def test_a_dead_server_is_asked_less_and_less_often_and_says_so_in_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        server.down = True
        informers.of(THINGS)
        with pytest.raises(TimeoutError, match=r"things \(list: connection refused\)"):
            await informers.synced(timeout=3600)
        asked = len(server.requests)  # each try of ours is up to five of the client's
        assert 3600 / 80 < asked < 3600 / 30 * 5
        server.down = False
        await informers.synced(timeout=120)

    play(story)
    lines = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert 1 <= len(lines) < 3600 / 30 + 10


def test_a_server_that_lists_but_never_watches_is_not_listed_without_end() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        server.watch_faults = [answer(403, failure(403, "Forbidden"))] * 1000
        informers.of(THINGS)
        await asyncio.sleep(600)
        assert 10 < len(server.sent("GET")) < 40

    play(story)


def test_long_streams_that_end_are_followed_by_the_next_at_once() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        things = informers.of(THINGS)
        await informers.synced()
        for number in range(100):
            await asyncio.sleep(2)
            server.cut(clean=True)
            server.create("ns", f"t{number}")
            await asyncio.sleep(0.01)
            assert len(things) == number + 1
        assert things.counts.lists == 1

    play(story)


def test_streams_that_end_at_once_and_empty_are_taken_for_a_fault() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        things = informers.of(THINGS)
        await informers.synced()
        server.end_at_once = True
        server.cut(clean=True)
        await asyncio.sleep(600)
        assert 10 < things.counts.watches < 60
        assert things.counts.failures > 10

    play(story)


def test_a_stream_that_never_ends_and_never_speaks_is_left() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        things = informers.of(THINGS)
        await informers.synced()
        await asyncio.sleep(1)
        server.streams.clear()  # the connection is dead and nobody says so
        server.create("ns", "a")
        await asyncio.sleep(700)
        assert names(things.list()) == ["a"]

    play(story)


def test_lost_watch_requests_are_tried_again_without_a_list() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        things = informers.of(THINGS)
        server.watch_faults = [Unreachable("reset")] * 20
        await informers.synced()
        server.create("ns", "a")
        await asyncio.sleep(600)
        assert len(things) == 1
        assert things.counts.lists == 1

    play(story)


def test_a_watch_that_the_server_keeps_failing_is_begun_anew_with_a_list() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        things = informers.of(THINGS)
        await informers.synced()
        for _ in range(6):
            server.error(500, "InternalError")
            await asyncio.sleep(61)
        assert things.counts.lists == 2

    play(story)


def test_credentials_that_cannot_be_used_for_a_while_are_an_outage_and_not_the_end() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        server.create("ns", "a")
        server.faults = [BadConfig("token", "", "it cannot be read", "wait"), msgspec.DecodeError("half an answer")]
        things = informers.of(THINGS)
        await informers.synced(timeout=30)
        assert len(things) == 1
        assert things.counts.failures == 2

    play(story)


def test_a_pause_that_the_server_asks_for_is_kept() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        body = PlainBody(failure(429, "TooManyRequests"))
        server.faults.append(Answer(status=429, body=body, headers={"Retry-After": "300"}))
        informers.of(THINGS)
        with pytest.raises(TimeoutError):
            await informers.synced(timeout=299)
        await informers.synced(timeout=3)

    play(story)
