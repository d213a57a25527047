"""These tests check which requests accept protobuf bodies, and the real server's messages for broken ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from koord.embedded.apiserver.protobuf.messages import MEDIA_TYPE
from tests.embedded.apiserver.protobuf.malformed_bodies import PREFIX, REFUSED, SCHEME
from tests.embedded.apiserver.protobuf.wire_builders import MAGIC, chunk, envelope, named, number
from tests.embedded.apiserver.rest_harness import NS, Api, fresh, pod

CONFIG = f"{NS}/configmaps"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


@pytest.fixture
async def api() -> Api:
    return await fresh()


@pytest.mark.parametrize(("raw", "why"), REFUSED)
async def test_refused(api: Api, raw: bytes, why: str) -> None:
    status, body = await api.post(CONFIG, raw, content_type=MEDIA_TYPE)
    assert (status, body["reason"], body["message"]) == (400, "BadRequest", why)


NAMELESS: list[Any] = [
    pytest.param(MAGIC + chunk(2, named("x")), id="neither"),
    pytest.param(MAGIC + chunk(1, chunk(2, "ConfigMap")) + chunk(2, named("x")), id="kind-only"),
    pytest.param(MAGIC + chunk(1, chunk(1, "v1")) + chunk(2, named("x")), id="version-only"),
    pytest.param(envelope("a/b/c", "ConfigMap", named("x")), id="version-that-is-none"),
    pytest.param(envelope("v1", "ConfigMap", named("x")) + chunk(4, "application/json"), id="with-a-content-type"),
]


@pytest.mark.parametrize("raw", NAMELESS)
async def test_what_a_body_leaves_out_the_path_says(api: Api, raw: bytes) -> None:
    status, body = await api.post(CONFIG, raw, content_type=MEDIA_TYPE)
    assert (status, body["kind"], body["metadata"]["name"]) == (201, "ConfigMap", "x")


async def test_unknown_fields_pass_strict_validation(api: Api) -> None:
    raw = envelope("v1", "ConfigMap", named("x") + chunk(99, "new"))
    assert (await api.post(f"{CONFIG}?fieldValidation=Strict", raw, content_type=MEDIA_TYPE))[0] == 201


async def test_parameters_of_the_media_type_do_not_matter(api: Api) -> None:
    raw = envelope("v1", "ConfigMap", named("x"))
    assert (await api.post(CONFIG, raw, content_type=f"{MEDIA_TYPE};stream=watch"))[0] == 201


async def test_update(api: Api) -> None:
    await api.post(CONFIG, {"metadata": {"name": "x"}})
    raw = envelope("v1", "ConfigMap", named("x") + chunk(2, chunk(1, "k") + chunk(2, "v")))
    status, body = await api.put(f"{CONFIG}/x", raw, content_type=MEDIA_TYPE)
    assert (status, body["data"]) == (200, {"k": "v"})


async def test_patches_are_never_protobuf(api: Api) -> None:
    status, body = await api.patch(f"{CONFIG}/x", envelope("v1", "ConfigMap", b""), MEDIA_TYPE)
    assert (status, body["message"]) == (415, "415: Unsupported Media Type")


class Test_delete_options:
    @pytest.mark.parametrize("version", ["v1", "apps/v1", "meta.k8s.io/v1", "none.example/v1"])
    async def test_any_group_has_them(self, api: Api, version: str) -> None:
        await api.post(CONFIG, {"metadata": {"name": "x"}})
        raw = envelope(version, "DeleteOptions", chunk(5, "All"))
        assert (await api.delete(f"{CONFIG}/x", raw, content_type=MEDIA_TYPE))[0] == 200
        assert (await api.get(f"{CONFIG}/x"))[0] == 200  # it was a dry run

    async def test_uid_must_match(self, api: Api) -> None:
        await api.post(CONFIG, {"metadata": {"name": "x"}})
        raw = envelope("v1", "DeleteOptions", chunk(2, chunk(1, "other")))
        assert (await api.delete(f"{CONFIG}/x", raw, content_type=MEDIA_TYPE))[0] == 409

    @pytest.mark.parametrize(
        ("raw", "why"),
        [
            pytest.param(b"xxx", PREFIX, id="no-prefix"),
            pytest.param(MAGIC + b"\x0a\xff", "unexpected EOF", id="cut"),
            pytest.param(
                envelope("v1", "Pod", b""), f'no kind "Pod" is registered for version "v1" {SCHEME}', id="other-kind"
            ),
            pytest.param(
                envelope("v1", "DeleteOptions", chunk(1, "7")),
                "proto: wrong wireType = 2 for field GracePeriodSeconds",
                id="wrong-type",
            ),
        ],
    )
    async def test_refused(self, api: Api, raw: bytes, why: str) -> None:
        for path in (f"{CONFIG}/x", CONFIG):
            status, body = await api.delete(path, raw, content_type=MEDIA_TYPE)
            assert (status, body["message"]) == (400, why)

    async def test_other_formats(self, api: Api) -> None:
        status, body = await api.delete(f"{CONFIG}/x", b"{}", content_type="text/plain")
        assert (status, body["message"].rpartition(": ")[2]) == (
            415,
            "application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )


class Test_subresources:
    async def test_binding(self, api: Api) -> None:
        await api.post(f"{NS}/pods", pod("p"))
        raw = envelope("v1", "Binding", named("p") + chunk(2, chunk(1, "Node") + chunk(3, "n1")))
        assert (await api.post(f"{NS}/pods/p/binding", raw, content_type=MEDIA_TYPE))[0] == 201
        assert (await api.get(f"{NS}/pods/p"))[1]["spec"]["nodeName"] == "n1"

    @pytest.mark.parametrize("version", ["policy/v1", "policy/v1beta1"])
    async def test_eviction(self, api: Api, version: str) -> None:
        await api.post(f"{NS}/pods", pod("p"))
        raw = envelope(version, "Eviction", named("p") + chunk(2, number(1, 0)))
        assert (await api.post(f"{NS}/pods/p/eviction", raw, content_type=MEDIA_TYPE))[0] == 201
        assert (await api.get(f"{NS}/pods/p"))[0] == 404

    async def test_scale(self, api: Api) -> None:
        await api.post(DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"a": "b"}}}})
        raw = envelope("autoscaling/v1", "Scale", named("web") + chunk(2, number(1, 5)))
        status, body = await api.put(f"{DEPLOYMENTS}/web/scale", raw, content_type=MEDIA_TYPE)
        assert (status, body["spec"]["replicas"]) == (200, 5)

    @pytest.mark.parametrize(
        ("method", "path", "kind", "group"),
        [
            pytest.param("POST", f"{NS}/pods/p/eviction", "Eviction", "policy", id="eviction"),
            pytest.param("POST", f"{NS}/pods/p/binding", "Binding", "core", id="binding"),
            pytest.param("PUT", f"{DEPLOYMENTS}/web/scale", "Scale", "autoscaling", id="scale"),
        ],
    )
    async def test_refused(self, api: Api, method: str, path: str, kind: str, group: str) -> None:
        status, body = await api.ask(method, path, b"zzz", content_type=MEDIA_TYPE)
        unrecognized = f"the object provided is unrecognized (must be of type {kind}): {PREFIX} (7a7a7a)"
        assert (status, body["message"]) == (400, unrecognized)
        for other, media in ((envelope("v1", "Pod", b""), MEDIA_TYPE), ({"kind": "Pod", "apiVersion": "v1"}, "")):
            status, body = await api.ask(method, path, other, content_type=media)
            assert (status, body["message"]) == (
                400,
                f'Pod in version "v1" cannot be handled as a {kind}: '
                f"converting (v1.Pod) to ({group}.{kind}): unknown conversion",
            )


class Test_custom_kinds:
    DEFINITION = {
        "metadata": {"name": "things.team.example"},
        "spec": {
            "group": "team.example",
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {
                                "spec": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
                                "status": {"type": "object", "properties": {"replicas": {"type": "integer"}}},
                            },
                        }
                    },
                    "subresources": {
                        "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
                    },
                }
            ],
        },
    }
    THINGS = "/apis/team.example/v1/namespaces/default/things"

    @pytest.fixture
    async def things(self, api: Api) -> AsyncIterator[Api]:
        await api.server.start()  # from then on it serves what is defined
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        assert (await api.post(path, self.DEFINITION))[0] == 201
        thing = {"apiVersion": "team.example/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": {"replicas": 1}}
        assert (await api.post(self.THINGS, thing))[0] == 201
        yield api
        await api.server.close()

    async def test_have_no_protobuf(self, things: Api) -> None:
        raw = envelope("team.example/v1", "Thing", named("y"))
        for method, path in (("POST", self.THINGS), ("PUT", f"{self.THINGS}/x")):
            status, body = await things.ask(method, path, raw, content_type=MEDIA_TYPE)
            assert (status, body["reason"]) == (415, "UnsupportedMediaType")

    async def test_scale_and_delete_options_are_built_in(self, things: Api) -> None:
        raw = envelope("autoscaling/v1", "Scale", named("x") + chunk(2, number(1, 5)))
        status, body = await things.put(f"{self.THINGS}/x/scale", raw, content_type=MEDIA_TYPE)
        assert (status, body["spec"]["replicas"]) == (200, 5)
        raw = envelope("v1", "DeleteOptions", number(1, 0))
        assert (await things.delete(f"{self.THINGS}/x", raw, content_type=MEDIA_TYPE))[0] == 200
