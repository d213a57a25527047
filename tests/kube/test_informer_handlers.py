"""What an informer tells its handlers, and when."""

from __future__ import annotations

import asyncio
import logging

import pytest

from koord.kube.cache import Change
from koord.kube.client import Client
from koord.kube.informer import Informer
from koord.kube.informers import Informers
from koord.telemetry.clock import LoopClock, run_virtual
from tests.kube.scripted import THINGS, ScriptedServer, Thing
from tests.kube.story import brief, play


def test_the_cache_shows_a_change_before_handlers_hear_of_it() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        things = informers.of(THINGS)
        sizes: list[int | None] = []

        def look(change: Change[Thing]) -> None:
            thing = things.get("ns", change.object.metadata.name)
            sizes.append(None if thing is None else thing.spec.size)

        things.on(look)
        await informers.synced()
        server.create("ns", "a")
        server.update("ns", "a", spec={"size": 2})
        server.delete("ns", "a")
        await asyncio.sleep(1)
        assert sizes == [0, 2, None]

    play(story)


def test_synced_waits_for_handlers_and_not_only_for_the_list() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        for number in range(5000):
            server.create("ns", f"t{number}")
        things = informers.of(THINGS)
        was_synced: list[bool] = []
        things.on(lambda _: was_synced.append(things.synced))
        await informers.synced()
        assert len(was_synced) == 5000
        assert not any(was_synced)

    play(story)


def test_a_late_handler_sees_the_content_as_initial_adds_and_only_once() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        for number in range(4500):  # more than is told in one turn
            server.create("ns", f"t{number:04}")
        things = informers.of(THINGS)
        late: list[Change[Thing]] = []

        def first(change: Change[Thing]) -> None:
            if change.kind == "added" and change.object.metadata.name == "t2500":  # in the middle of the first round
                things.on(late.append)

        things.on(first)
        await informers.synced()
        assert len(late) == 4500
        assert all(change.initial for change in late)
        assert len({change.object.metadata.name for change in late}) == 4500
        server.update("ns", "t0000", spec={"size": 1})
        await asyncio.sleep(1)
        assert brief(late)[4500:] == [("updated", "t0000", False)]

    play(story)


def test_a_handler_that_raises_is_named_counted_and_does_not_stop_others(caplog: pytest.LogCaptureFixture) -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        things = informers.of(THINGS)
        heard: list[str] = []

        def broken(change: Change[Thing]) -> None:
            raise ZeroDivisionError(change.object.metadata.name)

        subscription = things.on(broken)
        things.on(lambda change: heard.append(change.object.metadata.name))
        await informers.synced()
        server.create("ns", "a")
        server.create("ns", "b")
        await asyncio.sleep(1)
        assert heard == ["a", "b"]
        assert subscription.errors == things.handler_errors == 2

        for number in range(100):
            server.create("ns", f"more{number}")
        await asyncio.sleep(1)
        assert subscription.errors == 102

    with caplog.at_level(logging.ERROR):
        play(story)
    assert len(caplog.records) == 5, "the log is not filled by one bad handler"
    assert "broken failed on added Thing ns/a" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_filter_makes_a_smaller_world() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        server.create("ns", "small", spec={"size": 1})
        server.create("ns", "big", spec={"size": 9})
        changes: list[Change[Thing]] = []
        informers.of(THINGS).on(changes.append, filter=lambda thing: thing.spec.size > 5)
        await informers.synced()
        server.update("ns", "small", spec={"size": 7})
        server.update("ns", "small", spec={"size": 8})
        server.update("ns", "big", spec={"size": 0})
        server.update("ns", "big", spec={"size": 1})
        server.delete("ns", "big")
        server.delete("ns", "small")
        await asyncio.sleep(1)
        assert brief(changes) == [
            ("added", "big", True),
            ("added", "small", False),
            ("updated", "small", False),
            ("deleted", "big", False),
            ("deleted", "small", False),
        ]
        assert changes[1].old is None, "someone who never saw it has nothing to compare with"

    play(story)


def test_a_handler_that_was_taken_off_hears_no_more() -> None:
    async def story(server: ScriptedServer, informers: Informers) -> None:
        things = informers.of(THINGS)
        changes: list[Change[Thing]] = []
        subscription = things.on(changes.append)
        await informers.synced()
        server.create("ns", "a")
        await asyncio.sleep(1)
        things.off(subscription)
        server.create("ns", "b")
        await asyncio.sleep(1)
        assert brief(changes) == [("added", "a", False)]

    play(story)


def test_resync_repeats_what_is_known_now() -> None:
    async def main(clock: LoopClock) -> None:
        server = ScriptedServer()
        server.create("ns", "a")
        things = Informer(Client(server, clock=clock, burst=0), THINGS, clock, resync_s=60)
        changes: list[Change[Thing]] = []
        things.on(changes.append)
        task = asyncio.create_task(things.run())
        await asyncio.sleep(70)
        server.delete("ns", "a")
        server.create("ns", "b")
        await asyncio.sleep(60)
        assert brief(changes) == [
            ("added", "a", True),
            ("updated", "a", False),
            ("deleted", "a", False),
            ("added", "b", False),
            ("updated", "b", False),
        ]
        assert changes[1].old is changes[1].object
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main)
