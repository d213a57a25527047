"""GET of objects and collections: pages, snapshots, versions, selectors, and response formats."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.api.kubernetes.meta import Object
from koord.embedded.apiserver.store.object_store import ObjectStore
from koord.kube.client.list_watch import list_page_type
from tests.embedded.apiserver.rest_harness import NS, PARTIAL, PARTIAL_LIST, TABLE, Api, config_map, fresh, pod

CMS = f"{NS}/configmaps"


def names(body: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in body["items"]]


@pytest.fixture
async def api() -> Api:
    made = await fresh()
    for i in range(5):
        await made.post(CMS, config_map(f"c{i}", labels={"i": str(i % 2)}))
    return made


async def test_raw_list_is_the_stored_bytes_without_kind(api: Api) -> None:
    _, body = await api.get(CMS)
    assert api.last is not None
    raw = msgspec.json.decode(api.last.body.raw())
    assert (raw["kind"], raw["apiVersion"]) == ("ConfigMapList", "v1")
    assert raw["metadata"] == body["metadata"]
    bare = [{k: v for k, v in item.items() if k not in ("kind", "apiVersion")} for item in body["items"]]
    assert raw["items"] == bare


async def test_typed_pages_share_their_items(api: Api) -> None:
    await api.get(CMS)
    assert api.last is not None
    page = list_page_type(Object)
    first, second = api.last.body.typed(page), api.last.body.typed(page)
    assert first.metadata.resource_version == "7"
    assert [item.metadata.name for item in first.items] == [f"c{i}" for i in range(5)]
    assert first.items[0] is second.items[0]


async def test_pages_are_one_snapshot(api: Api) -> None:
    _, first = await api.get(f"{CMS}?limit=2")
    assert (names(first), first["metadata"]["remainingItemCount"]) == (["c0", "c1"], 3)
    await api.delete(f"{CMS}/c3")
    await api.post(CMS, config_map("c2a"))
    _, second = await api.get(f"{CMS}?limit=2&continue={first['metadata']['continue']}")
    assert names(second) == ["c2", "c3"]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    _, last = await api.get(f"{CMS}?limit=2&continue={second['metadata']['continue']}")
    assert (names(last), "continue" in last["metadata"]) == (["c4"], False)
    assert names((await api.get(CMS))[1]) == ["c0", "c1", "c2", "c2a", "c4"]


async def test_forgotten_snapshot_is_gone_with_a_way_on() -> None:
    api = await fresh(store=ObjectStore(history_events=4))
    for i in range(4):
        await api.post(CMS, config_map(f"c{i}"))
    _, first = await api.get(f"{CMS}?limit=1")
    for i in range(8):
        await api.patch(f"{CMS}/c3", {"data": {"n": str(i)}})
    status, body = await api.get(f"{CMS}?limit=1&continue={first['metadata']['continue']}")
    assert (status, body["reason"]) == (410, "Expired")
    status, body = await api.get(f"{CMS}?limit=10&continue={body['metadata']['continue']}")
    assert (status, names(body)) == (200, ["c1", "c2", "c3"])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 30)), unique=True, max_size=20), st.integers(1, 7))
async def test_pages_of_any_size_add_up_to_the_list(objects: list[tuple[str, int]], limit: int) -> None:
    api = await fresh()
    for namespace, number in objects:
        await api.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
        await api.post(f"/api/v1/namespaces/{namespace}/configmaps", config_map(f"c{number}"))
    for path in ("/api/v1/configmaps", "/api/v1/namespaces/a/configmaps", "/api/v1/namespaces"):
        _, whole = await api.get(path)
        found, token = [], ""
        while True:
            _, page = await api.get(f"{path}?limit={limit}" + (f"&continue={token}" if token else ""))
            assert len(page["items"]) <= limit
            found += page["items"]
            token = page["metadata"].get("continue", "")
            if not token:
                break
        assert found == whole["items"]


VERSIONS: list[Any] = [
    pytest.param("resourceVersion=0", 200, None, id="any"),
    pytest.param("resourceVersion=0&limit=1", 200, None, id="any-is-not-paged"),
    pytest.param("resourceVersion=5&resourceVersionMatch=Exact", 200, ["c0", "c1", "c2"], id="exact"),
    pytest.param("resourceVersion=5&resourceVersionMatch=NotOlderThan", 200, None, id="not-older"),
    pytest.param("resourceVersion=5&limit=9", 200, ["c0", "c1", "c2"], id="paged-is-exact"),
    pytest.param("resourceVersion=1&resourceVersionMatch=Exact", 410, None, id="too-old"),
    pytest.param("resourceVersion=999", 504, None, id="too-large"),
    pytest.param("resourceVersion=abc", 400, None, id="not-a-number"),
    pytest.param("resourceVersionMatch=Exact", 422, None, id="match-without-version"),
    pytest.param("resourceVersion=0&resourceVersionMatch=Exact", 422, None, id="exactly-any"),
    pytest.param("resourceVersion=1&resourceVersionMatch=Foo", 422, None, id="unknown-match"),
    pytest.param("sendInitialEvents=true", 422, None, id="events-of-a-list"),
    pytest.param("limit=abc", 400, None, id="bad-limit"),
    pytest.param("continue=abc", 400, None, id="bad-token"),
]


@pytest.mark.parametrize(("query", "status", "found"), VERSIONS)
async def test_versions(api: Api, query: str, status: int, found: list[str] | None) -> None:
    got, body = await api.get(f"{CMS}?{query}")
    assert got == status
    if status == 200:
        assert names(body) == (found or [f"c{i}" for i in range(5)])


SELECTORS: list[Any] = [
    pytest.param("labelSelector=i=0", ["c0", "c2", "c4"], id="label"),
    pytest.param("labelSelector=i notin (0)", ["c1", "c3"], id="label-set"),
    pytest.param("fieldSelector=metadata.name=c1", ["c1"], id="name"),
    pytest.param("fieldSelector=metadata.name!=c1,metadata.namespace=default", ["c0", "c2", "c3", "c4"], id="not-name"),
    pytest.param("labelSelector=i=0&fieldSelector=metadata.name=c1", [], id="both"),
    pytest.param("labelSelector=i=0&limit=2", ["c0", "c2"], id="paged"),
]


@pytest.mark.parametrize(("query", "found"), SELECTORS)
async def test_selectors(api: Api, query: str, found: list[str]) -> None:
    # The harness splits at every "=" but the first: that is what a door does after unescaping.
    _, body = await api.get(f"{CMS}?{query}")
    assert names(body) == found
    assert "remainingItemCount" not in body["metadata"]


async def test_selectable_fields_are_the_kinds_own(api: Api) -> None:
    await api.post(f"{NS}/pods", pod("here", nodeName="n1"))
    await api.post(f"{NS}/pods", pod("there", nodeName="n2"))
    assert names((await api.get("/api/v1/pods?fieldSelector=spec.nodeName=n1"))[1]) == ["here"]
    status, body = await api.get("/api/v1/pods?fieldSelector=spec.foo=1")
    assert (status, body["message"]) == (400, "field label not supported: spec.foo")
    status, body = await api.get(f"{CMS}?fieldSelector=data.x=1")
    assert body["message"] == ('"data.x" is not a known field selector: only "metadata.name", "metadata.namespace"')
    status, body = await api.get(f"{CMS}?labelSelector=a b")
    assert (status, body["reason"]) == (400, "BadRequest")


async def test_get_by_version(api: Api) -> None:
    assert (await api.get(f"{CMS}/c0?resourceVersion=0"))[0] == 200
    assert (await api.get(f"{CMS}/c0?resourceVersion=99"))[0] == 504
    assert (await api.get(f"{CMS}/c0?resourceVersion=x"))[0] == 500


async def test_tables(api: Api) -> None:
    api.clock.advance(130)
    _, body = await api.get(f"{CMS}?limit=1", accept=f"{TABLE},application/json")
    assert [column["name"] for column in body["columnDefinitions"]] == ["Name", "Data", "Age"]
    (row,) = body["rows"]
    assert row["cells"] == ["c0", 1, "2m10s"]
    assert row["object"]["kind"] == "PartialObjectMetadata"
    assert body["metadata"]["remainingItemCount"] == 4
    _, bare = await api.get(f"{CMS}/c0?includeObject=None", accept=TABLE)
    assert bare["rows"][0]["object"] is None
    _, full = await api.get(f"{CMS}/c0?includeObject=Object", accept=TABLE)
    assert full["rows"][0]["object"]["data"] == {"k": "v"}
    assert (await api.get(f"{CMS}?includeObject=Foo", accept=TABLE))[0] == 400


async def test_metadata_only(api: Api) -> None:
    _, one = await api.get(f"{CMS}/c0", accept=PARTIAL)
    assert set(one) == {"kind", "apiVersion", "metadata"}
    _, many = await api.get(CMS, accept=PARTIAL_LIST)
    assert (many["kind"], len(many["items"])) == ("PartialObjectMetadataList", 5)
    assert (await api.get(CMS, accept=PARTIAL))[0] == 406


ACCEPTS: list[Any] = [
    pytest.param("", 200, id="nothing-said"),
    pytest.param("text/html,*/*", 200, id="anything"),
    pytest.param("application/vnd.kubernetes.protobuf,application/json", 200, id="json-after-protobuf"),
    pytest.param("application/vnd.kubernetes.protobuf", 406, id="protobuf-only"),
    pytest.param("text/plain", 406, id="text"),
    pytest.param("application/json;as=Foo;v=v1;g=meta.k8s.io", 406, id="unknown-shape"),
]


@pytest.mark.parametrize(("accept", "status"), ACCEPTS)
async def test_negotiation(api: Api, accept: str, status: int) -> None:
    assert (await api.get(CMS, accept=accept))[0] == status


async def test_yaml_and_pretty(api: Api) -> None:
    await api.get(f"{CMS}/c0", accept="application/yaml")
    assert api.last is not None
    assert b"kind: ConfigMap\n" in api.last.body.raw()
    await api.get(f"{CMS}/c0?pretty=true")
    assert api.last.body.raw().startswith(b'{\n  "kind"')


async def test_events_are_one_collection_under_two_groups(api: Api) -> None:
    event = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "note": "hello",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "test",
    }
    status, made = await api.post("/apis/events.k8s.io/v1/namespaces/default/events", event)
    assert (status, made["note"]) == (201, "hello")
    _, core = await api.get(f"{NS}/events/e")
    assert (core["message"], core["involvedObject"]["name"], core["apiVersion"]) == ("hello", "p", "v1")
    _, listed = await api.get("/apis/events.k8s.io/v1/events")
    assert listed["items"][0]["regarding"]["name"] == "p"


async def test_events_are_forgotten_after_an_hour(api: Api) -> None:
    await api.post(f"{NS}/events", {"metadata": {"name": "old"}, "involvedObject": {}})
    api.clock.advance(3000)
    await api.post(f"{NS}/events", {"metadata": {"name": "young"}, "involvedObject": {}})
    api.clock.advance(700)
    assert api.server.expire_events() == pytest.approx(2900)
    assert names((await api.get(f"{NS}/events"))[1]) == ["young"]
