"""Indexes, transforms, and objects that cannot be read."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.reflector import MalformedObject
from tests.kube.informer.informer_harness import names, run_scenario, summarize_changes
from tests.kube.scripted_server import THINGS, ScriptedServer, Thing, ThingSpec


def test_indexes_follow_objects_and_a_key_function_that_fails_hides_nothing() -> None:
    reports: list[MalformedObject] = []

    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        server.create("ns", "a", spec={"node": "n1"})
        things = informers.for_resource(THINGS)
        things.add_index("node", lambda thing: [thing.spec.node] if thing.spec.node else [])
        await informers.wait_for_cache_sync()
        things.add_index("late", lambda thing: thing.spec.node)
        things.add_index("broken", lambda thing: [str(1 // thing.spec.size)])
        server.create("ns", "b", spec={"node": "n1", "size": 1})
        await asyncio.sleep(1)
        assert names(things.by_index("node", "n1")) == ["a", "b"]
        assert names(things.by_index("late", "n1")) == ["a", "b"]
        server.update("ns", "a", spec={"node": "n2"})
        server.delete("ns", "b")
        await asyncio.sleep(1)
        assert things.by_index("node", "n1") == []
        assert things.index_values("node") == ["n2"]
        assert names(things.list()) == ["a"]
        assert [(r.name, r.error[:12]) for r in reports] == [("a", "index broken")]
        with pytest.raises(ValueError, match="already"):
            things.add_index("node", lambda _: [])

    run_scenario(scenario, on_malformed=reports.append)


def test_a_transform_slims_objects_and_leaves_out_what_it_refuses() -> None:
    def slim(thing: Thing) -> Thing | None:
        if thing.spec.size > 5:
            return None
        return msgspec.structs.replace(thing, spec=ThingSpec(size=thing.spec.size))

    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        server.create("ns", "big", spec={"size": 9})
        server.create("ns", "a", spec={"size": 1, "node": "long"})
        things = informers.for_resource(THINGS, transform=slim)
        changes: list[ObjectChange[Thing]] = []
        things.add_event_handler(changes.append)
        await informers.wait_for_cache_sync()
        server.update("ns", "a", spec={"size": 8})
        server.update("ns", "a", spec={"size": 2})
        server.delete("ns", "big")
        await asyncio.sleep(1)
        assert [(t.metadata.name, t.spec) for t in things.list()] == [("a", ThingSpec(size=2))]
        assert summarize_changes(changes) == [("added", "a", True), ("deleted", "a", False), ("added", "a", False)]
        assert informers.for_resource(THINGS, transform=slim) is things
        with pytest.raises(ValueError, match="another transform"):
            informers.for_resource(THINGS, transform=lambda thing: thing)

    run_scenario(scenario)


def test_an_object_that_the_transform_fails_on_is_reported_and_skipped() -> None:
    reports: list[MalformedObject] = []

    def slim(thing: Thing) -> Thing:
        return msgspec.structs.replace(thing, spec=ThingSpec(size=10 // thing.spec.size))

    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        server.create("ns", "zero")
        server.create("ns", "two", spec={"size": 2})
        things = informers.for_resource(THINGS, transform=slim)
        await informers.wait_for_cache_sync()
        server.update("ns", "two", spec={"size": 0})
        server.update("ns", "two", spec={"size": 0})
        await asyncio.sleep(1)
        assert [(t.metadata.name, t.spec.size) for t in things.list()] == [("two", 5)]
        assert [r.name for r in reports] == ["zero", "two"]
        assert "ZeroDivisionError" in reports[0].error
        server.delete("ns", "two")
        await asyncio.sleep(1)
        assert things.list() == []

    run_scenario(scenario, on_malformed=reports.append)


def test_an_unreadable_object_is_reported_once_and_its_last_good_state_stays() -> None:
    reports: list[MalformedObject] = []

    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        server.create("ns", "never", spec={"size": "huge"})
        server.create("ns", "a", spec={"size": 1})
        things = informers.for_resource(THINGS)
        await informers.wait_for_cache_sync()
        await asyncio.sleep(1)
        assert [(r.name, r.uid) for r in reports] == [("never", "uid-1")]
        server.update("ns", "a", spec={"size": "what"})
        server.update("ns", "a", spec={"size": []})
        server.create("ns", "b")
        await asyncio.sleep(1)
        assert [r.name for r in reports] == ["never", "a"]
        assert "spec.size" in reports[1].error
        assert {t.metadata.name: t.spec.size for t in things.list()} == {"a": 1, "b": 0}
        server.create("ns", "c")
        server.compact()
        server.error(410, "Expired")
        await asyncio.sleep(30)
        assert {t.metadata.name: t.spec.size for t in things.list()} == {"a": 1, "b": 0, "c": 0}
        server.update("ns", "a", spec={"size": 3})
        server.update("ns", "a", spec={"size": "again"})
        await asyncio.sleep(1)
        assert [r.name for r in reports] == ["never", "a", "a"]
        server.delete("ns", "a")  # its last state is unreadable, but a deletion needs no reading
        await asyncio.sleep(1)
        assert set(names(things.list())) == {"b", "c"}
        assert things.malformed_count == 3

    run_scenario(scenario, on_malformed=reports.append)


@pytest.mark.parametrize("seen", [True, False], ids=["in-the-stream", "across-a-relist"])
def test_an_unreadable_namesake_does_not_keep_the_old_object_alive(seen: bool) -> None:
    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        server.create("ns", "a", spec={"size": 1})
        things = informers.for_resource(THINGS)
        await informers.wait_for_cache_sync()
        await asyncio.sleep(1)
        if seen:
            meta = {"namespace": "ns", "name": "a", "uid": "uid-new"}
            server.update("ns", "a", metadata=meta, spec={"size": "huge"})
        else:
            server.cut(clean=False)
            server.delete("ns", "a")
            server.create("ns", "a", spec={"size": "huge"})
            server.compact()
        await asyncio.sleep(30)
        assert things.list() == []

    run_scenario(scenario, on_malformed=lambda _: None)


def test_a_report_that_fails_is_still_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: MalformedObject) -> None:
        raise OSError("pipe")

    async def scenario(server: ScriptedServer, informers: InformerFactory) -> None:
        server.create("ns", "bad", spec={"size": "huge"})
        server.create("ns", "good")
        things = informers.for_resource(THINGS)
        await informers.wait_for_cache_sync()
        assert names(things.list()) == ["good"]

    run_scenario(scenario, on_malformed=broken)
    assert "Thing ns/bad (uid uid-1) is skipped" in caplog.text
    assert "OSError: pipe" in caplog.text
