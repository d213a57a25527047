"""A real kube-apiserver's protobuf: its objects read as its JSON shows them, and its words for broken bodies."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from typing import Any

import pytest
import yaml

from koord.embedded.apiserver.protobuf import swagger
from koord.embedded.apiserver.protobuf.messages import MEDIA_TYPE, decode_envelope, open_envelope
from koord.embedded.apiserver.schema.builtin_decoding import decode_builtin
from koord.embedded.apiserver.schema.builtin_types import builtin_types
from koord.kube.transport.interface import JSON
from tests.embedded.apiserver.kinds import corpus
from tests.embedded.apiserver.protobuf.malformed_bodies import REFUSED
from tests.embedded.apiserver.protobuf.record_swagger import gnostic
from tools.controlplane import ControlPlane

pytestmark = pytest.mark.real

NAMESPACE = "protobuf"
CORPUS = {name: obj for name, obj in corpus.objects().items() if name not in corpus.NOT_STORED}
LISTS = (
    "/api/v1/namespaces",
    "/api/v1/services",
    "/api/v1/events",
    "/apis/apiregistration.k8s.io/v1/apiservices",
    "/apis/coordination.k8s.io/v1/leases",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
)


def ask(
    plane: ControlPlane, path: str, body: bytes | None = None, *, sent: str = JSON, wanted: str = JSON
) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {plane.token}", "Accept": wanted, "Content-Type": sent}
    method = "GET" if body is None else "POST"
    request = urllib.request.Request(plane.url + path, data=body, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, context=plane.ssl(), timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read()


def both(plane: ControlPlane, path: str) -> tuple[Any, Any]:
    """One object or list, read from protobuf and from JSON."""
    status, raw = ask(plane, path, wanted=MEDIA_TYPE)
    assert status == 200
    envelope = open_envelope(raw, "", "")
    group, _, version = envelope.api_version.rpartition("/")
    node = builtin_types().node_for(group, version, envelope.kind)
    assert node is not None
    found = decode_builtin(decode_envelope(envelope), node)
    assert (found.error, found.unknown) == ("", ())
    shown = json.loads(ask(plane, path)[1])
    return found.value, decode_builtin(shown, node).value


@pytest.fixture(scope="module")
def plane_with_namespace(plane: ControlPlane) -> ControlPlane:
    ask(plane, "/api/v1/namespaces", json.dumps({"metadata": {"name": NAMESPACE}}).encode())
    return plane


@pytest.mark.parametrize("name", CORPUS)
def test_object_reads_as_its_json(plane_with_namespace: ControlPlane, name: str) -> None:
    plane = plane_with_namespace
    obj = json.loads(json.dumps(CORPUS[name]).replace("{ns}", NAMESPACE))
    path = corpus.collection(obj).replace("{ns}", NAMESPACE)
    status, raw = ask(plane, path, json.dumps(obj).encode())
    assert status in (201, 409), raw
    read, shown = both(plane, f"{path}/{obj['metadata']['name']}")
    for template in shown.get("spec", {}).get("volumeClaimTemplates", ()):
        # Protobuf has no place for the kind of what is inside; the server adds it to its JSON.
        del template["kind"], template["apiVersion"]
    assert read == shown


@pytest.mark.parametrize("path", LISTS)
def test_list_reads_as_its_json(plane: ControlPlane, path: str) -> None:
    read, shown = both(plane, path)
    # The list's own version moves between the two readings.
    assert read["items"] == shown["items"]


@pytest.mark.parametrize(("raw", "why"), REFUSED)
def test_refusals_are_worded_alike(plane_with_namespace: ControlPlane, raw: bytes, why: str) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    status, body = ask(plane_with_namespace, path, raw, sent=MEDIA_TYPE)
    assert (status, json.loads(body)["message"]) == (400, why)


def test_openapi_survives_gnostic(plane: ControlPlane) -> None:
    """The server's whole document, in our protobuf and back through gnostic's own reader."""
    if shutil.which("go") is None:
        pytest.skip("no Go on this machine")
    document = json.loads(ask(plane, "/openapi/v2")[1])
    read = yaml.load(
        gnostic("read", swagger.encode_openapi_v2(document)), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    assert read == document
