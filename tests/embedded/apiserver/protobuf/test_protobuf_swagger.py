"""These tests check that OpenAPI 2 in protobuf equals gnostic's bytes, and which clients get it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from koord.embedded.apiserver.protobuf import swagger
from koord.kube.transport.interface import ApiRequest
from tests.embedded.apiserver.rest_harness import Api, fresh

FROZEN: dict[str, Any] = json.loads(Path(__file__).with_name("swagger.json").read_text())
PACKED, OLD = swagger.MEDIA_TYPES


def test_same_bytes_as_gnostic() -> None:
    assert swagger.encode_openapi_v2(FROZEN["document"]) == base64.b64decode(FROZEN["protobuf"])


def test_what_openapi_2_does_not_know_is_left_out() -> None:
    schema = {"type": "object", "oneOf": [{}], "nullable": True}
    known = {"definitions": {"A": {"type": "object"}}}
    assert swagger.encode_openapi_v2({"definitions": {"A": schema}}) == swagger.encode_openapi_v2(known)


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        pytest.param("", "application/json", id="nothing-said"),
        pytest.param("*/*", "application/json", id="anything"),
        pytest.param(PACKED, PACKED, id="protobuf"),
        pytest.param(OLD, PACKED, id="protobuf-as-it-was-spelled"),
        pytest.param(f"application/json;q=0.5,{OLD}", PACKED, id="protobuf-rather"),
        pytest.param(f"application/json,{OLD}", "application/json", id="json-first"),
        pytest.param("application/vnd.kubernetes.protobuf", "", id="protobuf-of-objects"),
        pytest.param("text/html", "", id="html"),
    ],
)
async def test_negotiation(accept: str, media: str) -> None:
    api = await fresh()
    status, _ = await _ask(api, accept)
    assert api.last is not None
    assert status == (200 if media else 406)
    if media:
        assert api.last.content_type == media
        assert api.last.headers["ETag"]


async def test_new_kinds_are_in_it() -> None:
    api = await fresh()
    await api.server.start()
    before = (await _ask(api, PACKED))[1]
    definition = {
        "metadata": {"name": "things.team.example"},
        "spec": {
            "group": "team.example",
            "scope": "Cluster",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }
    status, _ = await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    assert status == 201
    after = (await _ask(api, PACKED))[1]
    await api.server.close()
    assert b"example.team.v1.Thing" not in before
    assert b"example.team.v1.Thing" in after


async def _ask(api: Api, accept: str) -> tuple[int, bytes]:
    """Send the request without the harness, which decodes every body as text."""
    api.last = await api.server.handle(ApiRequest(method="GET", path="/openapi/v2", accept=accept, user="tester"))
    return api.last.status, api.last.body.raw()
