"""The connections of the HTTPS server: how many there may be, and how long a client may take for each step.

A client that stops in the middle of a handshake, of its headers, of a body or of reading an answer is cut off, as Go's
net/http does with its timeouts. Where too many are connected, new ones wait in the kernel's queue until others go.
"""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import socket
import ssl
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

log = logging.getLogger(__name__)

# Files that the process needs beside its clients' connections: the database, pipes, calls to webhooks.
RESERVED_FILES = 128
ACCEPT_RETRY_S = 0.2
BACKLOG = 1024


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    header_timeout_s: float = 10.0  # for the TLS handshake, and for a request's headers from their first byte on
    body_timeout_s: float = 60.0
    response_timeout_s: float = 60.0  # for reading an answer; a watch has a limit of its own
    idle_timeout_s: float = 90.0
    sweep_period_s: float = 1.0  # between two looks at who is past due
    max_connections: int = 0  # 0: as many as the process may open files, less those that it needs itself
    max_headers: int = 128
    max_header_bytes: int = 16 << 10  # of one header, and of the request line


def default_max_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 1 << 16 if soft == resource.RLIM_INFINITY else soft
    return max(16, limit - RESERVED_FILES)


class ClientConnection(RequestHandler):
    """One connection. `due_s` is when it is cut off if the client has not done its next step; infinite: never."""

    __slots__ = ("_holds_slot", "_limits", "_pool", "due_s")

    def __init__(self, manager: web.Server, pool: ConnectionPool, **settings: Any) -> None:
        super().__init__(manager, **settings)
        self._pool = pool
        self._limits = pool.limits
        self._holds_slot = True
        self.due_s = math.inf

    def expect(self, seconds: float) -> None:
        self.due_s = self._loop.time() + seconds

    def expect_nothing(self) -> None:
        self.due_s = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.expect(self._limits.header_timeout_s)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        seen = self._request_count
        super().data_received(data)
        if self._request_count != seen:
            self.expect_nothing()
        elif self._waiter is not None and self.due_s == math.inf:  # the first bytes of the next request's headers
            self.expect(self._limits.header_timeout_s)

    async def finish_response(self, request: Any, resp: Any, start_time: float | None) -> Any:
        self.expect(self._limits.response_timeout_s)
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self.expect_nothing()

    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what is not HTTP in Go's words; such a client is no error of the server, so the log stays quiet."""
        if status != 400:
            return super().handle_error(request, status, exc, message)
        too_large = isinstance(exc, LineTooLong) or "Too many headers" in (message or "")
        text = "431 Request Header Fields Too Large" if too_large else "400 Bad Request"
        response = web.Response(status=431 if too_large else 400, text=text)
        response.force_close()
        return response

    def abort(self) -> None:
        transport = self.transport
        self.force_close()
        if transport is not None:
            transport.abort()  # what is still to be sent would keep it open

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.release()

    def release(self) -> None:
        if self._holds_slot:
            self._holds_slot = False
            self._pool.release()


class ConnectionPool:
    """Accepts connections for a handler of requests, up to a limit, and cuts off those that are past due."""

    def __init__(self, server: web.Server, limits: ConnectionLimits, context: ssl.SSLContext | None) -> None:
        self.limits = limits
        self._server = server
        self._context = context
        self._free = asyncio.Semaphore(limits.max_connections or default_max_connections())
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen on every address of the host and return the first."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                self._listeners.append(_listener(family, (address[0], port, *address[2:])))
                port = port or self._listeners[0].getsockname()[1]
        except OSError:
            self._close_listeners()
            raise
        for listener in self._listeners:
            self._spawn(self._accept(listener))
        self._spawn(self._sweep())
        name = self._listeners[0].getsockname()
        return name[0], name[1]

    async def close(self) -> None:
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._close_listeners()

    def _close_listeners(self) -> None:
        while self._listeners:
            self._listeners.pop().close()

    def drop_all(self) -> None:
        for connection in self._server.connections:
            if isinstance(connection, ClientConnection):
                connection.abort()

    def release(self) -> None:
        self._free.release()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        told = False
        while True:
            if self._free.locked():
                log.info("no more connections are accepted until one ends")
            await self._free.acquire()
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError as error:  # no file left, no memory left: others will give some back
                self.release()
                if not told:
                    log.warning("cannot accept connections until others end: %s", error.strerror)
                told = True
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            except asyncio.CancelledError:
                self.release()
                raise
            told = False
            self._spawn(self._open(client))

    async def _open(self, client: socket.socket) -> None:
        limits = self.limits
        connection = ClientConnection(
            self._server,
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,
            keepalive_timeout=limits.idle_timeout_s,
            max_line_size=limits.max_header_bytes,
            max_field_size=limits.max_header_bytes,
            max_headers=limits.max_headers,
        )
        handshake = {"ssl_handshake_timeout": limits.header_timeout_s} if self._context is not None else {}
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, client, ssl=self._context, **handshake
            )
        except OSError:  # the client went away, spoke no TLS or was too slow: its handshake is its own business
            client.close()
            connection.release()
        except asyncio.CancelledError:
            client.close()
            raise

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.limits.sweep_period_s)
            now = loop.time()
            late = [c for c in self._server.connections if isinstance(c, ClientConnection) and c.due_s <= now]
            for connection in late:
                connection.abort()
            if late:
                log.info("%d connections were cut off: their clients took too long", len(late))


def _listener(family: int, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
