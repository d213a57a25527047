"""The HTTPS server of the webhooks, with a certificate that can change under open connections. It decides nothing."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from koord.manager.webhook_server import review
from koord.manager.webhook_server.certificate import CertificateMaterial
from koord.manager.webhook_server.handlers import WebhookHandler
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

MAX_BODY_BYTES = 16 << 20  # an object and its predecessor, each of the size that etcd takes, with room
# Longer than callers keep idle connections (90 s in Go): a server that hangs up first makes a call fail now and then.
KEEPALIVE_S = 3600
SHUTDOWN_TIMEOUT_S = 10.0
JSON = "application/json"

DebugPage = Callable[[], Any]  # what a debug page shows, as JSON


class WebhookServer:
    def __init__(
        self,
        handlers: Mapping[str, WebhookHandler],
        metrics: WebhookMetrics,
        clock: Clock,
        *,
        identity: ServingIdentity | None = None,
        pages: Mapping[str, DebugPage] | None = None,
    ) -> None:
        self.identity = identity or ServingIdentity()
        self.port = 0
        self._handlers = dict(handlers)
        self._pages = dict(pages or {})
        self._metrics = metrics
        self._clock = clock
        self._runner: web.AppRunner | None = None

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(self._handlers)

    async def start(self, host: str = "0.0.0.0", port: int = 9876) -> None:
        """Listen; port 0 takes any free one. Handshakes fail until the identity has a certificate."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/healthz", _health)
        app.router.add_post("/convert", _convert)
        for path, page in self._pages.items():
            app.router.add_get(path, _page_handler(page))
        for path, handler in self._handlers.items():
            app.router.add_post(path, self._handler(path, handler))
        self._runner = web.AppRunner(
            app, access_log=None, keepalive_timeout=KEEPALIVE_S, shutdown_timeout=SHUTDOWN_TIMEOUT_S
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=self.identity.context(), reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop after the calls that are being answered have finished."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _handler(self, path: str, handler: WebhookHandler) -> Callable[[web.Request], Any]:
        malformed = self._metrics.malformed_reviews.labels(path)
        failed = self._metrics.failed_decisions.labels(path)

        async def handle(request: web.Request) -> web.Response:
            asked = review.decode_review(await request.read())
            if isinstance(asked, review.MalformedReview):
                malformed.inc()
                _LOG.warning("%s: %s", path, asked.why)
                return web.Response(status=400, body=review.encode_rejection(asked.why), content_type=JSON)
            began = self._clock.monotonic()
            try:
                answer = await handler.answer(asked.request)
            except Exception:  # noqa: BLE001  one bad object must not end the server; it is logged and counted
                # Not a denial: whether a call that failed lets the object through is the failure policy's to say.
                failed.inc()
                about = asked.request
                _LOG.exception("%s: deciding about %s %s/%s failed", path, about.kind.kind, about.namespace, about.name)
                return web.Response(status=500, text=f"the decision of {path} failed; see the log of koord-manager")
            self._observe(handler, asked.request.operation, answer.allowed, self._clock.monotonic() - began)
            return web.Response(body=review.encode_review(asked, answer), content_type=JSON)

        return handle

    def _observe(self, handler: WebhookHandler, operation: str, allowed: bool, took_s: float) -> None:
        kind = "mutate" if handler.route.mutates else "validate"
        status = "allowed" if allowed else "rejected"
        series = self._metrics.webhook_duration_ms.labels(kind, handler.route.object_type, operation, "", status)
        series.observe(took_s * 1000)


async def _health(_: web.Request) -> web.Response:
    return web.Response(text="ok")


async def _convert(request: web.Request) -> web.Response:
    answer = review.convert_review(await request.read())
    if isinstance(answer, review.MalformedReview):
        return web.Response(status=400, text=answer.why)
    return web.Response(body=answer, content_type=JSON)


def _page_handler(page: DebugPage) -> Callable[[web.Request], Any]:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(page()), content_type=JSON)

    return handle
