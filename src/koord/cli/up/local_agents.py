"""This module gives every simulated node of `koord up` its node agent. Agents start when the cluster is ready, as their
modules take tenths of a second to load and nobody has to wait for them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from koord.api.kubernetes.builtin_kinds import NODES
from koord.embedded.cluster import ComponentContext
from koord.embedded.kubelet.fleet import SimulatedFleet
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.kube.transport.interface import ApiRequest, ApiResponse

if TYPE_CHECKING:
    from koord.cli.up.started_agents import StartedAgents
    from koord.koordlet.plugin import KoordletPlugins

KOORDLET_PAGE = "koordlet"

_LOG = logging.getLogger(__name__)


class LocalAgents:
    """LocalAgents is one component: nodes at once, and agents that follow. Who asks an agent before waits for it."""

    def __init__(self, context: ComponentContext, pools: tuple[SimulatedPool, ...], gates: frozenset[str]) -> None:
        """Make the nodes. `gates` are the feature gates of koordlet that are on."""
        self._context = context
        self._gates = gates
        self.fleet = SimulatedFleet(context.client, context.informers, context.clock, context.seed, pools)
        self._starting: asyncio.Task[StartedAgents] | None = None

    async def start(self) -> None:
        await self.fleet.start()
        self._starting = asyncio.create_task(self._start_agents(), name="start-agents")
        self._starting.add_done_callback(_log_if_failed)
        self._context.component_routes.add(KOORDLET_PAGE, self._answer)

    async def stop(self) -> None:
        self._context.component_routes.remove(KOORDLET_PAGE)
        if self._starting is not None:
            self._starting.cancel()  # nothing, where it is done
            (started,) = await asyncio.gather(self._starting, return_exceptions=True)
            if not isinstance(started, BaseException):
                await started.stop()
        await self.fleet.stop()

    async def _start_agents(self) -> StartedAgents:
        context = self._context
        await context.informers.for_resource(NODES).wait_for_sync()
        make, plugins = await asyncio.to_thread(_load)
        made = make(context, self.fleet, self._gates, plugins)
        await made.start()
        return made

    async def _answer(self, request: ApiRequest, path: str) -> ApiResponse:
        assert self._starting is not None, "the page is there from the start on"
        started = await asyncio.shield(self._starting)
        return await started.page(request, path)


def _load() -> tuple[type[StartedAgents], KoordletPlugins]:
    from koord.cli.up.started_agents import StartedAgents, load_installed_plugins

    return StartedAgents, load_installed_plugins()


def _log_if_failed(task: asyncio.Task[StartedAgents]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.critical("the agents of simulated nodes did not start", exc_info=error)
