"""Serve the API server over HTTPS: bearer tokens, one handler for all paths, watches as streams, and limits on
connections and on how long a client may take."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import ipaddress
import logging
import math
import re
import resource
import socket
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

import msgspec
from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import LineTooLong
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler
from multidict import CIMultiDict

from koord.embedded.apiserver.api_errors import StatusError
from koord.embedded.apiserver.rest import responses
from koord.embedded.apiserver.rest.watch import ServerWatchStream
from koord.embedded.apiserver.server import ApiServer
from koord.kube.transport.interface import JSON, ApiRequest, ApiResponse

# The connections of the HTTPS server: how many there may be, and how long a client may take for each step.
#
# A client that stops in the middle of a handshake, of its headers, of a body or of reading an answer is cut off, as
# Go's net/http does with its timeouts. Where too many are connected, new ones wait in the kernel's queue until others
# go.

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


MAX_BODY_BYTES = 3 << 20
# A watcher whose socket takes nothing for this long is cut off; it costs others nothing meanwhile.
STALLED_WATCH_S = 30.0
WRITE_BUFFER_BYTES = 1 << 20
_CACHE_CONTROL = "no-cache, private"
_WARNING_SEPARATOR = re.compile(r', (?=299 - ")')
_NO_QUERY: Mapping[str, str] = {}


class NotLoopbackError(ValueError):
    """Raised when the server was asked to listen on an address that other machines can reach."""


class HttpServer:
    def __init__(self, server: ApiServer, limits: ConnectionLimits | None = None) -> None:
        self._server = server
        self._limits = limits or ConnectionLimits()
        self._known_headers: dict[str, str] = {}  # Authorization header -> user, for headers seen and found good
        self._runner: web.ServerRunner | None = None
        self._pool: ConnectionPool | None = None
        self.url = ""

    async def start(self, host: str, port: int, context: ssl.SSLContext | None, *, allow_remote: bool = False) -> str:
        """Listen and return the URL; port 0 lets the system choose. Raises NotLoopbackError unless `allow_remote`."""
        if not allow_remote and not _is_loopback(host):
            raise NotLoopbackError(f"{host} is not a loopback address; allow remote clients explicitly to listen there")
        low_level = web.Server(self._handle, request_factory=_make_request, handler_cancellation=True)
        self._runner = web.ServerRunner(low_level)
        await self._runner.setup()
        self._pool = ConnectionPool(low_level, self._limits, context)
        bound = await self._pool.listen(host, port)
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        self.url = f"{'https' if context else 'http'}://{shown}:{bound[1]}"
        return self.url

    async def close(self) -> None:
        if self._pool is not None:
            await self._pool.close()
            self._pool = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def drop_clients(self) -> None:
        """Cut every connection, so that its client must say again who it is."""
        self._known_headers.clear()
        if self._pool is not None:
            self._pool.drop_all()

    # One request -------------------------------------------------------------------------------------------------

    async def _handle(self, raw: web.BaseRequest) -> web.StreamResponse:
        headers = raw.headers
        user = self._authenticate(headers.get("Authorization", ""))
        if user is None:
            return _to_aiohttp(responses.error_response(StatusError(401, "Unauthorized", "Unauthorized")))
        path, _, tail = raw.raw_path.partition("?")
        request = ApiRequest(
            method=raw.method,
            path=unquote(path) if "%" in path else path,
            query=dict(parse_qsl(tail, keep_blank_values=True)) if tail else _NO_QUERY,
            content_type=headers.get("Content-Type", JSON),
            accept=headers.get("Accept", ""),
            user=user,
            user_agent=headers.get("User-Agent", ""),
            body=await self._read_body(raw) if raw.body_exists else b"",
        )
        if request.body is _TOO_LARGE:
            refusal = StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY_BYTES}")
            response = _to_aiohttp(responses.error_response(refusal))
            response.force_close()
            return response
        if raw.method == "GET" and (tail or "/watch/" in path) and self._server.is_watch(request):
            return await self._watch(raw, request)
        if raw.method == "GET" and path.endswith("/log"):
            return await self._log(raw, request)
        answer = await self._server.handle(request)
        if raw.method == "HEAD":
            return web.Response(status=answer.status, content_type="application/json")
        return _to_aiohttp(answer)

    def _authenticate(self, header: str) -> str | None:
        known = self._known_headers.get(header)
        if known is not None:
            return known
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer":
            return None
        given = token.strip().encode()
        for good, user in self._server.tokens.items():
            if hmac.compare_digest(good.encode(), given):
                self._known_headers[header] = user
                return user
        return None

    async def _read_body(self, raw: web.BaseRequest) -> Any:
        if (raw.content_length or 0) > MAX_BODY_BYTES:
            return _TOO_LARGE
        connection = raw.protocol
        assert isinstance(connection, ClientConnection), "the pool makes them"
        connection.expect(self._limits.body_timeout_s)
        try:
            return await raw.read()
        except web.HTTPRequestEntityTooLarge:
            return _TOO_LARGE
        finally:
            connection.expect_nothing()

    # Watches -----------------------------------------------------------------------------------------------------

    async def _watch(self, raw: web.BaseRequest, request: ApiRequest) -> web.StreamResponse:
        stream = await self._server.watch(request)
        if isinstance(stream, ApiResponse):
            return _to_aiohttp(stream)
        response = web.StreamResponse(headers={"Content-Type": JSON, "Cache-Control": _CACHE_CONTROL})
        response.enable_chunked_encoding()
        try:
            await response.prepare(raw)
            transport = raw.transport
            if transport is not None:
                transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
            await self._stream_frames(stream, response, transport)
        except ConnectionError:
            pass  # the client went away: that is how watches end
        finally:
            stream.close_now()
        return response

    async def _log(self, raw: web.BaseRequest, request: ApiRequest) -> web.StreamResponse:
        lines = await self._server.follow_log(request)
        if isinstance(lines, ApiResponse):
            return _to_aiohttp(lines)
        response = web.StreamResponse(headers={"Content-Type": "text/plain", "Cache-Control": _CACHE_CONTROL})
        response.enable_chunked_encoding()
        async with contextlib.aclosing(lines):
            try:
                await response.prepare(raw)
                async for text in lines:
                    await response.write(text)
                await response.write_eof()
            except ConnectionError:
                pass  # the client went away: that is how following ends
        return response

    async def _stream_frames(
        self, stream: ServerWatchStream, response: web.StreamResponse, transport: asyncio.Transport | None
    ) -> None:
        while frames := await stream.next_batch():
            lines = b"".join([frame.line() for frame in frames])
            if transport is None or transport.is_closing():
                return
            try:
                async with asyncio.timeout(STALLED_WATCH_S):
                    await response.write(lines)
            except TimeoutError:
                log.warning("watch cut off: its client has read nothing for %.0f s", STALLED_WATCH_S)
                transport.abort()
                return
        await response.write_eof()


class _TooLarge:
    """Stands in for a body that was not read to its end."""


_TOO_LARGE = _TooLarge()


def _make_request(
    message: RawRequestMessage, payload: StreamReader, protocol: RequestHandler, writer: Any, task: asyncio.Task[None]
) -> web.BaseRequest:
    return web.BaseRequest(message, payload, protocol, writer, task, protocol._loop, client_max_size=MAX_BODY_BYTES)


def _to_aiohttp(answer: ApiResponse) -> web.Response:
    headers: CIMultiDict[str] = CIMultiDict({"Content-Type": answer.content_type, "Cache-Control": _CACHE_CONTROL})
    for name, value in answer.headers.items():
        # Clients take a header line for each warning; a quote inside a text is escaped, so this splits between texts.
        for line in _WARNING_SEPARATOR.split(value) if name == "Warning" else (value,):
            headers.add(name, line)
    return web.Response(status=answer.status, body=answer.body.raw(), headers=headers)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class ServerAddress(NamedTuple):
    url: str
    token: str
    ca: bytes  # PEM of the authority that signed the serving certificate


def kubeconfig_document(address: ServerAddress, name: str = "koord") -> dict[str, Any]:
    """Return the kubeconfig document that leads kubectl to the server, to be written as JSON or YAML."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": name,
                "cluster": {"server": address.url, "certificate-authority-data": base64.b64encode(address.ca).decode()},
            }
        ],
        "users": [{"name": name, "user": {"token": address.token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
