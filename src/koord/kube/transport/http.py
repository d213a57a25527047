"""This module is the transport over HTTP: sessions, TLS contexts made again when the files behind them change,
proxies, credentials, a leader's fence. It does not retry.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import os
import re
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from koord.api.model import encode
from koord.kube.config.connection import ClientKeyPair, Connection, Impersonation, PemSource
from koord.kube.transport.credentials import Credential, credential_source
from koord.kube.transport.fenced_socket import FenceClosed, FencedConnector, WriteFence
from koord.kube.transport.interface import ApiRequest, ApiResponse, BytesResponseBody, Unreachable
from koord.kube.transport.watch_frames import HttpWatchFrame, WatchFrameSplitter
from koord.telemetry.clock import Clock

FileStamp = tuple[object, ...]


class TlsContexts:
    """TlsContexts returns the context to use with a client certificate, or with none. A new one: new connections."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stamp: FileStamp | None = None
        self._context: ssl.SSLContext | None = None

    def context(self, certificate: ClientKeyPair | None) -> ssl.SSLContext:
        parts = [self._connection.ca] if self._connection.ca else []
        if certificate is not None:
            parts += [certificate.certificate, certificate.key]
        stamp = tuple(_stamp(pem) for pem in parts)
        if self._context is None or stamp != self._stamp:
            self._context = _build(self._connection, certificate)
            self._stamp = stamp
        return self._context


def _stamp(pem: PemSource) -> FileStamp:
    if pem.data is not None:
        return (pem.data,)
    try:
        seen = os.stat(pem.path)
    except OSError as failure:
        raise pem.origin.error(
            f"{pem.path} cannot be read ({failure.strerror})", "check the path and its rights"
        ) from None
    return (pem.path, seen.st_mtime_ns, seen.st_size, seen.st_ino)


def _build(connection: Connection, certificate: ClientKeyPair | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if connection.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif connection.ca is None:
        context.load_default_certs()
    else:
        _load_ca(context, connection.ca)
    if certificate is not None:
        _load_pair(context, certificate)
    return context


def _load_ca(context: ssl.SSLContext, ca: PemSource) -> None:
    try:
        if ca.data is not None:
            context.load_verify_locations(cadata=ca.data.decode("ascii"))
        else:
            context.load_verify_locations(cafile=ca.path)
    except (ssl.SSLError, ValueError, OSError) as wrong:
        raise ca.origin.error(f"it holds no certificate ({wrong})", "give a PEM certificate") from None


def _load_pair(context: ssl.SSLContext, pair: ClientKeyPair) -> None:
    try:
        with _file(pair.certificate) as certificate, _file(pair.key) as key:
            # A password prompt on a daemon's terminal would hang it: an encrypted key is an error.
            context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError, OSError) as wrong:
        problem = f"the client certificate and key cannot be used ({wrong})"
        raise pair.certificate.origin.error(problem, "give a PEM certificate with its own unencrypted key") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted")


@contextlib.contextmanager
def _file(pem: PemSource) -> Iterator[str]:
    """Yield a path for OpenSSL, which takes no bytes. Inline keys stay in memory where the system supports it."""
    if pem.data is None:
        yield pem.path
    elif hasattr(os, "memfd_create"):
        handle = os.memfd_create("pem", os.MFD_CLOEXEC)
        try:
            os.write(handle, pem.data)
            yield f"/proc/self/fd/{handle}"
        finally:
            os.close(handle)
    else:
        with tempfile.NamedTemporaryFile() as file:
            file.write(pem.data)
            file.flush()
            yield file.name


T = TypeVar("T")

GC_PAUSE_MIN_BYTES = (
    1 << 20
)  # bytes from which a decode makes so many objects that the collector would cost more than the parser
WATCH_GRACE_S = 30.0  # how long after its own deadline a watch may stay silent before the server counts as lost
_PIECEWISE_BYTES = 1 << 20  # a longer body is written in pieces, with other work in between
_READ_BYTES = 1 << 18  # a busy watch is read in few large pieces
# Failures before a byte of the request was written: the connection was never made.
_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError, aiohttp.ConnectionTimeoutError)
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError)
_READ_METHODS = ("GET", "HEAD")
# Events pass a closed fence: they report what was done and change nothing.
_EVENTS_PATH = "/apis/events.k8s.io/"


