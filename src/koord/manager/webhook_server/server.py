"""The HTTPS server of the webhooks, with a certificate that can change under open connections. It decides nothing."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from koord.manager.webhook_server.cert_store import CertificateMaterial
from koord.manager.webhook_server.handlers import (
    TOO_DEEP,
    MalformedReview,
    WebhookHandler,
    convert_review,
    decode_review,
    encode_rejection,
    encode_review,
)
from koord.manager.webhook_server.metrics import WebhookMetrics
from koord.telemetry import certificates
from koord.telemetry.clock import Clock


class ServingIdentity:
    """The certificate that is presented. `adopt` may be called at any time; later handshakes use the new pair."""

    def __init__(self) -> None:
        self.material = CertificateMaterial()
        self._current: ssl.SSLContext | None = None

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint; "" while nothing was adopted."""
        return self.material.fingerprint if self._current is not None else ""

    def adopt(self, material: CertificateMaterial) -> None:
        """Use the material from now on. Raise ssl.SSLError when the pair cannot be used; the one before stays."""
        self._current = certificates.server_context(material.cert, material.key)
        self.material = material

    def context(self) -> ssl.SSLContext:
        """Return the context of the listening socket. It has no certificate: each handshake is given the current."""
        outer = certificates.server_context()
        outer.sni_callback = self._on_sni
        return outer

    def _on_sni(self, connection: ssl.SSLObject, _name: str | None, _outer: ssl.SSLContext) -> int | None:
        if self._current is None:
            return int(ssl.ALERT_DESCRIPTION_INTERNAL_ERROR)
        connection.context = self._current
        return None


_LOG = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT_S = 10.0
_DRAIN_POLL_S = 0.05
JSON = "application/json"

