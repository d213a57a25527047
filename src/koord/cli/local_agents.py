"""This module runs the node agent on every simulated node of `koord up`: strategies, evictions and reports as
on real ones.
"""

from __future__ import annotations

from koord.cli.page import page_of
from koord.embedded.cluster import Context
from koord.embedded.kubelet.fleet import Fleet
from koord.embedded.kubelet.profile import Pool
from koord.koordlet.settings import default_gates
from koord.sim.agent import Settings
from koord.sim.agents import Agents
from koord.sim.serving import endpoint_of

NAME = "koordlet"
STEP_S = 5.0
# The agent's defaults, and what an operator adds who wants batch work gone before it hurts.
ALSO = frozenset({"BECPUEvict", "BEMemoryEvict"})


class LocalAgents:
    """LocalAgents is one component: agents start after the nodes that they run on, and stop before them."""

    def __init__(self, context: Context, pools: tuple[Pool, ...]) -> None:
        self.fleet = Fleet(context.client, context.informers, context.clock, context.seed, pools)
        settings = Settings(gates=default_gates() | ALSO, step_s=STEP_S)
        self.agents = Agents(context.client, context.informers, context.clock, self.fleet, settings)
        self._pages = context.pages
        self._endpoint = endpoint_of(self.agents, context.clock)

    async def start(self) -> None:
        await self.fleet.start()
        await self.agents.start()
        self._pages.add(NAME, page_of(self._endpoint))

    async def stop(self) -> None:
        self._pages.remove(NAME)
        await self.agents.stop()
        await self.fleet.stop()