class HttpResponseBody(BytesResponseBody):
    """HttpResponseBody pauses the garbage collector while it decodes a large list: nothing of it is garbage yet."""

    __slots__ = ()

    def plain(self) -> Any:
        with _gc_paused(len(self.raw())):
            return super().plain()

    def typed(self, model: type[T]) -> T:
        with _gc_paused(len(self.raw())):
            return super().typed(model)


class HttpWatchStream:
    """HttpWatchStream is an open response that is read as watch frames."""

    def __init__(self, response: aiohttp.ClientResponse, what: str) -> None:
        self._response = response
        self._what = what
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[HttpWatchFrame]:
        splitter = WatchFrameSplitter()
        content = self._response.content
        try:
            while chunk := await content.readany():
                for frame in splitter.feed(chunk):
                    yield frame
                if splitter.broken:
                    return
            for frame in splitter.finish():
                yield frame
        except _FAILURES as failure:
            _drop_tracebacks(failure)
            if not self._closed:  # closing it ourselves raises the same errors as a failure
                raise Unreachable(f"the watch of {self._what} was cut: {_failure_text(failure)}") from failure
        finally:
            self._response.close()

    async def close(self) -> None:
        self._closed = True
        self._response.close()


class HttpTransport:
    """HttpTransport talks to one server as one user, over HTTP/1.1.

    It raises Unreachable when there is no response, and BadConfig when certificates or credentials cannot be
    used at all.
    """

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        *,
        timeout_s: float = 60.0,
        connect_timeout_s: float = 10.0,
        connections: int = 64,
        fence: WriteFence | None = None,
    ) -> None:
        """Create a transport. `connections` bounds the calls in flight; watches are not counted. With a fence, what
        changes the cluster has connections of its own, as many, whose bytes leave only while the fence is open.
        """
        self._connection = connection
        self._credentials = credential_source(connection, clock)
        self._tls = TlsContexts(connection) if connection.server.startswith("https:") else None
        self._impersonation_headers = _impersonation_headers(connection.impersonate)
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._connections = connections
        self._fence = fence
        self._call_session: aiohttp.ClientSession | None = None
        self._fenced_session: aiohttp.ClientSession | None = None
        self._watch_session: aiohttp.ClientSession | None = None

    async def send(self, request: ApiRequest) -> ApiResponse:
        session = self._session_for(request)
        timeout = aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=self._connect_timeout_s)
        try:
            response = await self._send_authenticated(session, request, timeout, compress=self._connection.compress)
            async with response:
                return _to_api_response(response, await response.read())
        except _FAILURES as failure:
            raise self._unreachable(request, failure) from failure

    async def watch(self, request: ApiRequest) -> HttpWatchStream | ApiResponse:
        if self._watch_session is None:
            self._watch_session = _session(aiohttp.TCPConnector(limit=0, socket_factory=_socket))
        asked = request.query.get("timeoutSeconds", "")
        total = float(asked) + WATCH_GRACE_S if asked else None
        timeout = aiohttp.ClientTimeout(total=total, sock_connect=self._connect_timeout_s)
        try:
            async with asyncio.timeout(self._timeout_s):
                # Compressed, an event would wait in the server's window for the next one.
                response = await self._send_authenticated(self._watch_session, request, timeout, compress=False)
                if response.status == 200:
                    return HttpWatchStream(response, request.path)
                async with response:
                    return _to_api_response(response, await response.read())
        except _FAILURES as failure:
            raise self._unreachable(request, failure) from failure

    async def close(self) -> None:
        for session in (self._call_session, self._fenced_session, self._watch_session):
            if session is not None:
                await session.close()
        self._call_session = self._fenced_session = self._watch_session = None

    def _session_for(self, request: ApiRequest) -> aiohttp.ClientSession:
        if self._fence is None or request.method in _READ_METHODS or request.path.startswith(_EVENTS_PATH):
            if self._call_session is None:
                self._call_session = _session(aiohttp.TCPConnector(limit=self._connections, socket_factory=_socket))
            return self._call_session
        if not self._fence.is_open():  # the connections look again; this saves a closed fence the wait for one
            raise self._unreachable(request, FenceClosed(sent=False))
        if self._fenced_session is None:
            self._fenced_session = _session(FencedConnector(self._fence, _socket, limit=self._connections))
        return self._fenced_session

    async def _send_authenticated(
        self, session: aiohttp.ClientSession, request: ApiRequest, timeout: aiohttp.ClientTimeout, *, compress: bool
    ) -> aiohttp.ClientResponse:
        """Return the response with its body unread. A 401 is retried once with renewed credentials."""
        body = request.body if request.body is None or isinstance(request.body, bytes) else encode(request.body)
        credential = await self._credentials.credential()
        response = await self._send_once(session, request, body, credential, timeout, compress)
        if response.status != 401 or not self._credentials.rejected(credential):
            return response
        response.release()
        return await self._send_once(session, request, body, await self._credentials.credential(), timeout, compress)

    async def _send_once(
        self,
        session: aiohttp.ClientSession,
        request: ApiRequest,
        body: bytes | None,
        credential: Credential,
        timeout: aiohttp.ClientTimeout,
        compress: bool,
    ) -> aiohttp.ClientResponse:
        headers = CIMultiDict(self._impersonation_headers)
        headers["Accept"] = request.accept
        headers["Accept-Encoding"] = "gzip" if compress else "identity"
        if request.user_agent:
            headers["User-Agent"] = request.user_agent
        if body is not None:
            headers["Content-Type"] = request.content_type
        if credential.authorization:
            headers["Authorization"] = credential.authorization
        return await session.request(
            request.method,
            self._url(request),
            data=io.BytesIO(body) if body is not None and len(body) > _PIECEWISE_BYTES else body,
            headers=headers,
            allow_redirects=False,  # a redirect would carry our token to whoever sent it
            proxy=self._connection.proxy_url or None,
            ssl=self._tls.context(credential.certificate) if self._tls else True,
            server_hostname=self._connection.tls_server_name or None,
            timeout=timeout,
            read_bufsize=_READ_BYTES,
        )

    def _url(self, request: ApiRequest) -> URL:
        url = self._connection.server + quote(request.path, safe="/:@!$&'()*+,;=~")
        if request.query:
            url += "?" + urlencode(request.query, quote_via=quote)
        return URL(url, encoded=True)

    def _unreachable(self, request: ApiRequest, failure: BaseException) -> Unreachable:
        _drop_tracebacks(failure)
        via = " through its proxy" if self._connection.proxy_url else ""
        where = f"{request.method} {self._connection.server}{request.path}{via}"
        if (held_back := _fence_closed(failure)) is not None:
            return Unreachable(f"{where} is held back: {held_back}", sent=held_back.sent)
        return Unreachable(f"no answer to {where}: {_failure_text(failure)}", sent=not isinstance(failure, _NOT_SENT))