DebugPage = Callable[[], Any]  # what a debug page shows, as JSON


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one caller. API servers give up after 30 s themselves, and send 3 MiB at most, twice."""

    body_bytes: int = 16 << 20
    header_s: float = 15.0  # from the connection to the end of its first request's headers
    body_s: float = 30.0
    decision_s: float = 30.0
    # Longer than callers keep idle connections (90 s in Go): if the server hangs up first, a call fails now and then.
    idle_s: float = 180.0
    drain_s: float = 2.0  # how long a server that stops answers on, for callers that still have connections


class WebhookServer:
    def __init__(
        self,
        handlers: Mapping[str, WebhookHandler],
        metrics: WebhookMetrics,
        clock: Clock,
        *,
        identity: ServingIdentity | None = None,
        pages: Mapping[str, DebugPage] | None = None,
        limits: ServerLimits = ServerLimits(),  # noqa: B008 - a frozen value
    ) -> None:
        self.identity = identity or ServingIdentity()
        self.port = 0
        self._handlers = dict(handlers)
        self._pages = dict(pages or {})
        self._metrics = metrics
        self._clock = clock
        self._limits = limits
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self._draining = False
        self._silent: set[asyncio.BaseProtocol] = set()  # new connections that have not sent a request yet

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(self._handlers)

    async def start(self, host: str = "0.0.0.0", port: int = 9876) -> None:
        """Listen; port 0 takes any free one. Handshakes fail until the identity has a certificate."""
        self._draining = False

        @web.middleware
        async def note_request(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._silent.discard(request.protocol)
            response = await handler(request)
            if self._draining:
                response.force_close()
            return response

        app = web.Application(client_max_size=self._limits.body_bytes, middlewares=[note_request])
        app.router.add_get("/healthz", _health)
        app.router.add_post("/convert", self._convert)
        for path, page in self._pages.items():
            app.router.add_get(path, _page_handler(page))
        for path, handler in self._handlers.items():
            app.router.add_post(path, self._handler(path, handler))
        self._runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=self._limits.idle_s, shutdown_timeout=SHUTDOWN_TIMEOUT_S
        )
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self._new_connection, host, port, ssl=self.identity.context(), reuse_address=True
        )
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop after the calls that are being answered have finished, and callers were told to hang up."""
        await self._drain()
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self._close_idle_connections()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _drain(self) -> None:
        """Answer on for a moment, each time with `Connection: close`.

        API servers keep connections to a replica that the service no longer names. A call on one that is closed in that
        moment fails, and its pod would come in as if there were no webhook.
        """
        self._draining = True
        deadline = self._clock.monotonic() + self._limits.drain_s
        while self._has_connections() and self._clock.monotonic() < deadline:
            await self._clock.sleep(_DRAIN_POLL_S)

    async def _close_idle_connections(self) -> None:
        """Close the connections that wait for a request, and answer a request that has come on one of them.

        aiohttp's own shutdown drops a request that has come and whose handler has not begun. What is sent while the
        close is on its way cannot be answered: HTTP/1.1 has no word for that.
        """
        if self._runner is None or self._runner.server is None:
            return
        await self._clock.sleep(_DRAIN_POLL_S)  # what callers have sent is read
        for connection in self._runner.server.connections:
            connection.close()
        await self._clock.sleep(_DRAIN_POLL_S)  # their handlers have begun, and aiohttp waits for these

    def _has_connections(self) -> bool:
        return self._runner is not None and self._runner.server is not None and bool(self._runner.server.connections)

    # Limits ------------------------------------------------------------------------------------------------------

    def _new_connection(self) -> asyncio.BaseProtocol:
        assert self._runner is not None
        assert self._runner.server is not None
        made = self._runner.server()
        self._silent.add(made)
        asyncio.get_running_loop().call_later(self._limits.header_s, self._close_if_silent, made)
        return made

    def _close_if_silent(self, connection: web.RequestHandler) -> None:
        """Close a connection that has not sent one whole request head: it would be held for nothing."""
        if connection in self._silent:
            self._silent.discard(connection)
            if connection.transport is not None:
                connection.transport.abort()

    async def _read(self, request: web.Request) -> bytes | web.Response:
        """Return the body, or the answer to a caller that does not send it in time."""
        try:
            async with asyncio.timeout(self._limits.body_s):
                return await request.read()
        except TimeoutError:
            why = f"the body did not come within {self._limits.body_s:g} s"
            _LOG.warning("%s: %s", request.path, why)
            return web.Response(status=408, text=why, headers={"Connection": "close"})

    # Answers -----------------------------------------------------------------------------------------------------

    def _handler(self, path: str, handler: WebhookHandler) -> Callable[[web.Request], Any]:
        malformed = self._metrics.malformed_reviews.labels(path)
        failed = self._metrics.failed_decisions.labels(path)

        def reject(why: str) -> web.Response:
            malformed.inc()
            _LOG.warning("%s: %s", path, why)
            return web.Response(status=400, body=encode_rejection(why), content_type=JSON)

        async def handle(request: web.Request) -> web.Response:
            body = await self._read(request)
            if isinstance(body, web.Response):
                return body
            asked = decode_review(body)
            if isinstance(asked, MalformedReview):
                return reject(asked.why)
            began = self._clock.monotonic()
            try:
                async with asyncio.timeout(self._limits.decision_s):
                    answer = await handler.answer(asked.request)
                encoded = encode_review(asked, answer)
            except RecursionError:
                return reject(TOO_DEEP)
            except Exception:  # noqa: BLE001  one bad object must not end the server; it is logged and counted
                # Not a denial: whether a call that failed lets the object through is the failure policy's to say.
                failed.inc()
                about = asked.request
                _LOG.exception("%s: deciding about %s %s/%s failed", path, about.kind.kind, about.namespace, about.name)
                return web.Response(status=500, text=f"the decision of {path} failed; see the log of koord-manager")
            self._observe(handler, asked.request.operation, answer.allowed, self._clock.monotonic() - began)
            return web.Response(body=encoded, content_type=JSON)

        return handle

    async def _convert(self, request: web.Request) -> web.Response:
        body = await self._read(request)
        if isinstance(body, web.Response):
            return body
        answer = convert_review(body)
        if isinstance(answer, MalformedReview):
            return web.Response(status=400, text=answer.why)
        return web.Response(body=answer, content_type=JSON)

    def _observe(self, handler: WebhookHandler, operation: str, allowed: bool, took_s: float) -> None:
        kind = "mutate" if handler.route.mutates else "validate"
        status = "allowed" if allowed else "rejected"
        series = self._metrics.webhook_duration_ms.labels(kind, handler.route.object_type, operation, "", status)
        series.observe(took_s * 1000)


async def _health(_: web.Request) -> web.Response:
    return web.Response(text="ok")


def _page_handler(page: DebugPage) -> Callable[[web.Request], Any]:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(page()), content_type=JSON)

    return handle
