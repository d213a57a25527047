"""The HTTPS server handles certificates, tokens, sizes and watches on a socket; the in-process transport
is tested beside it.
"""

from __future__ import annotations

import asyncio
import io
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from koord.api.kubernetes.meta import Object
from koord.embedded.apiserver import data_directory, http_server
from koord.embedded.apiserver.data_directory import DEFAULT_HOSTS, certificate_hosts
from koord.embedded.apiserver.http_server import (
    HttpServer,
    NotLoopbackError,
    ServerAddress,
    kubeconfig_document,
)
from koord.embedded.apiserver.rest.request_context import AdmissionChain
from koord.embedded.apiserver.server import ApiServer, builtin_catalog
from koord.embedded.cluster import InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import ApiError
from koord.kube.transport.interface import ApiRequest, ApiResponse, Unreachable
from tests.embedded.apiserver.https_harness import serve_https
from tests.embedded.apiserver.rest_harness import NS, config_map, pod

TOKEN = "secret"


@pytest.fixture(scope="module")
def identity() -> data_directory.ApiServerCertificates:
    return data_directory.create_certificates()


@pytest.fixture
def server() -> ApiServer:
    return ApiServer(catalog=builtin_catalog(), tokens={TOKEN: "tester"}, admission=AdmissionChain())


@pytest.fixture
async def address(server: ApiServer, identity: data_directory.ApiServerCertificates) -> AsyncIterator[ServerAddress]:
    async with serve_https(server, identity=identity) as found:
        yield found


@pytest.fixture
async def web(address: ServerAddress) -> AsyncIterator[aiohttp.ClientSession]:
    trust = ssl.create_default_context(cadata=address.ca.decode())
    headers = {"Authorization": f"Bearer {address.token}"}
    async with aiohttp.ClientSession(
        address.url, headers=headers, connector=aiohttp.TCPConnector(ssl=trust)
    ) as session:
        yield session


async def test_create_and_read_back(web: aiohttp.ClientSession) -> None:
    async with web.post(f"{NS}/pods", json=pod("p")) as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (201, "application/json")
        assert answer.headers["Cache-Control"] == "no-cache, private"
        made = await answer.json()
    async with web.get(f"{NS}/pods/p") as answer:
        assert await answer.json() == made
    assert made["metadata"]["managedFields"][0]["manager"].startswith("Python")


async def test_escaped_query(web: aiohttp.ClientSession) -> None:
    await web.post(f"{NS}/configmaps", json=config_map("a", labels={"x": "y"}))
    async with web.get(f"{NS}/configmaps", params={"labelSelector": "x in (y,z)"}) as answer:
        assert len((await answer.json())["items"]) == 1


@pytest.mark.parametrize("header", ["", "Bearer other", "Basic c2VjcmV0", "Bearer"])
async def test_strangers_are_turned_away(address: ServerAddress, web: aiohttp.ClientSession, header: str) -> None:
    async with web.get("/api", headers={"Authorization": header}) as answer:
        body = await answer.json()
    assert (answer.status, body["reason"], body["message"]) == (401, "Unauthorized", "Unauthorized")


async def test_certificate_names_the_host_and_is_signed_by_the_authority(address: ServerAddress) -> None:
    stranger = ssl.create_default_context()
    async with aiohttp.ClientSession(address.url) as session:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.get("/healthz", ssl=stranger)


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
async def test_too_large_bodies_are_refused(web: aiohttp.ClientSession, chunked: bool) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"x" * (1 << 20)

    body: Any = parts() if chunked else io.BytesIO(b"x" * ((3 << 20) + 1))
    async with web.post(f"{NS}/configmaps", data=body, headers={"Content-Type": "application/json"}) as answer:
        found = await answer.json()
    assert (found["code"], found["reason"], found["message"]) == (
        413,
        "RequestEntityTooLarge",
        "Request entity too large: limit is 3145728",
    )


async def test_malformed_json(web: aiohttp.ClientSession) -> None:
    async with web.post(f"{NS}/configmaps", data=b"{bad") as answer:
        assert answer.status == 415  # a client that says nothing sends octets, which no kind is made of
    async with web.post(f"{NS}/configmaps", data=b"{bad", headers={"Content-Type": "application/json"}) as answer:
        assert (answer.status, (await answer.json())["reason"]) == (400, "BadRequest")


async def test_warnings_are_headers(web: aiohttp.ClientSession) -> None:
    async with web.post(f"{NS}/configmaps", json={**config_map("a"), "foo": 1, "bar": 2}) as answer:
        assert answer.headers.getall("Warning") == [
            '299 - "unknown field \\"foo\\""',
            '299 - "unknown field \\"bar\\""',
        ]


async def test_watch_streams_lines_until_the_server_ends_it(server: ApiServer, web: aiohttp.ClientSession) -> None:
    await web.post(f"{NS}/configmaps", json=config_map("a"))
    async with web.get(f"{NS}/configmaps?watch=true") as answer:
        assert answer.status == 200
        first = json.loads(await answer.content.readline())
        await web.post(f"{NS}/configmaps", json=config_map("b"))
        second = json.loads(await answer.content.readline())
        assert [(e["type"], e["object"]["metadata"]["name"]) for e in (first, second)] == [
            ("ADDED", "a"),
            ("ADDED", "b"),
        ]
        await server.store.close()
        assert await answer.content.read() == b""


