"""Whatever the bytes of a request, the server answers with an object or an error, and an error changes
nothing.
"""

from __future__ import annotations

import copy
import random
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.embedded.apiserver.server import ApiServer
from koord.kube.transport.interface import APPLY_PATCH, JSON, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, ApiRequest
from koord.telemetry.clock import ManualClock

NS = "/api/v1/namespaces/default"
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "labels": {"a": "b"}, "annotations": {"x": "y"}, "finalizers": ["example.com/f"]},
    "spec": {
        "containers": [
            {
                "name": "c",
                "image": "i:1",
                "env": [{"name": "A", "value": "1"}],
                "ports": [{"containerPort": 80}],
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "livenessProbe": {"httpGet": {"path": "/", "port": 80}},
            }
        ],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    },
    "status": {"phase": "Pending", "conditions": []},
}
DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "d"},
    "spec": {
        "replicas": 1,
        "selector": {"matchLabels": {"a": "b"}},
        "strategy": {"rollingUpdate": {"maxSurge": "10%"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
    },
}
CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}},
            }
        ],
    },
}
CRASHED = re.compile(r"Internal error occurred: \w+(Error|Exception|Exists|Failed)\b")
TARGETS = [
    pytest.param(f"{NS}/pods", POD, id="pod"),
    pytest.param("/apis/apps/v1/namespaces/default/deployments", DEPLOYMENT, id="deployment"),
    pytest.param("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", CRD, id="definition"),
]


def fresh() -> ApiServer:
    return ApiServer(clock=ManualClock(), chance=random.Random(1))


def paths_of(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [at] if at else []
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        found += paths_of(child, (*at, key))
    return found


def damaged(whole: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(whole)
    at: Any = made
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return made


async def send(server: ApiServer, method: str, path: str, body: bytes, content_type: str = JSON, **query: str) -> int:
    request = ApiRequest(method=method, path=path, body=body, content_type=content_type, query=query)
    answer = await server.handle(request)
    said = msgspec.json.decode(answer.body.raw())
    assert isinstance(said, dict)
    # kube-apiserver blames itself (500) for patches that it cannot merge, and so do we; a fault of ours names its type.
    assert answer.status < 500 or not CRASHED.search(said["message"]), (method, path, body, said)
    return answer.status


@settings(max_examples=150, deadline=None)
@given(body=st.binary(max_size=60), method=st.sampled_from(["POST", "PUT", "PATCH", "DELETE"]), data=st.data())
async def test_any_bytes(body: bytes, method: str, data: st.DataObject) -> None:
    server = fresh()
    await server.start()
    before = server.store.revision
    types = [JSON, MERGE_PATCH, STRATEGIC_PATCH, JSON_PATCH, APPLY_PATCH, "application/vnd.kubernetes.protobuf"]
    path = f"{NS}/configmaps" if method == "POST" else f"{NS}/configmaps/x"
    status = await send(server, method, path, body, data.draw(st.sampled_from(types)), fieldManager="m")
    assert status >= 400
    assert server.store.revision == before
    await server.close()


@pytest.mark.parametrize(("path", "whole"), TARGETS)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
async def test_an_object_with_one_part_replaced(path: str, whole: dict[str, Any], data: st.DataObject) -> None:
    server = fresh()
    await server.start()
    before = server.store.revision
    body = damaged(whole, data.draw(st.sampled_from(paths_of(whole))), data.draw(JSON_VALUES))
    mode = data.draw(st.sampled_from(["Strict", "Warn", "Ignore"]))
    status = await send(server, "POST", path, msgspec.json.encode(body), fieldValidation=mode)
    assert (status >= 400) == (server.store.revision == before)
    await server.close()


@pytest.mark.parametrize(("path", "whole"), TARGETS)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
async def test_an_existing_object_and_a_hostile_patch(path: str, whole: dict[str, Any], data: st.DataObject) -> None:
    server = fresh()
    await server.start()
    assert await send(server, "POST", path, msgspec.json.encode(whole)) == 201
    before = server.store.revision
    target = f"{path}/{whole['metadata']['name']}"
    kind = data.draw(st.sampled_from([MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH]))
    patch = damaged(whole, data.draw(st.sampled_from(paths_of(whole))), data.draw(JSON_VALUES))
    status = await send(server, "PATCH", target, msgspec.json.encode(patch), kind, fieldManager="m")
    if status >= 400:
        assert server.store.revision == before
    await server.close()


@settings(max_examples=150, deadline=None)
@given(
    query=st.dictionaries(
        st.sampled_from(
            ["labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "resourceVersionMatch", "pretty"]
        ),
        st.text(max_size=12),
        max_size=4,
    )
)
async def test_any_query(query: dict[str, str]) -> None:
    server = fresh()
    await server.start()
    await send(server, "GET", f"{NS}/pods", b"", **query)
    await server.close()


@pytest.mark.parametrize("depth", [200, 5_000, 100_000])
@pytest.mark.parametrize("path", [f"{NS}/pods", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"])
async def test_deep_nesting(path: str, depth: int) -> None:
    server = fresh()
    await server.start()
    before = server.store.revision
    for opening, closing in ((b"[", b"]"), (b'{"properties":{"a":', b"}}")):
        whole = b'{"apiVersion":"v1","kind":"Pod","spec":' + opening * depth + b"1" + closing * depth + b"}"
        assert await send(server, "POST", path, whole) >= 400
    assert server.store.revision == before
    await server.close()
