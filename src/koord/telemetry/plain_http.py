"""HTTP/1.1 over asyncio's streams: a server of one route table, and a client of one request per connection.

It is for agents of a node that answer a few short calls: aiohttp, which the component server uses, takes 15 MB of
memory more. Heads and bodies have a largest size, every call a deadline, and connections are capped.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from koord.telemetry import http_routing
from koord.telemetry.http_routing import JSON, NOT_FOUND, HttpCall, HttpReply, RouteTable

_LOG = logging.getLogger(__name__)

MAX_HEAD_BYTES = 16 * 1024
MAX_BODY_BYTES = 64 * 1024  # of a call
MAX_REPLY_BYTES = 16 << 20
MAX_CONNECTIONS = 64
CALL_TIMEOUT_S = 30.0
IDLE_TIMEOUT_S = 60.0


class HttpFailure(msgspec.Struct, frozen=True):
    """HttpFailure says why there is no answer. `sent`: the request may have been carried out all the same."""

    why: str
    sent: bool = False

    def __str__(self) -> str:
        return self.why


class _BadMessage(Exception):
    """_BadMessage ends a connection whose peer does not speak HTTP/1.1 as it is needed here."""


class PlainHttpServer:
    """Serves the routes on any number of sockets: add routes, then `listen_unix` or `listen`, then `close`."""

    def __init__(self) -> None:
        self.routes = RouteTable()
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    async def listen_unix(self, path: str) -> None:
        """Listen on a Unix socket. Raises OSError when it cannot."""
        self._servers.append(await asyncio.start_unix_server(self._connected, path, limit=MAX_HEAD_BYTES))

    async def listen(self, host: str, port: int) -> int:
        """Listen and return the port, chosen by the system for 0. Raises OSError when it cannot."""
        server = await asyncio.start_server(self._connected, host or None, port, limit=MAX_HEAD_BYTES)
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        servers, self._servers = self._servers, []
        for server in servers:
            server.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        for server in servers:
            await server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None or len(self._connections) >= MAX_CONNECTIONS:
            writer.transport.abort()
            return
        self._connections.add(task)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as ended:
            _LOG.debug("a connection ended: %r", ended)
        except _BadMessage as bad:
            writer.write(_reply_bytes(http_routing.text_reply(f"{bad}\n", 400), keep=False))
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one call. Return whether the connection stays for another."""
        async with asyncio.timeout(IDLE_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(CALL_TIMEOUT_S):
            first, headers = _parse_head(head)
            words = first.split(" ")
            if len(words) != 3 or not words[2].startswith("HTTP/1."):
                raise _BadMessage("this is no request of HTTP/1.1")
            body = await reader.readexactly(_call_length(headers))
            target = urlsplit(words[1])
            call = HttpCall(
                method=words[0],
                path=unquote(target.path),
                query={name: tuple(values) for name, values in parse_qs(target.query, keep_blank_values=True).items()},
                headers=headers,
                body=body,
            )
            keep = words[2] == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
            writer.write(_reply_bytes(await self.answer(call), keep=keep, head_only=words[0] == "HEAD"))
            await writer.drain()
        return keep

    async def answer(self, call: HttpCall) -> HttpReply:
        """Return a call's reply, as a socket would give it."""
        found = self.routes.find("GET" if call.method == "HEAD" else call.method, call.path)
        if found is None:
            return NOT_FOUND
        handler, parameters = found
        try:
            answer = handler(msgspec.structs.replace(call, parameters=parameters))
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception:  # noqa: BLE001 - the socket serves on, whatever one handler did
            _LOG.exception("%s %s failed", call.method, call.path)
            return http_routing.text_reply("internal server error\n", 500)
        return answer if isinstance(answer, HttpReply) else http_routing.json_reply(answer)


async def request(
    address: str | tuple[str, int], method: str, path: str, body: bytes = b"", *, timeout_s: float = 5.0
) -> HttpReply | HttpFailure:
    """Send one request to a Unix socket, by its path, or to a host and port, and return the answer of any status."""
    sent = False
    where = address if isinstance(address, str) else f"{address[0]}:{address[1]}"
    try:
        async with asyncio.timeout(timeout_s):
            if isinstance(address, str):
                reader, writer = await asyncio.open_unix_connection(address, limit=MAX_HEAD_BYTES)
            else:
                reader, writer = await asyncio.open_connection(*address, limit=MAX_HEAD_BYTES)
            try:
                host = "localhost" if isinstance(address, str) else where
                head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAccept: {JSON}\r\nConnection: close\r\n"
                content = f"Content-Type: {JSON}\r\nContent-Length: {len(body)}\r\n" if body else ""
                sent = True
                writer.write(f"{head}{content}\r\n".encode() + body)
                await writer.drain()
                return await _read_reply(reader)
            finally:
                writer.close()
    except TimeoutError:
        return HttpFailure(f"{where} did not answer within {timeout_s:g}s", sent)
    except OSError as error:
        return HttpFailure(f"{where}: {error.strerror or error}", sent)
    except (_BadMessage, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as bad:
        return HttpFailure(f"the answer of {where} cannot be read: {bad}", sent)


async def _read_reply(reader: asyncio.StreamReader) -> HttpReply:
    first, headers = _parse_head(await reader.readuntil(b"\r\n\r\n"))
    words = first.split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
        raise _BadMessage(f"{first[:80]!r} is no status line")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(_length(headers["content-length"], MAX_REPLY_BYTES))
    else:
        body = await _read_to_end(reader)
    return HttpReply(status=int(words[1]), body=body, content_type=headers.get("content-type", ""), headers=headers)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    total = 0
    while True:
        line = (await reader.readuntil(b"\r\n")).split(b";")[0].strip()
        try:
            size = int(line, 16)
        except ValueError:
            raise _BadMessage(f"{line[:20]!r} is no size of a chunk") from None
        total += size
        if size < 0 or total > MAX_REPLY_BYTES:
            raise _BadMessage(f"it is larger than {MAX_REPLY_BYTES} bytes")
        part = await reader.readexactly(size + 2)
        if size == 0:
            return b"".join(parts)
        parts.append(part[:-2])


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    total = 0
    while part := await reader.read(65_536):
        total += len(part)
        if total > MAX_REPLY_BYTES:
            raise _BadMessage(f"it is larger than {MAX_REPLY_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _parse_head(head: bytes) -> tuple[str, dict[str, str]]:
    """Return the first line, and the headers by name in small letters."""
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise _BadMessage(f"{line[:80]!r} is no header")
        headers[name.strip().lower()] = value.strip()
    return first, headers


def _call_length(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers:
        raise _BadMessage("the body needs a Content-Length")
    return _length(headers.get("content-length", "0"), MAX_BODY_BYTES)


def _length(text: str, most: int) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 12 or int(text) > most:
        raise _BadMessage(f"Content-Length {text[:20]} is no number up to {most}")
    return int(text)


def _reply_bytes(reply: HttpReply, *, keep: bool, head_only: bool = False) -> bytes:
    lines = [
        f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
        f"Content-Type: {reply.content_type}",
        f"Content-Length: {len(reply.body)}",
        *(f"{name}: {value}" for name, value in reply.headers.items()),
        *(() if keep else ("Connection: close",)),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if head_only else reply.body)
