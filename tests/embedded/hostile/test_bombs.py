"""Bodies that are small on the wire and large in memory are refused at once, and the server goes on."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import msgspec
import pytest

from koord.embedded.apiserver.rest.request_body import MAX_DEPTH
from koord.embedded.apiserver.server import ApiServer
from koord.kube.transport.interface import APPLY_PATCH, JSON, ApiRequest
from tests.embedded.apiserver.rest_harness import NS, config_map, started

YAML = "application/yaml"
HEAD = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: t}\n"
LETTERS = b"abcdefghi"
ALIASES = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (after, after, b",".join([b"*%c" % before] * 9))
    for before, after in itertools.pairwise(LETTERS)
)
MERGES = b"a: &a {x: 1}\n" + b"".join(
    b"%c: &%c {<<: [%s]}\n" % (after, after, b",".join([b"*%c" % before] * 9))
    for before, after in itertools.pairwise(LETTERS)
)
EXCESSIVE = "yaml: document contains excessive aliasing"


async def send(server: ApiServer, body: bytes, content_type: str, method: str = "") -> tuple[int, Any]:
    method = method or ("PATCH" if content_type == APPLY_PATCH else "POST")
    path = f"{NS}/configmaps" + ("/t" if method != "POST" else "")
    query = {"fieldManager": "m"} if content_type == APPLY_PATCH else {}
    request = ApiRequest(method=method, path=path, body=body, content_type=content_type, query=query)
    answer = await server.handle(request)
    return answer.status, msgspec.json.decode(answer.body.raw())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (ALIASES, EXCESSIVE),
        (MERGES, EXCESSIVE),
        (b"data: &a " + b"x" * 60_000 + b"\nb: [" + b"*a," * 500 + b"]\n", EXCESSIVE),
        (b"data: &a {b: *a}\n", "yaml: anchor 'a' value contains itself"),
        (b"data: " + b"[" * 100_000, "yaml: exceeded max depth of 256"),
        (b"data: " + b"{a: " * 100_000, "yaml: exceeded max depth of 256"),
        (b"- " * 100_000, "yaml: exceeded max depth of 256"),
    ],
    ids=["aliases", "merges", "long-text", "itself", "lists", "maps", "blocks"],
)
@pytest.mark.parametrize("content_type", [YAML, APPLY_PATCH], ids=["create", "apply"])
async def test_yaml(body: bytes, why: str, content_type: str) -> None:
    api = await started()
    try:
        before = api.server.store.revision
        status, said = await send(api.server, HEAD + body if not body.startswith(b"-") else body, content_type)
        assert (status, why in said["message"]) == (400, True), said
        assert api.server.store.revision == before
    finally:
        await api.server.close()


async def test_the_bodies_of_a_deletion_are_limited_too() -> None:
    api = await started()
    await api.post(f"{NS}/configmaps", config_map("t"))
    status, said = await send(api.server, ALIASES, YAML, "DELETE")
    assert (status, EXCESSIVE in said["message"]) == (400, True)
    assert (await api.get(f"{NS}/configmaps/t"))[0] == 200
    await api.server.close()


def nested(levels: int, opening: bytes = b'{"a":', closing: bytes = b"}") -> bytes:
    return b'{"apiVersion":"example.com/v1","kind":"W","metadata":{"name":"w"},"x":%s1%s}' % (
        opening * levels,
        closing * levels,
    )


@pytest.mark.parametrize("shape", [(b'{"a":', b"}"), (b"[", b"]")], ids=["maps", "lists"])
@pytest.mark.parametrize("levels", [300, 900, 100_000])
async def test_json_has_a_nesting_limit(shape: tuple[bytes, bytes], levels: int) -> None:
    api = await started()
    try:
        status, said = await send(api.server, nested(levels, *shape), JSON)
        assert (status, "exceeded max depth" in said["message"]) == (400, True), said["message"]
    finally:
        await api.server.close()


async def test_what_is_stored_can_be_read_back_by_everybody() -> None:
    """The deepest body that is taken is served again, listed, watched, patched and applied over."""
    api = await started()
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
        "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}  # fmt: skip
    names = {"plural": "ws", "kind": "W"}
    crd = {"metadata": {"name": "ws.example.com"},
           "spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}}  # fmt: skip
    assert (await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd))[0] == 201
    path = "/apis/example.com/v1/namespaces/default/ws"
    depth = MAX_DEPTH - 1
    assert (await api.post(path, nested(depth)))[0] == 201
    assert (await api.post(path, nested(depth + 1)))[0] == 400
    for asked in (f"{path}/w", path):
        assert (await api.get(asked))[0] == 200
    assert (await api.patch(f"{path}/w", b'{"y":1}'))[0] == 200
    status, _ = await api.patch(f"{path}/w?fieldManager=m&force=true", nested(depth), APPLY_PATCH)
    assert status == 200
    await api.server.close()


async def test_brackets_inside_strings_are_no_nesting() -> None:
    api = await started()
    body = msgspec.json.encode(config_map("t", {"k": '{["\\' * 5000}))
    assert (await send(api.server, body, JSON))[0] == 201
    await api.server.close()


async def test_a_large_yaml_body_does_not_stop_the_others() -> None:
    api = await started()
    body = HEAD + b"data:\n" + b"".join(b"  k%d: v\n" % number for number in range(20_000))
    turns, stop = 0, False

    async def other() -> None:
        nonlocal turns
        while not stop:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    assert (await send(api.server, body, YAML))[0] == 201
    stop = True
    await running
    assert turns > 20  # a handful, when the loop waits for the parser
    await api.server.close()
