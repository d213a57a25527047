"""What an informer tells its handlers, and when."""

from __future__ import annotations

import asyncio
import logging

import pytest

from koord.kube.client.typed_client import Client
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import Informer
from koord.telemetry.clock import LoopClock, run_virtual
from tests.kube.informer.informer_harness import run_scenario, summarize_changes
from tests.kube.scripted_server import THINGS, ScriptedServer, Thing


def test_the_cache_shows_a_change_before_handlers_hear_of_it() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        things = informers.for_resource(THINGS)
        sizes: list[int | None] = []

        def look(change: ObjectChange[Thing]) -> None:
            thing = things.get("ns", change.object.metadata.name)
            sizes.append(None if thing is None else thing.spec.size)

        things.add_event_handler(look)
        await informers.wait_for_cache_sync()
        server.create("ns", "a")
        server.update("ns", "a", spec={"size": 2})
        server.delete("ns", "a")
        await asyncio.sleep(1)
        assert sizes == [0, 2, None]

    run_scenario(scenario)


def test_synced_waits_for_handlers_and_not_only_for_the_list() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        for number in range(5000):
            server.create("ns", f"t{number}")
        things = informers.for_resource(THINGS)
        was_synced: list[bool] = []
        things.add_event_handler(lambda _: was_synced.append(things.has_synced))
        await informers.wait_for_cache_sync()
        assert len(was_synced) == 5000
        assert not any(was_synced)

    run_scenario(scenario)


def test_a_late_handler_sees_the_content_as_initial_adds_and_only_once() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        for number in range(4500):  # more than is told in one turn
            server.create("ns", f"t{number:04}")
        things = informers.for_resource(THINGS)
        late: list[ObjectChange[Thing]] = []

        def first(change: ObjectChange[Thing]) -> None:
            if change.kind == "added" and change.object.metadata.name == "t2500":  # in the middle of the first round
                things.add_event_handler(late.append)

        things.add_event_handler(first)
        await informers.wait_for_cache_sync()
        assert len(late) == 4500
        assert all(change.initial for change in late)
        assert len({change.object.metadata.name for change in late}) == 4500
        server.update("ns", "t0000", spec={"size": 1})
        await asyncio.sleep(1)
        assert summarize_changes(late)[4500:] == [("updated", "t0000", False)]

    run_scenario(scenario)


def test_a_handler_that_raises_is_named_counted_and_does_not_stop_others(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        things = informers.for_resource(THINGS)
        heard: list[str] = []

        def broken(change: ObjectChange[Thing]) -> None:
            raise ZeroDivisionError(change.object.metadata.name)

        subscription = things.add_event_handler(broken)
        things.add_event_handler(lambda change: heard.append(change.object.metadata.name))
        await informers.wait_for_cache_sync()
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
        run_scenario(scenario)
    assert len(caplog.records) == 5, "the log is not filled by one bad handler"
    assert "broken failed on added Thing ns/a" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_filter_makes_a_smaller_world() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        server.create("ns", "small", spec={"size": 1})
        server.create("ns", "big", spec={"size": 9})
        changes: list[ObjectChange[Thing]] = []
        informers.for_resource(THINGS).add_event_handler(changes.append, filter=lambda thing: thing.spec.size > 5)
        await informers.wait_for_cache_sync()
        server.update("ns", "small", spec={"size": 7})
        server.update("ns", "small", spec={"size": 8})
        server.update("ns", "big", spec={"size": 0})
        server.update("ns", "big", spec={"size": 1})
        server.delete("ns", "big")
        server.delete("ns", "small")
        await asyncio.sleep(1)
        assert summarize_changes(changes) == [
            ("added", "big", True),
            ("added", "small", False),
            ("updated", "small", False),
            ("deleted", "big", False),
            ("deleted", "small", False),
        ]
        assert changes[1].old is None, "someone who never saw it has nothing to compare with"

    run_scenario(scenario)


def test_a_handler_that_was_taken_off_hears_no_more() -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        things = informers.for_resource(THINGS)
        changes: list[ObjectChange[Thing]] = []
        subscription = things.add_event_handler(changes.append)
        await informers.wait_for_cache_sync()
        server.create("ns", "a")
        await asyncio.sleep(1)
        things.remove_event_handler(subscription)
        server.create("ns", "b")
        await asyncio.sleep(1)
        assert summarize_changes(changes) == [("added", "a", False)]

    run_scenario(scenario)


def test_resync_repeats_what_is_known_now() -> None:
    async def main(clock: LoopClock) -> None:
        server = ScriptedServer()
        server.create("ns", "a")
        things = Informer(Client(server, clock=clock, burst=0), THINGS, clock, resync_s=60)
        changes: list[ObjectChange[Thing]] = []
        things.add_event_handler(changes.append)
        task = asyncio.create_task(things.run())
        await asyncio.sleep(70)
        server.delete("ns", "a")
        server.create("ns", "b")
        await asyncio.sleep(60)
        assert summarize_changes(changes) == [
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
