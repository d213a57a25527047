"""This module is the node agents of a fleet once they run: strategies, evictions and reports as on real nodes.

It takes tenths of a second to load, so `local_agents` loads it when the cluster is ready.
"""

from __future__ import annotations

import logging
from importlib.metadata import entry_points

from koord.cli.up.local_program import proxy_page
from koord.embedded.apiserver.rest.discovery import ComponentHandler
from koord.embedded.cluster import ComponentContext
from koord.embedded.kubelet.fleet import SimulatedFleet
from koord.koordlet.plugin import KoordletPlugins, load_koordlet_plugins
from koord.sim.agents.cluster_agents import SimulatedAgents
from koord.sim.agents.hardware_reporter import SimulatedHardwareReporter
from koord.sim.agents.http import build_server
from koord.sim.agents.node_agent import SimulatedAgentSettings

STEP_S = 5.0

_LOG = logging.getLogger(__name__)


def load_installed_plugins() -> KoordletPlugins:
    """Load the plugins of installed packages, once for all nodes, and name those that are left out."""
    plugins, warnings = load_koordlet_plugins(lambda group: entry_points(group=group))
    for warning in warnings:
        _LOG.warning("koordlet: %s", warning)
    return plugins


class StartedAgents:
    """StartedAgents is the agents of all nodes of a fleet, from `start` to `stop`. `page` answers for them."""

    def __init__(
        self, context: ComponentContext, fleet: SimulatedFleet, gates: frozenset[str], plugins: KoordletPlugins
    ) -> None:
        settings = SimulatedAgentSettings(gates=gates, plugins=plugins, step_s=STEP_S)
        self.agents = SimulatedAgents(context.client, context.informers, context.clock, fleet, settings)
        self._hardware = SimulatedHardwareReporter(
            context.client, context.informers, context.clock, context.seed, fleet.hosts, self.agents.pods
        )
        self.agents.on_pods_changed = self._hardware.report_soon
        self.page: ComponentHandler = proxy_page(build_server(self.agents, context.clock))

    async def start(self) -> None:
        await self.agents.start()
        self._hardware.start()

    async def stop(self) -> None:
        await self._hardware.stop()
        await self.agents.stop()
