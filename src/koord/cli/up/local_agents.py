"""This module runs the node agent on every simulated node of `koord up`: strategies, evictions and reports as
on real ones.
"""

from __future__ import annotations

from koord.cli.up.local_program import proxy_page
from koord.embedded.cluster import ComponentContext
from koord.embedded.kubelet.fleet import SimulatedFleet
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.koordlet.feature_gates import default_gates
from koord.sim.agents.cluster_agents import SimulatedAgents
from koord.sim.agents.http import build_server
from koord.sim.agents.node_agent import SimulatedAgentSettings

KOORDLET_PAGE = "koordlet"
STEP_S = 5.0
# The agent's defaults, and what an operator adds who wants batch work gone before it hurts.
EXTRA_GATES = frozenset({"BECPUEvict", "BEMemoryEvict"})


class LocalAgents:
    """LocalAgents is one component: agents start after the nodes that they run on, and stop before them."""

    def __init__(self, context: ComponentContext, pools: tuple[SimulatedPool, ...]) -> None:
        self.fleet = SimulatedFleet(context.client, context.informers, context.clock, context.seed, pools)
        settings = SimulatedAgentSettings(gates=default_gates() | EXTRA_GATES, step_s=STEP_S)
        self.agents = SimulatedAgents(context.client, context.informers, context.clock, self.fleet, settings)
        self._pages = context.component_routes
        self._endpoint = build_server(self.agents, context.clock)

    async def start(self) -> None:
        await self.fleet.start()
        await self.agents.start()
        self._pages.add(KOORDLET_PAGE, proxy_page(self._endpoint))

    async def stop(self) -> None:
        self._pages.remove(KOORDLET_PAGE)
        await self.agents.stop()
        await self.fleet.stop()