def _fence_closed(failure: BaseException | None) -> FenceClosed | None:
    while failure is not None and not isinstance(failure, FenceClosed):
        failure = failure.__cause__
    return failure


def _drop_tracebacks(failure: BaseException | None) -> None:
    """Drop the tracebacks of a failure and of its causes.

    aiohttp and asyncio keep the exception of a failed connection in locals of the frames that its traceback holds. Only
    the collector of cycles would free those, with their sockets and buffers, and it runs rarely in programs that wait.
    """
    while failure is not None:
        failure.__traceback__ = None
        failure = failure.__cause__ or failure.__context__


def _session(connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,  # the loader has decided on the proxy already
    )


def _socket(address: Any) -> socket.socket:
    """Open a socket with keep-alive, so that a vanished peer is noticed: a watch may be silent for minutes."""
    family, kind, protocol = address[0], address[1], address[2]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):  # not on every system
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
    return made


def _to_api_response(response: aiohttp.ClientResponse, raw: bytes) -> ApiResponse:
    return ApiResponse(
        status=response.status, body=HttpResponseBody(raw), headers=response.headers, content_type=response.content_type
    )


def _impersonation_headers(who: Impersonation | None) -> CIMultiDict[str]:
    headers: CIMultiDict[str] = CIMultiDict()
    if who is not None:
        headers.add("Impersonate-User", who.user)
        if who.uid:
            headers.add("Impersonate-Uid", who.uid)
        for group in who.groups:
            headers.add("Impersonate-Group", group)
        for key, values in who.extra.items():
            for value in values:
                headers.add(f"Impersonate-Extra-{quote(key.lower(), safe='')}", value)
    return headers


@contextmanager
def _gc_paused(size: int) -> Iterator[None]:
    if size < GC_PAUSE_MIN_BYTES or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _failure_text(failure: BaseException) -> str:
    """Return what went wrong. aiohttp adds how it would have encrypted, as Python shows that object."""
    return re.sub(r" ssl:(<[^>]*>|\w+)", "", str(failure)) or type(failure).__name__
