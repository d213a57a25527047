"""These tests check that bodies of kubectl 1.32 decode to its own JSON and are accepted."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from koord.embedded.apiserver.protobuf.messages import MEDIA_TYPE, decode_envelope, open_envelope
from koord.embedded.apiserver.schema.builtin_decoding import decode_builtin
from koord.embedded.apiserver.schema.builtin_types import builtin_types
from tests.embedded.apiserver.rest_harness import Api, fresh, pod

SENT: dict[str, Any] = json.loads(Path(__file__).with_name("kubectl.json").read_text())
CREATED = [name for name in SENT if "json" in SENT[name]]
ACCEPT = "application/vnd.kubernetes.protobuf,application/json"

ASKED: dict[str, Any] = {
    "may-i": {
        "spec": {
            "resourceAttributes": {
                "namespace": "team",
                "verb": "create",
                "group": "apps",
                "resource": "deployments",
                "subresource": "scale",
            }
        },
        "status": {"allowed": False},
    },
    "who-am-i": {"status": {"userInfo": {}}},
    "rules": {
        "spec": {"namespace": "team"},
        "status": {"resourceRules": None, "nonResourceRules": None, "incomplete": False},
    },
    "delete-options": {"gracePeriodSeconds": 7},
}


def read(name: str) -> dict[str, Any]:
    """Return the object after the round trip through its type that the server gives every object."""
    plain = decode_envelope(open_envelope(base64.b64decode(SENT[name]["body"]), "", ""))
    group, _, version = plain["apiVersion"].rpartition("/")
    node = builtin_types().node_for(group, version, plain["kind"])
    assert node is not None
    result = decode_builtin(plain, node)
    assert not result.error
    found: dict[str, Any] = result.value
    return found


@pytest.mark.parametrize("name", CREATED)
def test_same_object_as_kubectl_prints(name: str) -> None:
    found, printed = read(name), SENT[name]["json"]
    # kubectl fills the namespace in when it prints, and the server when it takes the object.
    printed["metadata"].pop("namespace", None)
    found["metadata"].pop("namespace", None)
    for shown in (found, printed):
        for empty in ("creationTimestamp", "status"):
            _drop_empty(shown, empty)
    assert found == printed


def _drop_empty(value: Any, key: str) -> None:
    """Drop null times and empty structs, which only some releases write."""
    if isinstance(value, dict):
        if value.get(key, "") in (None, {}):
            del value[key]
        for inner in value.values():
            _drop_empty(inner, key)
    elif isinstance(value, list):
        for inner in value:
            _drop_empty(inner, key)


@pytest.mark.parametrize("name", ASKED)
def test_questions_and_options(name: str) -> None:
    found = {key: value for key, value in read(name).items() if key not in ("kind", "apiVersion", "metadata")}
    assert found == ASKED[name]


def test_every_recorded_body_is_judged() -> None:
    assert {*CREATED, *ASKED} == set(SENT)


async def send(api: Api, name: str) -> tuple[int, Any]:
    sent = SENT[name]
    body = base64.b64decode(sent["body"])
    return await api.ask(sent["method"], sent["path"], body, content_type=MEDIA_TYPE, accept=ACCEPT)


@pytest.mark.parametrize("name", CREATED)
async def test_server_creates_it_and_answers_json(name: str) -> None:
    api = await fresh()
    status, body = await send(api, name)
    assert (status, body["kind"]) == (201, SENT[name]["json"]["kind"])
    assert body["metadata"]["uid"]
    assert api.last is not None
    assert api.last.content_type == "application/json"


async def test_reviews_are_answered() -> None:
    api = await fresh()
    assert (await send(api, "may-i"))[1]["status"]["allowed"] is True
    assert (await send(api, "who-am-i"))[1]["status"]["userInfo"]["username"] == "tester"
    assert (await send(api, "rules"))[1]["status"]["resourceRules"]


async def test_grace_period_in_delete_options_counts() -> None:
    api = await fresh()
    await api.post("/api/v1/namespaces/default/pods", pod("on-n1", nodeName="n1"))
    status, body = await send(api, "delete-options")
    assert (status, body["metadata"]["deletionGracePeriodSeconds"]) == (200, 7)
