"""Watches: where they start, how a selection filters events, bookmarks, the end, and slow readers."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.embedded.apiserver.rest.request_context import AdmissionChain
from koord.embedded.apiserver.rest.watch import ServerWatchStream
from koord.embedded.apiserver.server import ApiServer, builtin_catalog
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.kube.transport.interface import ApiRequest, ApiResponse
from koord.telemetry.clock import LoopClock, run_virtual
from tests.embedded.apiserver.rest_harness import NS, PARTIAL, TABLE, Api, config_map, fresh, pod, seen

CMS = f"{NS}/configmaps"


@pytest.fixture
async def api() -> Api:
    made = await fresh()
    await made.post(CMS, config_map("a", labels={"l": "x"}))
    return made


async def test_state_comes_first_when_no_version_is_named(api: Api) -> None:
    for query in ("watch=1", "watch=1&resourceVersion=0"):
        stream = await api.open(f"{CMS}?{query}")
        assert seen(await stream.next_batch()) == [("ADDED", "a")]
        await stream.close()


async def test_changes_after_a_version(api: Api) -> None:
    _, listed = await api.get(CMS)
    stream = await api.open(f"{CMS}?watch=1&resourceVersion={listed['metadata']['resourceVersion']}")
    await api.post(CMS, config_map("b"))
    await api.patch(f"{CMS}/a", {"data": {"n": "1"}})
    await api.patch(f"{CMS}/a", {"data": {"n": "1"}})
    await api.delete(f"{CMS}/b")
    await api.post("/api/v1/namespaces/other/configmaps", config_map("elsewhere"))
    frames = await stream.next_batch()
    assert seen(frames) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "b")]
    versions = [int(frame.body.plain()["metadata"]["resourceVersion"]) for frame in frames]
    assert versions == sorted(versions)
    assert frames[0].line().startswith(b'{"type":"ADDED","object":{"kind":"ConfigMap",')
    await stream.close()


async def test_selection_turns_changes_into_comings_and_goings(api: Api) -> None:
    stream = await api.open(f"{CMS}?watch=1&labelSelector=l=x")
    assert seen(await stream.next_batch()) == [("ADDED", "a")]
    await api.post(CMS, config_map("b", labels={"l": "y"}))
    await api.patch(f"{CMS}/b", {"metadata": {"labels": {"l": "x"}}})
    await api.patch(f"{CMS}/b", {"data": {"n": "1"}})
    await api.patch(f"{CMS}/b", {"metadata": {"labels": {"l": "z"}}})
    await api.patch(f"{CMS}/b", {"data": {"n": "2"}})
    await api.delete(f"{CMS}/b")
    await api.delete(f"{CMS}/a")
    frames = await stream.next_batch()
    assert seen(frames) == [("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "b"), ("DELETED", "a")]
    gone = frames[2].body.plain()
    assert gone["metadata"]["labels"] == {"l": "x"}  # as it last matched, at the version at which it stopped
    assert int(gone["metadata"]["resourceVersion"]) > int(frames[1].body.plain()["metadata"]["resourceVersion"])
    await stream.close()


async def test_field_selection_follows_a_pod_to_its_node(api: Api) -> None:
    stream = await api.open("/api/v1/pods?watch=1&fieldSelector=spec.nodeName=n1")
    await api.post(f"{NS}/pods", pod("p"))
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
    await api.post(f"{NS}/pods/p/binding", binding)
    assert seen(await stream.next_batch()) == [("ADDED", "p")]
    await stream.close()


async def test_initial_events_end_with_a_bookmark(api: Api) -> None:
    query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    stream = await api.open(f"{CMS}?{query}")
    added, bookmark = await stream.next_batch()
    assert added.type == "ADDED"
    assert bookmark.type == "BOOKMARK"
    assert bookmark.body.plain() == {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": "3", "annotations": {"k8s.io/initial-events-end": "true"}},
    }
    await stream.close()
    stream = await api.open(f"{CMS}?{query.replace('=true', '=false', 1)}")
    await api.post(CMS, config_map("b"))
    assert seen(await stream.next_batch()) == [("ADDED", "b")]
    await stream.close()


REFUSED: list[Any] = [
    pytest.param("watch=1&sendInitialEvents=true", 422, id="initial-events-without-match"),
    pytest.param("watch=1&resourceVersionMatch=Exact&resourceVersion=1", 422, id="match-without-initial-events"),
    pytest.param("watch=1&resourceVersion=x", 500, id="not-a-number"),
    pytest.param("watch=1&labelSelector=a b", 400, id="bad-selector"),
    pytest.param(
        "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=99", 504, id="too-large"
    ),
]


@pytest.mark.parametrize(("query", "status"), REFUSED)
async def test_refusals(api: Api, query: str, status: int) -> None:
    answer = await api.watch(f"{CMS}?{query}")
    assert isinstance(answer, ApiResponse)
    assert answer.status == status


async def test_forgotten_version_is_said_in_the_stream(api: Api) -> None:
    stream = await api.open(f"{CMS}?watch=1&resourceVersion=1")
    (frame,) = await stream.next_batch()
    body = frame.body.plain()
    assert (frame.type, body["code"], body["reason"]) == ("ERROR", 410, "Expired")
    assert body["message"].startswith("too old resource version: 1 (")
    assert await stream.next_batch() == []


async def test_slow_reader_is_told_to_list_again() -> None:
    api = await fresh(store=ObjectStore(history_events=4))
    stream = await api.open(f"{CMS}?watch=1")
    for i in range(12):
        await api.post(CMS, config_map(f"c{i}"))
    (frame,) = await stream.next_batch()
    assert (frame.type, frame.body.plain()["code"]) == ("ERROR", 410)
    assert await stream.next_batch() == []


async def test_tables_head_only_the_first_event(api: Api) -> None:
    stream = await api.open(f"{CMS}?watch=1", accept=TABLE)
    await api.post(CMS, config_map("b"))
    (first,) = await stream.next_batch()
    (second,) = await stream.next_batch()
    assert first.body.plain()["columnDefinitions"]
    assert second.body.plain()["columnDefinitions"] is None
    assert second.body.plain()["rows"][0]["cells"][0] == "b"
    await stream.close()
    stream = await api.open(f"{CMS}?watch=1", accept=PARTIAL)
    (frame, _) = await stream.next_batch()
    assert set(frame.body.plain()) == {"kind", "apiVersion", "metadata"}
    await stream.close()


async def test_old_watch_path_of_one_object(api: Api) -> None:
    await api.post(CMS, config_map("b"))
    stream = await api.open("/api/v1/watch/namespaces/default/configmaps/b")
    assert seen(await stream.next_batch()) == [("ADDED", "b")]
    await stream.close()


async def test_closed_server_ends_its_watches(api: Api) -> None:
    stream = await api.open(f"{CMS}?watch=1")
    await stream.next_batch()
    reading = asyncio.create_task(stream.next_batch())
    await asyncio.sleep(0)
    await api.server.close()
    assert await reading == []


def test_bookmarks_come_each_minute_and_the_stream_ends_in_time() -> None:
    async def main(clock: LoopClock) -> None:
        server = ApiServer(catalog=builtin_catalog(), clock=clock, chance=random.Random(1), admission=AdmissionChain())
        query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": "150"}
        stream = await server.watch(ApiRequest(method="GET", path=CMS, query=query))
        assert isinstance(stream, ServerWatchStream)
        start = clock.time()
        times = []
        async for frame in stream:
            assert frame.type == "BOOKMARK"
            times.append(clock.time() - start)
        assert times == [60, 120]
        assert clock.time() - start == 150

    run_virtual(main)


OPS = st.lists(
    st.tuples(st.sampled_from(["create", "change", "relabel", "delete"]), st.integers(0, 4), st.sampled_from("xy")),
    max_size=25,
)


@settings(max_examples=40, deadline=None)
@given(before=OPS, after=OPS, selector=st.sampled_from(["", "&labelSelector=l=x", "&fieldSelector=metadata.name=c1"]))
async def test_a_list_and_its_watch_end_where_a_new_list_is(
    before: list[tuple[str, int, str]], after: list[tuple[str, int, str]], selector: str
) -> None:
    api = await fresh()

    async def run(ops: list[tuple[str, int, str]]) -> None:
        for number, (op, target, label) in enumerate(ops):
            name = f"c{target}"
            if op == "create":
                await api.post(CMS, config_map(name, labels={"l": label}))
            elif op == "change":
                await api.patch(f"{CMS}/{name}", {"data": {"n": str(number)}})
            elif op == "relabel":
                await api.patch(f"{CMS}/{name}", {"metadata": {"labels": {"l": label}}})
            else:
                await api.delete(f"{CMS}/{name}")

    await run(before)
    _, listed = await api.get(f"{CMS}?limit=0{selector}")
    known = {item["metadata"]["name"]: item for item in listed["items"]}
    stream = await api.open(f"{CMS}?watch=1&resourceVersion={listed['metadata']['resourceVersion']}{selector}")
    await run(after)
    await api.post(CMS, config_map("end", labels={"l": "x"}))
    expected = {item["metadata"]["name"]: item for item in (await api.get(f"{CMS}?limit=0{selector}"))[1]["items"]}
    api.clock.advance(10_000)  # past the end of the watch: a batch never waits
    while frames := await stream.next_batch():
        for frame in frames:
            obj = frame.body.plain()
            name = obj["metadata"]["name"]
            assert (frame.type == "ADDED") == (name not in known)
            if frame.type == "DELETED":
                del known[name]
            else:
                known[name] = obj
    assert known == expected
