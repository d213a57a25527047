"""TLS, client certificates and proxies, with real handshakes on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp import web

from koord.kube.config.connection import BadConfig, ClientKeyPair, Connection, ExecAuth, PemSource, SettingOrigin
from koord.kube.transport.http import HttpTransport
from koord.kube.transport.interface import ApiRequest, Unreachable
from koord.telemetry.clock import WallClock
from tests.kube.transport.faulty_http_server import ORIGIN, serve_http

GET = ApiRequest(method="GET", path="/who")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def inline(data: bytes, field: str = "pem") -> PemSource:
    return PemSource(origin=SettingOrigin("config", field), data=data)


def ca_of(authority: trustme.CA) -> PemSource:
    return inline(authority.cert_pem.bytes(), "clusters[c].certificate-authority-data")


def pair_of(leaf: trustme.LeafCert) -> ClientKeyPair:
    certificate = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
    return ClientKeyPair(
        certificate=inline(certificate, "users[u].client-certificate-data"),
        key=inline(leaf.private_key_pem.bytes(), "users[u].client-key-data"),
    )


def server_side(authority: trustme.CA, *names: str, clients: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(*(names or ("127.0.0.1",))).configure_cert(context)
    if clients:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def who(request: web.Request) -> web.Response:
    assert request.transport is not None
    certificate: Any = request.transport.get_extra_info("peercert") or {}
    names = [value for _, value in certificate.get("subjectAltName", ())]
    return web.json_response({"names": names})


async def ask(connection: Connection) -> Any:
    carrier = HttpTransport(connection, WallClock())
    try:
        return (await carrier.send(GET)).body.plain()
    finally:
        await carrier.close()


async def test_a_server_is_trusted_through_its_authority(authority: trustme.CA, tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    authority.cert_pem.write_to_path(str(file))
    async with serve_http(who, server_side(authority)) as server:
        assert await ask(server.connection(ca=ca_of(authority))) == {"names": []}
        assert await ask(server.connection(ca=PemSource(origin=ORIGIN, path=str(file)))) == {"names": []}


async def test_another_authority_is_not_trusted_and_nothing_was_sent(authority: trustme.CA) -> None:
    async with serve_http(who, server_side(authority)) as server:
        with pytest.raises(Unreachable, match="certificate verify failed") as caught:
            await ask(server.connection(ca=ca_of(trustme.CA())))
        assert not caught.value.sent
        assert server.requests == []


async def test_the_systems_roots_do_not_trust_a_private_authority(authority: trustme.CA) -> None:
    async with serve_http(who, server_side(authority)) as server:
        with pytest.raises(Unreachable, match="certificate verify failed"):
            await ask(server.connection())


async def test_a_wrong_name_is_refused_unless_the_config_gives_the_right_one(authority: trustme.CA) -> None:
    async with serve_http(who, server_side(authority, "api.test")) as server:
        with pytest.raises(Unreachable, match="verify failed"):
            await ask(server.connection(ca=ca_of(authority)))
        assert await ask(server.connection(ca=ca_of(authority), tls_server_name="api.test")) == {"names": []}


async def test_verification_may_be_turned_off(authority: trustme.CA) -> None:
    async with serve_http(who, server_side(authority, "elsewhere.test")) as server:
        assert await ask(server.connection(insecure=True)) == {"names": []}


async def test_a_client_certificate_is_shown(authority: trustme.CA, tmp_path: Path) -> None:
    leaf = authority.issue_cert("me@test")
    leaf.private_key_pem.write_to_path(str(tmp_path / "key"))
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "cert"))
    files = ClientKeyPair(
        certificate=PemSource(origin=ORIGIN, path=str(tmp_path / "cert")),
        key=PemSource(origin=ORIGIN, path=str(tmp_path / "key")),
    )
    async with serve_http(who, server_side(authority, clients=True)) as server:
        for pair in (files, pair_of(leaf)):
            assert await ask(server.connection(ca=ca_of(authority), certificate=pair)) == {"names": ["me@test"]}


async def test_renewed_certificate_files_are_used_without_a_restart(authority: trustme.CA, tmp_path: Path) -> None:
    def renew(name: str) -> None:
        leaf = authority.issue_cert(name)
        leaf.private_key_pem.write_to_path(str(tmp_path / "key.new"))
        leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.new"))
        for file in ("key", "cert"):
            (tmp_path / f"{file}.new").rename(tmp_path / file)

    renew("old@test")
    pair = ClientKeyPair(
        certificate=PemSource(origin=ORIGIN, path=str(tmp_path / "cert")),
        key=PemSource(origin=ORIGIN, path=str(tmp_path / "key")),
    )
    async with serve_http(who, server_side(authority, clients=True)) as server:
        carrier = HttpTransport(server.connection(ca=ca_of(authority), certificate=pair), WallClock())
        assert (await carrier.send(GET)).body.plain() == {"names": ["old@test"]}
        renew("new@test")
        assert (await carrier.send(GET)).body.plain() == {"names": ["new@test"]}
        await carrier.close()


async def test_a_plugins_certificate_is_shown_and_replaced_after_401(authority: trustme.CA, tmp_path: Path) -> None:
    for number in ("1", "2"):
        leaf = authority.issue_cert(f"run{number}@test")
        status = {
            "clientCertificateData": leaf.cert_chain_pems[0].bytes().decode(),
            "clientKeyData": leaf.private_key_pem.bytes().decode(),
        }
        document = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
        (tmp_path / number).write_bytes(web.json_response(document).body)  # type: ignore[arg-type]
    plugin = tmp_path / "plugin"
    plugin.write_text(f"#!/bin/sh\ncd {tmp_path}\n[ -e ran ] && exec cat 2\ntouch ran\nexec cat 1\n")
    plugin.chmod(0o700)

    async def guard(request: web.Request) -> web.StreamResponse:
        answer = await who(request)
        return web.Response(status=401) if b"run1" in bytes(answer.body) else answer  # type: ignore[arg-type]

    api = "client.authentication.k8s.io/v1"
    auth = ExecAuth(origin=ORIGIN, api_version=api, command=str(plugin), environ=dict(os.environ))
    async with serve_http(guard, server_side(authority, clients=True)) as server:
        assert await ask(server.connection(ca=ca_of(authority), auth=auth)) == {"names": ["run2@test"]}


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        pytest.param("ca", r"clusters\[c\].certificate-authority-data: it holds no certificate", id="authority"),
        pytest.param("pair", r"users\[u\].client-certificate-data: the client certificate and key", id="client"),
        pytest.param("mixed", r"users\[u\].client-certificate-data: the client certificate and key", id="another-key"),
        pytest.param("missing", "ca.crt cannot be read", id="missing-file"),
    ],
)
async def test_material_that_cannot_be_used_is_told_by_field(authority: trustme.CA, broken: str, told: str) -> None:
    garbage = inline(b"nonsense", "clusters[c].certificate-authority-data")
    leaf = pair_of(authority.issue_cert("a@test"))
    other = pair_of(authority.issue_cert("b@test"))
    cases: dict[str, dict[str, Any]] = {
        "ca": {"ca": garbage},
        "pair": {
            "certificate": ClientKeyPair(certificate=inline(b"x", "users[u].client-certificate-data"), key=leaf.key)
        },
        "mixed": {"certificate": ClientKeyPair(certificate=leaf.certificate, key=other.key)},
        "missing": {"ca": PemSource(origin=ORIGIN, path="/nowhere/ca.crt")},
    }
    with pytest.raises(BadConfig, match=told):
        await ask(Connection(server="https://127.0.0.1:1", origin=ORIGIN, **cases[broken]))


@contextlib.asynccontextmanager
async def tunnel(refuse: bool = False) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A proxy that knows CONNECT and nothing else; it keeps the heads of the requests."""
    heads: list[bytes] = []
    tasks: set[asyncio.Task[None]] = set()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        heads.append(head)
        if refuse:
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        host, _, port = head.split()[1].decode().rpartition(":")
        upstream_reader, upstream = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        for pair in ((reader, upstream), (upstream_reader, writer)):
            task = asyncio.create_task(pump(*pair))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_proxy_tunnels_and_the_name_is_still_checked(authority: trustme.CA) -> None:
    async with tunnel() as (proxy, heads), serve_http(who, server_side(authority, "api.test")) as server:
        through = {"ca": ca_of(authority), "proxy_url": f"http://user:pw@{proxy}"}
        assert await ask(server.connection(tls_server_name="api.test", **through)) == {"names": []}
        assert heads[0].startswith(b"CONNECT 127.0.0.1:")
        assert b"Proxy-Authorization: Basic dXNlcjpwdw==" in heads[0]
        with pytest.raises(Unreachable, match="verify failed"):
            await ask(server.connection(**through))


async def test_a_proxy_that_refuses_is_unreachable_and_nothing_was_sent(authority: trustme.CA) -> None:
    async with tunnel(refuse=True) as (proxy, _), serve_http(who, server_side(authority)) as server:
        with pytest.raises(Unreachable, match=r"through its proxy.*403") as caught:
            await ask(server.connection(ca=ca_of(authority), proxy_url=f"http://{proxy}"))
        assert not caught.value.sent
        assert server.requests == []
