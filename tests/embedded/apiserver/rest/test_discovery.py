"""Paths that are not objects: discovery, health, version, OpenAPI, reviews, and unknown paths."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.embedded.apiserver.catalog import ResourceCatalog, ServedResource, version_priority
from koord.embedded.apiserver.rest.request_context import ResourcePath, parse_resource_path
from koord.embedded.apiserver.schema.builtin_decoding import DecodeResult
from koord.embedded.apiserver.schema.schema_node import SchemaNode
from koord.embedded.apiserver.server import builtin_catalog
from tests.embedded.apiserver.rest_harness import NS, Api, fresh

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@pytest.fixture
async def api() -> Api:
    return await fresh()


ROUTES: list[Any] = [
    pytest.param("/api/v1/pods", ResourcePath("", "v1", "pods"), id="all-namespaces"),
    pytest.param("/api/v1/namespaces", ResourcePath("", "v1", "namespaces"), id="namespaces"),
    pytest.param("/api/v1/namespaces/a", ResourcePath("", "v1", "namespaces", None, "a"), id="one-namespace"),
    pytest.param("/api/v1/namespaces/a/", ResourcePath("", "v1", "namespaces", None, "a"), id="trailing-slash"),
    pytest.param(
        "/api/v1/namespaces/a/status", ResourcePath("", "v1", "namespaces", None, "a", "status"), id="its-status"
    ),
    pytest.param("/api/v1/namespaces/a/pods", ResourcePath("", "v1", "pods", "a"), id="in-a-namespace"),
    pytest.param("/api/v1/namespaces//pods", ResourcePath("", "v1", "pods", ""), id="in-no-namespace"),
    pytest.param("/api/v1/namespaces/a/pods/p/log", ResourcePath("", "v1", "pods", "a", "p", "log"), id="subresource"),
    pytest.param(
        "/apis/apps/v1/namespaces/a/deployments/d", ResourcePath("apps", "v1", "deployments", "a", "d"), id="with-group"
    ),
    pytest.param("/api/v1/watch/nodes/n", ResourcePath("", "v1", "nodes", None, "n", watch=True), id="old-watch"),
    pytest.param(
        "/api/v1/nodes/n/proxy/a/b", ResourcePath("", "v1", "nodes", None, "n", "proxy", "a/b"), id="proxy-tail"
    ),
    pytest.param("/apis/apps/v1", None, id="group-version"),
    pytest.param("/healthz", None, id="not-an-api"),
]


@pytest.mark.parametrize(("path", "found"), ROUTES)
def test_routes(path: str, found: ResourcePath | None) -> None:
    assert parse_resource_path(path) == found


def test_versions_in_order_of_trust() -> None:
    given = ["v1alpha1", "v2", "foo", "v1", "v11beta2", "v10", "v1beta1", "v12alpha1"]
    assert sorted(given, key=version_priority) == [
        "v10",
        "v2",
        "v1",
        "v11beta2",
        "v1beta1",
        "v12alpha1",
        "v1alpha1",
        "foo",
    ]


async def test_old_discovery(api: Api) -> None:
    _, roots = await api.get("/apis")
    assert [group["name"] for group in roots["groups"]][:2] == ["apiregistration.k8s.io", "apps"]
    _, group = await api.get("/apis/autoscaling")
    assert group["preferredVersion"]["version"] == "v2"
    _, core = await api.get("/api/v1")
    rows = {row["name"]: row for row in core["resources"]}
    assert rows["pods"]["shortNames"] == ["po"]
    assert rows["pods/eviction"] | {"verbs": None} == {
        "name": "pods/eviction",
        "singularName": "",
        "namespaced": True,
        "group": "policy",
        "version": "v1",
        "kind": "Eviction",
        "verbs": None,
    }
    assert (await api.get("/api"))[1]["versions"] == ["v1"]


async def test_aggregated_discovery_follows_the_catalog(api: Api) -> None:
    _, before = await api.get("/apis", accept=AGGREGATED)
    assert api.last is not None
    tag = api.last.headers["ETag"]
    assert api.last.content_type == AGGREGATED
    body = before if isinstance(before, dict) else json.loads(before)
    assert body["kind"] == "APIGroupDiscoveryList"

    widgets = ServedResource(
        group="example.com",
        version="v1",
        kind="Widget",
        plural="widgets",
        verbs=("get", "list"),
        schema_node=SchemaNode(kind="object"),
        decode=DecodeResult,
        custom=True,
    )
    api.server.catalog.add(widgets)
    await api.get("/apis", accept=AGGREGATED)
    assert api.last.headers["ETag"] != tag
    assert (await api.get("/apis/example.com/v1"))[1]["resources"][0]["name"] == "widgets"
    assert (await api.get("/apis/example.com/v1/widgets"))[0] == 200
    api.server.catalog.remove("example.com", "v1", "widgets")
    assert (await api.get("/apis/example.com/v1/widgets"))[0] == 404


def test_custom_groups_come_last_and_stored_versions_first() -> None:
    catalog: ResourceCatalog = builtin_catalog()
    assert list(catalog.versions())[:3] == ["", "apiregistration.k8s.io", "apps"]
    assert [r.group for r in catalog.served_versions("events")] == ["", "events.k8s.io"]
    assert [r.version for r in catalog.served_versions("horizontalpodautoscalers.autoscaling")] == ["v2", "v1"]


NOWHERE: list[Any] = [
    pytest.param("/nope", "text/plain; charset=utf-8", id="root"),
    pytest.param("/apis/nope", "text/plain; charset=utf-8", id="group"),
    pytest.param("/apis/apps/v9", "application/json", id="version"),
    pytest.param("/api/v1/nope", "application/json", id="resource"),
    pytest.param(f"{NS}/pods/x/nope", "application/json", id="subresource"),
    pytest.param("/api/v1/namespaces/default/nodes", "application/json", id="cluster-kind-in-a-namespace"),
    pytest.param("/api/v1/pods/x", "application/json", id="namespaced-object-without-namespace"),
]


@pytest.mark.parametrize(("path", "content_type"), NOWHERE)
async def test_paths_that_nobody_serves(api: Api, path: str, content_type: str) -> None:
    status, body = await api.get(path)
    assert api.last is not None
    assert (status, api.last.content_type) == (404, content_type)
    if content_type == "application/json":
        assert (body["message"], body["details"]) == ("the server could not find the requested resource", {})


async def test_methods_that_a_path_does_not_have(api: Api) -> None:
    for method, path in (("POST", "/api/v1/configmaps"), ("PUT", f"{NS}/pods"), ("POST", f"{NS}/pods/p")):
        status, body = await api.ask(method, path, {})
        assert (status, body["reason"], body["details"]) == (405, "MethodNotAllowed", {})


async def test_health_and_version(api: Api) -> None:
    assert await api.get("/healthz") == (200, "ok")
    assert await api.get("/livez/ping") == (200, "ok")
    assert (await api.get("/readyz/nope"))[0] == 404
    assert (await api.get("/readyz?verbose"))[1] == "[+]ping ok\n[+]store ok\nreadyz check passed\n"
    assert '"minor": "35"' in (await api.get("/version"))[1]
    assert "/apis/apps/v1" in (await api.get("/"))[1]["paths"]


async def test_metrics_tell_what_is_stored(api: Api) -> None:
    assert "/metrics" in (await api.get("/"))[1]["paths"]
    _, before = await api.get("/metrics")
    assert 'apiserver_storage_objects{resource="configmaps"} 0' not in before
    status, _ = await api.ask("POST", f"{NS}/configmaps", {"metadata": {"name": "c"}})
    assert status == 201
    _, after = await api.get("/metrics")
    assert 'apiserver_storage_objects{resource="configmaps"} 1\n' in after
    assert revision(after) > revision(before)
    assert "process_resident_memory_bytes" in after
    _, opened = await api.get("/metrics", accept="application/openmetrics-text")
    assert opened.endswith("# EOF\n")


def revision(text: str) -> float:
    (line,) = [one for one in text.splitlines() if one.startswith("koord_apiserver_store_revision ")]
    return float(line.split()[1])


async def test_openapi_documents(api: Api) -> None:
    await api.get("/openapi/v3")
    assert api.last is not None
    paths = json.loads(api.last.body.raw())["paths"]
    status, _ = await api.get(paths["apis/apps/v1"]["serverRelativeURL"])
    assert status == 200
    assert (await api.get("/openapi/v2"))[0] == 200
    assert (await api.get("/openapi/v3/apis/nope/v1"))[0] == 404
    assert (await api.get("/openapi/v3/apis/apps/v1", accept="text/html"))[0] == 406


class Test_reviews:
    AUTHORIZATION = "/apis/authorization.k8s.io/v1"
    AUTHENTICATION = "/apis/authentication.k8s.io/v1"

    async def test_everything_is_allowed(self, api: Api) -> None:
        spec = {"resourceAttributes": {"verb": "get", "resource": "pods"}}
        status, body = await api.post(f"{self.AUTHORIZATION}/selfsubjectaccessreviews", {"spec": spec})
        assert (status, body["status"]) == (201, {"allowed": True})
        status, body = await api.post(f"{self.AUTHORIZATION}/subjectaccessreviews", {"spec": {**spec, "user": "bob"}})
        assert (status, body["status"]) == (201, {"allowed": True})
        _, body = await api.post(f"{self.AUTHORIZATION}/selfsubjectrulesreviews", {"spec": {"namespace": "default"}})
        assert body["status"]["resourceRules"][0]["verbs"] == ["*"]

    async def test_questions_must_make_sense(self, api: Api) -> None:
        status, body = await api.post(f"{self.AUTHORIZATION}/selfsubjectaccessreviews", {"spec": {}})
        assert (status, body["message"]) == (
            422,
            '.authorization.k8s.io "" is invalid: spec.resourceAttributes: Invalid value: null: exactly one of '
            "nonResourceAttributes or resourceAttributes must be specified",
        )
        assert (await api.get(f"{self.AUTHORIZATION}/selfsubjectaccessreviews"))[0] == 405

    async def test_who_am_i(self, api: Api) -> None:
        _, body = await api.post(f"{self.AUTHENTICATION}/selfsubjectreviews", {})
        assert body["status"]["userInfo"]["username"] == "tester"
        _, body = await api.post(f"{self.AUTHENTICATION}/tokenreviews", {"spec": {"token": "secret"}})
        assert (body["status"]["authenticated"], body["status"]["user"]["username"]) == (True, "tester")
        _, body = await api.post(f"{self.AUTHENTICATION}/tokenreviews", {"spec": {"token": "other"}})
        assert body["status"] == {"user": {}, "error": "invalid bearer token"}
