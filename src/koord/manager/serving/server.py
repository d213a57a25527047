"""The HTTPS server of the webhooks: bytes in, bytes out, one handler for each path. It decides nothing itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from aiohttp import web

from koord.manager.metrics import Metrics
from koord.manager.serving import conversion, review
from koord.manager.serving.door import Door
from koord.manager.serving.tls import Identity
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 << 20  # an object and its predecessor, each of the size that etcd takes, with room
# Longer than callers keep idle connections (90 s in Go): a server that hangs up first makes a call fail now and then.
KEEPALIVE_S = 3600
STOP_S = 10.0
JSON = "application/json"

Page = Callable[[], Any]  # what a debug page shows, as JSON


class WebhookServer:
    def __init__(
        self,
        doors: Mapping[str, Door],
        metrics: Metrics,
        clock: Clock,
        *,
        identity: Identity | None = None,
        pages: Mapping[str, Page] | None = None,
    ) -> None:
        self.identity = identity or Identity()
        self.port = 0
        self._doors = dict(doors)
        self._pages = dict(pages or {})
        self._metrics = metrics
        self._clock = clock
        self._runner: web.AppRunner | None = None

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(self._doors)

    async def start(self, host: str = "0.0.0.0", port: int = 9876) -> None:
        """Listen; port 0 takes any free one. Handshakes fail until the identity has a certificate."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/healthz", _health)
        app.router.add_post("/convert", _convert)
        for path, page in self._pages.items():
            app.router.add_get(path, _page(page))
        for path, door in self._doors.items():
            app.router.add_post(path, self._handler(path, door))
        self._runner = web.AppRunner(app, access_log=None, keepalive_timeout=KEEPALIVE_S, shutdown_timeout=STOP_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=self.identity.context(), reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop after the calls that are being answered have finished."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _handler(self, path: str, door: Door) -> Callable[[web.Request], Any]:
        malformed = self._metrics.malformed_reviews.labels(path)
        failed = self._metrics.failed_decisions.labels(path)

        async def handle(request: web.Request) -> web.Response:
            asked = review.read(await request.read())
            if isinstance(asked, review.Malformed):
                malformed.inc()
                _LOG.warning("%s: %s", path, asked.why)
                return web.Response(status=400, body=review.complaint(asked.why), content_type=JSON)
            began = self._clock.monotonic()
            try:
                answer = await door.answer(asked.request)
            except Exception:  # noqa: BLE001  one bad object must not end the server; it is logged and counted
                # Not a denial: whether a call that failed lets the object through is the failure policy's to say.
                failed.inc()
                about = asked.request
                _LOG.exception("%s: deciding about %s %s/%s failed", path, about.kind.kind, about.namespace, about.name)
                return web.Response(status=500, text=f"the decision of {path} failed; see the log of koord-manager")
            self._observe(door, asked.request.operation, answer.allowed, self._clock.monotonic() - began)
            return web.Response(body=review.written(asked, answer), content_type=JSON)

        return handle

    def _observe(self, door: Door, operation: str, allowed: bool, took_s: float) -> None:
        kind = "mutate" if door.route.mutates else "validate"
        status = "allowed" if allowed else "rejected"
        series = self._metrics.webhook_duration_ms.labels(kind, door.route.object_type, operation, "", status)
        series.observe(took_s * 1000)


async def _health(_: web.Request) -> web.Response:
    return web.Response(text="ok")


async def _convert(request: web.Request) -> web.Response:
    answer = conversion.converted(await request.read())
    if isinstance(answer, review.Malformed):
        return web.Response(status=400, text=answer.why)
    return web.Response(body=answer, content_type=JSON)


def _page(page: Page) -> Callable[[web.Request], Any]:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(page()), content_type=JSON)

    return handle