async def test_watch_refusals_are_plain_answers(web: aiohttp.ClientSession) -> None:
    async with web.get(f"{NS}/configmaps?watch=true&labelSelector=a+b") as answer:
        assert answer.status == 400
    async with web.get("/api/v1/watch/namespaces/default/nope") as answer:
        assert answer.status == 404


async def test_departed_watcher_is_forgotten(server: ApiServer, web: aiohttp.ClientSession) -> None:
    collection = server.store.collection("configmaps")
    answer = await web.get(f"{NS}/configmaps?watch=true")
    assert collection.watcher_count == 1
    answer.close()
    async with asyncio.timeout(5):
        while collection.watcher_count:  # noqa: ASYNC110 - what is waited for is that nobody is left to tell
            await asyncio.sleep(0)


async def test_stalled_watcher_is_cut_off_and_others_go_on(
    server: ApiServer, web: aiohttp.ClientSession, address: ServerAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "STALLED_WATCH_S", 0.2)
    trust = ssl.create_default_context(cadata=address.ca.decode())
    host, port = address.url.removeprefix("https://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=trust, limit=1 << 16)
    request = f"GET {NS}/configmaps?watch=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
    writer.write(request.encode())
    await reader.readuntil(b"\r\n\r\n")  # and from here on it reads nothing
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    program = InProcessTransport(server)
    collection = server.store.collection("configmaps")
    async with asyncio.timeout(20):
        number = 0
        while collection.watcher_count:
            body = config_map(f"c{number}", {"k": "x" * 200_000})
            answer = await program.send(ApiRequest(method="POST", path=f"{NS}/configmaps", body=body))
            assert answer.status == 201
            number += 1
            await asyncio.sleep(0)
    writer.close()


def test_listening_beyond_this_machine_is_asked_for(server: ApiServer) -> None:
    async def main() -> None:
        with pytest.raises(NotLoopbackError):
            await HttpServer(server).start("0.0.0.0", 0, None)

    asyncio.run(main())


def test_identity_survives_a_restart_and_covers_new_hosts(tmp_path: Path) -> None:
    first = data_directory.load_or_create_certificates(tmp_path)
    assert data_directory.load_or_create_certificates(tmp_path) == first
    assert (tmp_path / "ca.key").stat().st_mode & 0o077 == 0
    other = data_directory.load_or_create_certificates(tmp_path, (*DEFAULT_HOSTS, "192.0.2.7", "koord.example"))
    assert {"192.0.2.7", "koord.example", "localhost"} <= set(certificate_hosts(other.serving.certificate))


async def test_kubeconfig_points_to_the_server(address: ServerAddress) -> None:
    config = kubeconfig_document(address)
    assert config["clusters"][0]["cluster"]["server"] == address.url
    assert config["users"][0]["user"] == {"token": TOKEN}


class Test_in_process:
    async def test_bodies_are_shared_with_the_store(self, server: ApiServer) -> None:
        program = InProcessTransport(server, "koord-scheduler")
        body = pod("p")
        answer = await program.send(ApiRequest(method="POST", path=f"{NS}/pods", body=body))
        again = await program.send(ApiRequest(method="GET", path=f"{NS}/pods/p"))
        assert answer.body.plain() is again.body.plain()
        assert answer.body.typed(Object) is again.body.typed(Object)
        assert "managedFields" not in answer.body.plain()["metadata"]

    async def test_watch_frames_share_the_typed_object(self, server: ApiServer) -> None:
        program = InProcessTransport(server)
        stream = await program.watch(ApiRequest(method="GET", path=f"{NS}/pods", query={"watch": "1"}))
        assert not isinstance(stream, ApiResponse)
        answer = await program.send(ApiRequest(method="POST", path=f"{NS}/pods", body=pod("p")))
        async for frame in stream:
            assert frame.body.typed(Object) is answer.body.typed(Object)
            break
        await stream.close()

    async def test_user_is_the_programs(self, server: ApiServer) -> None:
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        answer = await InProcessTransport(server, "me").send(ApiRequest(method="POST", path=path, body={}))
        assert answer.body.plain()["status"]["userInfo"]["username"] == "me"

    async def test_closed_door_is_unreachable(self, server: ApiServer) -> None:
        program = InProcessTransport(server)
        await program.close()
        with pytest.raises(Unreachable):
            await program.send(ApiRequest(method="GET", path="/healthz"))

    async def test_writers_in_a_loop_let_others_run(self, server: ApiServer) -> None:
        program = InProcessTransport(server)
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(other())
        for i in range(64):
            await program.send(ApiRequest(method="POST", path=f"{NS}/configmaps", body=config_map(f"c{i}")))
        task.cancel()
        assert turns >= 4

    async def test_a_client_works_over_it(self, server: ApiServer) -> None:
        client = Client(InProcessTransport(server), burst=0)
        version = await client.server_version()
        assert not isinstance(version, ApiError)
        assert (version.major, version.minor) == ("1", "35")
