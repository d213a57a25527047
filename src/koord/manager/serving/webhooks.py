"""All of webhook serving on one replica: server, certificate rotation, self probe and readiness."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path

import aiohttp
import msgspec

from koord.manager.metrics import Metrics
from koord.manager.serving.door import Door
from koord.manager.serving.keep import FolderKeep, Keep, SecretKeep
from koord.manager.serving.reach import Reach
from koord.manager.serving.registration import Place
from koord.manager.serving.server import Page, WebhookServer
from koord.manager.serving.upkeep import Names, Upkeep
from koord.manager.world import World

_LOG = logging.getLogger(__name__)

PROBE_S = 5.0


class NotServing(Exception):
    """The webhooks could not be made ready in time; the message says what was missing."""


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of serving that the environment gives."""

    place: Place
    names: Names = Names()
    certificates: Path
    writer: str = ""  # "fs", "secret"; "" chooses by whether there is a host
    replica: str
    host: str = "0.0.0.0"
    port: int = 9876
    start_s: float = 20.0  # after which a server that is not ready gives up

    @property
    def in_folder(self) -> bool:
        return self.writer == "fs" or (not self.writer and bool(self.place.host))


class Webhooks:
    def __init__(
        self,
        world: World,
        doors: Mapping[str, Door],
        metrics: Metrics,
        serving: Serving,
        *,
        excluded: frozenset[str],
        pages: Mapping[str, Page] | None = None,
        leads: Callable[[], bool] = lambda: True,
    ) -> None:
        self._clock = world.clock
        self._serving = serving
        self.server = WebhookServer(doors, metrics, world.clock, pages=pages)
        keep: Keep = FolderKeep(serving.certificates)
        if not serving.in_folder:
            keep = SecretKeep(world.client, serving.place.namespace, serving.names.secret)
        self.upkeep = Upkeep(
            world,
            self.server.identity,
            keep,
            metrics,
            place=serving.place,
            paths=self.server.paths,
            replica=serving.replica,
            certificates=serving.certificates,
            names=serving.names,
            excluded=sorted(excluded),
            excluding=frozenset(path for path, door in doors.items() if door.route.excludes_system),
        )
        self.reach = Reach(world, metrics, serving.names, tells=leads)
        self._probe: asyncio.Task[None] | None = None
        self._trouble: str | None = "the webhook server has not started"

    async def start(self) -> None:
        """Return when calls are answered. Raise WebhooksNotReady."""
        try:
            await self.server.start(self._serving.host, self._serving.port)
        except OSError as error:
            raise NotServing(f"cannot listen on port {self._serving.port}: {error.strerror or error}") from error
        await self.upkeep.start()
        try:
            async with asyncio.timeout(self._serving.start_s):
                await self.upkeep.initialised.wait()
        except TimeoutError:
            waited = f"not ready to serve within {self._serving.start_s:.0f} s"
            raise NotServing(f"{waited}: {self.upkeep.last_error}") from None
        await self.probe()
        self._probe = asyncio.create_task(self._probing(), name="webhook-ready")
        await self.reach.start()
        _LOG.info("webhooks at port %d: %s", self.server.port, ", ".join(sorted(self.server.paths)))

    async def stop(self) -> None:
        self._trouble = "the webhook server is stopping"
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
            self._probe = None
        await self.reach.stop()
        await self.upkeep.stop()
        await self.server.stop()

    def ready(self) -> str | None:
        """Run the health check `webhook-ready`: return what is wrong, or None."""
        return self._trouble

    async def probe(self) -> None:
        """Call the own port, with the CA that callers trust."""
        try:
            trust = ssl.create_default_context(cadata=self.server.identity.material.ca_cert.decode())
            url = f"https://127.0.0.1:{self.server.port}/healthz"
            async with (
                asyncio.timeout(PROBE_S),
                aiohttp.ClientSession() as session,
                session.get(url, ssl=trust, server_hostname="localhost") as answer,
            ):
                self._trouble = None if answer.status == 200 else f"/healthz answered {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self._trouble = f"/healthz did not answer: {error or type(error).__name__}"

    async def _probing(self) -> None:
        while True:
            await self._clock.sleep(PROBE_S)
            await self.probe()
