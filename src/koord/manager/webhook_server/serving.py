"""All of webhook serving on one replica: server, certificate rotation, self probe and readiness."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

import aiohttp
import msgspec

from koord.kube.controller.process import StartupError
from koord.manager.reconcile_loop import ManagerContext
from koord.manager.webhook_server.cert_rotator import CertRotator, WebhookObjectNames
from koord.manager.webhook_server.cert_store import CertStore, DirectoryCertStore, SecretCertStore
from koord.manager.webhook_server.handlers import WebhookHandler
from koord.manager.webhook_server.metrics import WebhookMetrics
from koord.manager.webhook_server.registration import WebhookAddress
from koord.manager.webhook_server.self_probe import WebhookSelfProbe
from koord.manager.webhook_server.server import DebugPage, WebhookServer

_LOG = logging.getLogger(__name__)

READINESS_PERIOD_S = 5.0


class WebhooksNotReady(StartupError):
    """The webhooks could not be made ready in time; the message says what was missing."""


class WebhookServingSettings(msgspec.Struct, frozen=True, kw_only=True):
    address: WebhookAddress
    names: WebhookObjectNames = WebhookObjectNames()
    cert_dir: Path
    writer: str = ""  # "fs", "secret"; "" chooses by whether there is a host
    replica: str
    host: str = "0.0.0.0"
    port: int = 9876
    start_timeout_s: float = 20.0  # after which a server that is not ready gives up

    @property
    def uses_directory(self) -> bool:
        return self.writer == "fs" or (not self.writer and bool(self.address.host))


class WebhookServing:
    def __init__(
        self,
        context: ManagerContext,
        handlers: Mapping[str, WebhookHandler],
        metrics: WebhookMetrics,
        serving: WebhookServingSettings,
        *,
        excluded: frozenset[str],
        pages: Mapping[str, DebugPage] | None = None,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._clock = context.clock
        self._serving = serving
        self.server = WebhookServer(handlers, metrics, context.clock, pages=pages)
        store: CertStore = DirectoryCertStore(serving.cert_dir)
        if not serving.uses_directory:
            store = SecretCertStore(context.client, serving.address.namespace, serving.names.secret)
        self.cert_rotator = CertRotator(
            context,
            self.server.identity,
            store,
            metrics,
            address=serving.address,
            paths=self.server.paths,
            replica=serving.replica,
            cert_dir=serving.cert_dir,
            names=serving.names,
            excluded=sorted(excluded),
            excluding=frozenset(path for path, handler in handlers.items() if handler.route.excludes_system),
        )
        self.self_probe = WebhookSelfProbe(context, metrics, serving.names, tells=leads)
        self._probe: asyncio.Task[None] | None = None
        self._not_ready_reason: str | None = "the webhook server has not started"

    async def start(self) -> None:
        """Return when calls are answered. Raise WebhooksNotReady."""
        try:
            await self.server.start(self._serving.host, self._serving.port)
        except OSError as error:
            raise WebhooksNotReady(f"cannot listen on port {self._serving.port}: {error.strerror or error}") from error
        await self.cert_rotator.start()
        ready = asyncio.ensure_future(self.cert_rotator.initialised.wait())
        deadline = asyncio.ensure_future(self._clock.sleep(self._serving.start_timeout_s))
        try:
            await asyncio.wait({ready, deadline}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                waited = f"not ready to serve within {self._serving.start_timeout_s:.0f} s"
                raise WebhooksNotReady(f"{waited}: {self.cert_rotator.last_error}")
        finally:
            ready.cancel()
            deadline.cancel()
        await self.probe()
        self._probe = asyncio.create_task(self._probe_forever(), name="webhook-ready")
        await self.self_probe.start()
        _LOG.info("webhooks at port %d: %s", self.server.port, ", ".join(sorted(self.server.paths)))

    async def stop(self) -> None:
        self._not_ready_reason = "the webhook server is stopping"
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
            self._probe = None
        await self.self_probe.stop()
        await self.cert_rotator.stop()
        await self.server.stop()

    def check_ready(self) -> str | None:
        """Run the health check `webhook-ready`: return what is wrong, or None."""
        return self._not_ready_reason

    async def probe(self) -> None:
        """Call the own port, with the CA that callers trust."""
        try:
            trust = ssl.create_default_context(cadata=self.server.identity.material.ca_cert.decode())
            url = f"https://127.0.0.1:{self.server.port}/healthz"
            async with (
                asyncio.timeout(READINESS_PERIOD_S),
                aiohttp.ClientSession() as session,
                session.get(url, ssl=trust, server_hostname="localhost") as answer,
            ):
                self._not_ready_reason = None if answer.status == 200 else f"/healthz answered {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self._not_ready_reason = f"/healthz did not answer: {error or type(error).__name__}"

    async def _probe_forever(self) -> None:
        while True:
            await self._clock.sleep(READINESS_PERIOD_S)
            await self.probe()
