"""Protobuf bodies as kube-apiserver 1.35 encoded them are read as it shows them in JSON; broken ones are
refused.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.embedded.apiserver.protobuf.messages import MEDIA_TYPE, MalformedProtobuf, decode_envelope, open_envelope
from koord.embedded.apiserver.server import builtin_catalog
from tests.embedded.apiserver.rest_harness import NS, fresh

PROBES: dict[str, Any] = json.loads(Path(__file__).with_name("protobuf").joinpath("served.json").read_text())
CATALOG = builtin_catalog()


@pytest.mark.parametrize("name", PROBES)
def test_same_object_as_in_json(name: str) -> None:
    shown = PROBES[name]["json"]
    read = decode_envelope(open_envelope(base64.b64decode(PROBES[name]["protobuf"]), "", ""))
    group, _, version = shown["apiVersion"].rpartition("/")
    resource = CATALOG.by_kind(group, version, shown["kind"])
    assert resource is not None
    found = resource.decode(read)
    assert (found.error, found.unknown) == ("", ())
    assert found.value == resource.decode(shown).value


async def test_server_takes_protobuf_and_answers_json() -> None:
    api = await fresh()
    raw = base64.b64decode(PROBES["config-map"]["protobuf"])
    path = "/api/v1/namespaces/pb-rest/configmaps"
    status, body = await api.post(path, raw, content_type=MEDIA_TYPE)
    assert status == 500  # it carries a resourceVersion, so it was read to the end
    assert "resourceVersion" in body["message"]
    status, body = await api.post(f"{NS}/pods", raw, content_type=MEDIA_TYPE)
    assert (status, "cannot be handled as a Pod" in body["message"]) == (400, True)


BROKEN: list[Any] = [
    pytest.param(b"", "empty data", id="empty"),
    pytest.param(b"{}", "does not appear to be a protobuf message", id="json"),
    pytest.param(b"k8s\x00\x0a\x05v1", "unexpected EOF", id="cut"),
    pytest.param(b"k8s\x00\x0a\x05\x12\x03Foo", 'no kind "Foo" is registered for version "v1"', id="no-such-kind"),
]


@pytest.mark.parametrize(("raw", "why"), BROKEN)
async def test_broken_bodies(raw: bytes, why: str) -> None:
    api = await fresh()
    status, body = await api.post(f"{NS}/configmaps", raw, content_type=MEDIA_TYPE)
    assert status == 400
    assert why in body["message"]


@given(name=st.sampled_from(sorted(PROBES)), at=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.booleans())
def test_damage_is_refused_or_read_never_a_crash(name: str, at: int, byte: int, cut: bool) -> None:
    raw = bytearray(base64.b64decode(PROBES[name]["protobuf"]))
    at %= len(raw)
    if cut:
        del raw[at:]
    else:
        raw[at] = byte
    try:
        found = decode_envelope(open_envelope(bytes(raw), "v1", "ConfigMap"))
    except MalformedProtobuf:
        return
    assert isinstance(found, dict)
