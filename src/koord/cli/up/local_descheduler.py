"""This module is the descheduler of `koord up`: it carries out migrations; a configuration adds plugins that
propose them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from importlib.metadata import entry_points
from pathlib import Path

import yaml

from koord.api.config.descheduler import shipped
from koord.api.koordinator.protocol import DESCHEDULER_NAME
from koord.api.model import to_dict
from koord.cli.daemons.descheduler_config import read_descheduler_config
from koord.cli.up.proxy_page import proxy_page
from koord.descheduler.configuration import DeschedulerSetup, build_setup
from koord.descheduler.context import DeschedulerContext, DeschedulerMetrics
from koord.descheduler.explain import service
from koord.descheduler.plugins.registry import ENTRY_POINT_GROUP, load_registry
from koord.descheduler.program import Descheduler
from koord.embedded.cluster import ComponentContext
from koord.kube.events.recorder import EventRecorder
from koord.telemetry.component_server import ComponentServer
from koord.telemetry.metrics.registry import MetricRegistry

_LOG = logging.getLogger(__name__)


def descheduler_assembly(file: Path | None = None) -> DeschedulerSetup | str:
    """Assemble the descheduler from a file, taken as it is, or from the shipped configuration."""
    given = shipped.configuration()
    if file is not None:
        found = read_descheduler_config(str(file))
        if isinstance(found, list):
            return "; ".join(found)
        given = found
    made = build_setup(given, load_registry(entry_points(group=ENTRY_POINT_GROUP)))
    if isinstance(made, list):
        return "; ".join(f"{file}: {error}" if file is not None else str(error) for error in made)
    return made


class LocalDescheduler:
    """LocalDescheduler is the program in this process: always the leader, with its services below /koord of the
    API server.
    """

    def __init__(self, context: ComponentContext, assembly: DeschedulerSetup) -> None:
        self._informers = context.informers
        self._recorder = EventRecorder(
            context.client, context.clock, controller=DESCHEDULER_NAME, instance=f"{DESCHEDULER_NAME}-up"
        )
        registry = MetricRegistry()
        identity = uuid.UUID(int=random.Random(context.seed).getrandbits(128), version=4)
        world = DeschedulerContext(
            client=context.client,
            informers=context.informers,
            clock=context.clock,
            recorder=self._recorder,
            metrics=DeschedulerMetrics(registry),
            identity=str(identity),
        )
        self.descheduler = Descheduler(world, assembly)
        self._task: asyncio.Task[None] | None = None
        self._pages = context.component_routes
        self._endpoint = ComponentServer(context.clock)
        self._endpoint.metrics((registry,))
        shown = yaml.safe_load(yaml.safe_dump(to_dict(assembly.config)))
        self._endpoint.config(lambda: shown)
        service.serve_explanations(self._endpoint, self.descheduler, lambda: True)

    async def start(self) -> None:
        self._recorder.start()
        self._task = asyncio.create_task(self._lead(), name=DESCHEDULER_NAME)
        self._task.add_done_callback(_log_if_died)
        self._pages.add(DESCHEDULER_NAME, proxy_page(self._endpoint))

    async def stop(self) -> None:
        """Stop the descheduler; raise what it died of, if it did."""
        self._pages.remove(DESCHEDULER_NAME)
        died: BaseException | None = None
        if self._task is not None:
            self._task.cancel()
            (end,) = await asyncio.gather(self._task, return_exceptions=True)
            died = end if isinstance(end, Exception) else None
        await self._recorder.stop()
        if died is not None:
            raise died

    async def _lead(self) -> None:
        await self._informers.wait_for_cache_sync()
        await self.descheduler.lead()


def make_descheduler(context: ComponentContext, assembly: DeschedulerSetup | None = None) -> LocalDescheduler:
    if assembly is None:
        found = descheduler_assembly()
        if isinstance(found, str):
            raise ValueError(found)
        assembly = found
    return LocalDescheduler(context, assembly)


def _log_if_died(task: asyncio.Task[None]) -> None:
    """Log a failure at once and not only when somebody stops it: until then nothing would move and nobody would
    know why.
    """
    if not task.cancelled() and task.exception() is not None:
        _LOG.critical("koord-descheduler ended and moves nothing any more", exc_info=task.exception())
