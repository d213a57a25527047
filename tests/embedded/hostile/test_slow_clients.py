"""A client that stops half-way is cut off, others are served meanwhile, and too many clients wait for their turn."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator
from subprocess import PIPE

import msgspec
import pytest

from koord.embedded.apiserver import data_directory
from koord.embedded.apiserver.http_server import ConnectionLimits, HttpServer
from koord.embedded.apiserver.server import ApiServer
from koord.kube.transport.interface import ApiRequest
from tests.embedded.apiserver.rest_harness import NS, config_map

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
PATIENCE_S = 20  # what is never cut off would be waited for for ever
HEAD = b"Host: x\r\nAuthorization: Bearer secret\r\n"
PATIENT = ConnectionLimits(header_timeout_s=60, sweep_period_s=0.05)
HASTY = ConnectionLimits(header_timeout_s=0.4, body_timeout_s=0.4, response_timeout_s=0.4, sweep_period_s=0.05)


class Served:
    def __init__(self, server: ApiServer, port: int) -> None:
        self.server = server
        self.port = port
        self.opened: list[asyncio.StreamWriter] = []

    async def open(self, *first: bytes) -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.opened.append(writer)
        writer.write(b"".join(first))
        await writer.drain()
        return reader, writer


@contextlib.asynccontextmanager
async def served(limits: ConnectionLimits, context: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    server = ApiServer(tokens={"secret": "tester"})
    await server.start()
    http_server = HttpServer(server, limits)
    url = await http_server.start("127.0.0.1", 0, context)
    made = Served(server, int(url.rpartition(":")[2]))
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield made
    finally:
        for writer in made.opened:
            writer.close()
        await http_server.close()
        await server.close()


async def answer_of(streams: Streams) -> int:
    """Return the status of one answer, read whole."""
    reader, _ = streams
    head = await reader.readuntil(b"\r\n\r\n")
    size = next(int(line.split()[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    await reader.readexactly(size)
    return int(head.split()[1])


async def ask(streams: Streams, path: str = "/version") -> int:
    streams[1].write(f"GET {path} HTTP/1.1\r\n".encode() + HEAD + b"\r\n")
    return await answer_of(streams)


async def ends(streams: Streams) -> None:
    with contextlib.suppress(ConnectionError):
        assert await streams[0].read() == b""


@pytest.mark.parametrize(
    "sent", [b"", b"G", b"GET /version HTTP/1.1\r\nHost: x\r\nX-Slow: "], ids=["nothing", "a-letter", "half-headers"]
)
async def test_headers_have_a_time_limit(sent: bytes) -> None:
    async with served(HASTY) as here:
        slow = [await here.open(sent) for _ in range(300)]
        assert await ask(await here.open()) == 200
        await asyncio.gather(*(ends(streams) for streams in slow))
        assert await ask(await here.open()) == 200


async def test_drops_of_headers_do_not_extend_the_time() -> None:
    async with served(HASTY) as here:
        reader, writer = await here.open(b"GET /version HTTP/1.1\r\n")

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"X: y\r\n")
                    await writer.drain()
                    await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip())
        await ends((reader, writer))
        dripping.cancel()


async def test_an_idle_connection_outlives_the_time_for_headers() -> None:
    async with served(HASTY) as here:
        streams, other = await here.open(), await here.open(b"G")
        assert await ask(streams) == 200
        await ends(other)
        assert await ask(streams) == 200
        streams[1].write(b"GET /ver")
        await ends(streams)


async def test_a_handshake_has_a_time_limit() -> None:
    async with served(HASTY, data_directory.create_certificates().ssl_context()) as here:
        silent = [await here.open(sent) for sent in (b"", b"\x16\x03\x01")]
        await asyncio.gather(*(ends(streams) for streams in silent))


async def test_a_body_has_a_time_limit_and_changes_nothing() -> None:
    head = f"POST {NS}/configmaps HTTP/1.1\r\n".encode() + HEAD + b"Content-Type: application/json\r\n"
    async with served(HASTY) as here:
        before = here.server.store.revision
        halves = [
            await here.open(head, b"Content-Length: 100\r\n\r\n", b'{"metadata":'),
            await here.open(head, b"Transfer-Encoding: chunked\r\n\r\n", b'5\r\n{"met'),
        ]
        await asyncio.gather(*(ends(streams) for streams in halves))
        assert here.server.store.revision == before


async def test_an_answer_that_nobody_reads_is_dropped() -> None:
    async with served(HASTY) as here:
        for number in range(24):
            body = config_map(f"c{number}", {"k": "x" * 500_000})
            await here.server.handle(ApiRequest(method="POST", path=f"{NS}/configmaps", body=body))
        reader, _ = await here.open()
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        here.opened[-1].write(f"GET {NS}/configmaps HTTP/1.1\r\n".encode() + HEAD + b"\r\n")
        other = await here.open()
        while await connections(here) > 1:
            assert await ask(other) == 200
            await asyncio.sleep(0.05)


async def connections(here: Served) -> int:
    return sum(1 for task in asyncio.all_tasks() if "RequestHandler.start" in repr(task.get_coro()))


@pytest.mark.parametrize(
    ("request_line", "headers", "status"),
    [
        (b"GET /version HTTP/1.1", b"X: y\r\n" * 2000, 431),
        (b"GET /version HTTP/1.1", b"X: " + b"y" * 200_000 + b"\r\n", 431),
        (b"GET /" + b"y" * 200_000 + b" HTTP/1.1", b"", 431),
        (b"\x00\x01\x02 nonsense", b"", 400),
    ],
    ids=["many", "long", "long-path", "not-http"],
)
async def test_headers_have_a_size_limit(
    request_line: bytes, headers: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with served(PATIENT) as here:
        reader, _ = await here.open(request_line + b"\r\n", HEAD, headers, b"\r\n")
        assert int((await reader.readline()).split()[1]) == status
        await reader.read()
        assert await ask(await here.open()) == 200
    assert caplog.records == []


async def test_more_clients_than_there_is_room_for_wait_their_turn() -> None:
    limits = ConnectionLimits(header_timeout_s=0.4, sweep_period_s=0.05, max_connections=8)
    async with served(limits) as here:
        for _ in range(20):
            await here.open(b"G")
        assert await ask(await here.open()) == 200


@pytest.mark.parametrize(("files", "most"), [(160, 1000), (400, 0)], ids=["accept-fails", "limit-holds"])
async def test_a_server_without_files_left_recovers(files: int, most: int) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.embedded.hostile.server_program", str(files), str(most), stdin=PIPE, stdout=PIPE
    )
    assert process.stdout is not None
    try:
        here = Served(ApiServer(), int(await process.stdout.readline()))
        crowd = [await here.open(b"G") for _ in range(files + 100)]
        for _, writer in crowd:
            writer.close()
        streams = await here.open()
        assert await ask(streams) == 200
        body = msgspec.json.encode(config_map("a"))
        head = f"POST {NS}/configmaps HTTP/1.1\r\n".encode() + HEAD + b"Content-Type: application/json\r\n"
        streams[1].write(head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert await answer_of(streams) == 201
    finally:
        await process.communicate(b"")
    assert process.returncode == 0
