"""The small HTTP server and client against aiohttp's, and what they do with peers that mean harm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from koord.telemetry import plain_http
from koord.telemetry.http_routing import HttpCall, HttpReply, json_reply, text_reply
from koord.telemetry.plain_http import HttpFailure, PlainHttpServer, request


def echo(call: HttpCall) -> HttpReply:
    return json_reply({"method": call.method, "query": dict(call.query), "body": call.body.decode()})


def fail(call: HttpCall) -> HttpReply:
    raise RuntimeError("a bug")


async def slow(call: HttpCall) -> HttpReply:
    await asyncio.sleep(3600)
    return text_reply("never")


@pytest.fixture
async def server() -> AsyncIterator[PlainHttpServer]:
    made = PlainHttpServer()
    made.routes.add("*", "/echo", echo)
    made.routes.add("GET", "/data", lambda _: {"a": 1})
    made.routes.add("GET", "/bug", fail)
    made.routes.add("GET", "/slow", slow)
    yield made
    await made.close()


async def test_aiohttp_calls_the_server_on_one_connection(server: PlainHttpServer) -> None:
    port = await server.listen("127.0.0.1", 0)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        for _ in range(3):
            async with session.post(f"http://127.0.0.1:{port}/echo?a=1&a=2&b=", data=b"hello") as answer:
                assert await answer.json() == {"method": "POST", "query": {"a": ["1", "2"], "b": [""]}, "body": "hello"}
        async with session.get(f"http://127.0.0.1:{port}/data") as answer:
            assert (answer.status, answer.content_type, await answer.json()) == (200, "application/json", {"a": 1})
        async with session.head(f"http://127.0.0.1:{port}/data") as answer:
            assert (answer.status, answer.headers["Content-Length"]) == (200, "7")
        async with session.get(f"http://127.0.0.1:{port}/none") as answer:
            assert answer.status == 404
        async with session.get(f"http://127.0.0.1:{port}/bug") as answer:
            assert (answer.status, await answer.text()) == (500, "internal server error\n")


async def test_the_client_calls_the_server_on_a_unix_socket(server: PlainHttpServer, tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    await server.listen_unix(path)
    answer = await request(path, "POST", "/echo?x=%20y", b'{"a":1}')
    assert isinstance(answer, HttpReply)
    assert json.loads(answer.body) == {"method": "POST", "query": {"x": [" y"]}, "body": '{"a":1}'}
    late = await request(path, "GET", "/slow", timeout_s=0.05)
    assert isinstance(late, HttpFailure)
    assert late.sent
    assert "did not answer within 0.05s" in late.why
    absent = await request(str(tmp_path / "b.sock"), "GET", "/")
    assert isinstance(absent, HttpFailure)
    assert not absent.sent


async def test_the_client_reads_chunks_lengths_and_bodies_until_the_end() -> None:
    async def chunked(call: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(call)
        for part in (b"one ", b"two ", b"three" * 5000):
            await response.write(part)
        await response.write_eof()
        return response

    application = web.Application()
    application.router.add_get("/chunked", chunked)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    answer = await request(("127.0.0.1", runner.addresses[0][1]), "GET", "/chunked")
    await runner.cleanup()
    assert isinstance(answer, HttpReply)
    assert answer.body == b"one two " + b"three" * 5000


async def raw_answer(reply: bytes) -> HttpReply | HttpFailure:
    """Return what the client makes of the bytes of a server that then hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    answer = await request(("127.0.0.1", server.sockets[0].getsockname()[1]), "GET", "/")
    server.close()
    return answer


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nokmore", b"ok"),
    ],
)
async def test_short_answers(reply: bytes, expected: bytes) -> None:
    answer = await raw_answer(reply)
    assert isinstance(answer, HttpReply)
    assert answer.body == expected


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffff\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a" * (2 * plain_http.MAX_HEAD_BYTES),
    ],
)
async def test_answers_that_are_no_http_are_failures(reply: bytes) -> None:
    answer = await raw_answer(reply)
    assert isinstance(answer, HttpFailure)
    assert answer.sent


async def talk(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"hello\r\n\r\n", b"400 Bad Request"),
        (b"GET /data HTTP/2\r\n\r\n", b"400 Bad Request"),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b"400 Bad Request"),
        (b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400 Bad Request"),
        (b"GET /data HTTP/1.0\r\n\r\n", b"Connection: close"),
    ],
)
async def test_bad_calls_end_their_connection_only(server: PlainHttpServer, sent: bytes, expected: bytes) -> None:
    port = await server.listen("127.0.0.1", 0)
    assert expected in await talk(port, sent)
    assert isinstance(await request(("127.0.0.1", port), "GET", "/data"), HttpReply)


@given(sent=st.binary(max_size=200))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_leave_the_server_serving(sent: bytes) -> None:
    async def main() -> None:
        server = PlainHttpServer()
        server.routes.add("GET", "/data", lambda _: {"a": 1})
        port = await server.listen("127.0.0.1", 0)
        await talk(port, sent)
        answer = await request(("127.0.0.1", port), "GET", "/data")
        assert isinstance(answer, HttpReply)
        assert answer.status == 200
        await server.close()

    asyncio.run(main())


async def test_too_many_connections_are_refused(server: PlainHttpServer) -> None:
    port = await server.listen("127.0.0.1", 0)
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(plain_http.MAX_CONNECTIONS)]
    for reader, writer in held:  # each is accepted once it was answered
        writer.write(b"GET /data HTTP/1.1\r\n\r\n")
        await reader.readuntil(b"}")
    refused = await request(("127.0.0.1", port), "GET", "/data")
    assert isinstance(refused, HttpFailure)
    for _, writer in held:
        writer.close()
