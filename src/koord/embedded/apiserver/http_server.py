"""Serve the API server over HTTPS: bearer tokens, one handler for all paths, and watches as chunked lines."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import ipaddress
import logging
import re
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler
from multidict import CIMultiDict

from koord.embedded.apiserver.api_errors import StatusError
from koord.embedded.apiserver.connections import ClientConnection, ConnectionLimits, ConnectionPool
from koord.embedded.apiserver.rest import responses
from koord.embedded.apiserver.rest.watch import ServerWatchStream
from koord.embedded.apiserver.server import ApiServer
from koord.kube.transport.interface import JSON, ApiRequest, ApiResponse

log = logging.getLogger(__name__)

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
