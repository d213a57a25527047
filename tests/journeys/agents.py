"""This module runs a co-locating cluster whose simulated nodes run the node agent's strategies on machines of
their own.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from koord.api.builtin import CORE_EVENTS, PODS
from koord.api.config import gates
from koord.api.config.gate_tables import MANAGER
from koord.cli import local_scheduler
from koord.cli.local_manager import LocalManager
from koord.embedded.cluster import Cluster, Context, Settings
from koord.embedded.kubelet.fleet import Fleet
from koord.embedded.kubelet.profile import Pool
from koord.embedded.workloads.workloads import Workloads
from koord.koordlet.contention.files import MAINLINE
from koord.koordlet.contention.moment import Fare
from koord.kube.refused import ok
from koord.manager.world import Settings as ManagerSettings
from koord.sim.agent import Agent
from koord.sim.agent import Settings as AgentSettings
from koord.sim.agents import Agents
from koord.telemetry.clock import LoopClock, run_virtual
from tests.journeys.colocation import Journey

BESTEFFORT = "kubepods/besteffort"


class NodeJourney(Journey, frozen=True):
    agents: Agents

    @property
    def agent(self) -> Agent:
        """Return the agent of the only node."""
        return next(iter(self.agents.agents.values()))

    def knob(self, group: str, name: str) -> str | None:
        return self.agent.machine.knob(group, name)

    async def group(self, name: str) -> str:
        """Return the cgroup of a pod."""
        found = await self.pod(name)
        assert found is not None, f"no pod {name}"
        pods = self.agents.facts(found.spec.node_name).pods
        return next(pod.group for pod in pods if pod.uid == found.metadata.uid)

    async def fare(self, name: str) -> Fare:
        """Return what the container of a pod got in the last step."""
        found = await self.pod(name)
        assert found is not None, f"no pod {name}"
        step = self.agents.agents[found.spec.node_name].last
        assert step is not None
        return next(fare for fare in step.moment.fares.values() if fare.pod == found.metadata.uid)

    async def use(self, name: str, **uses: object) -> None:
        """Set what the pod uses from now on."""
        text = json.dumps({"model": "constant", **uses})
        patch = {"metadata": {"annotations": {"sim.koord.sh/usage": text}}}
        ok(await self.client.patch(PODS, name, patch, "default", kind="merge"))

    async def create(self, *pods: dict[str, Any]) -> None:
        """Create pods and wait until they run."""
        for one in pods:
            ok(await self.client.create(PODS, one))
        await self.clock.sleep(10)

    async def said(self, name: str) -> list[tuple[str, str]]:
        """Return the reasons and notes of the events about a pod."""
        events = ok(await self.client.list(CORE_EVENTS, "default")).items
        return [(one.reason, one.message) for one in events if one.involved_object.name == name]


def travel(
    main: Callable[[NodeJourney], Awaitable[None]],
    *pools: Pool,
    switches: str,
    files: frozenset[str] = MAINLINE,
    step_s: float = 1.0,
    cold_start_s: float = 24 * 3600.0,
) -> None:
    """Run `main` on such a cluster; `switches` are the node agent's gates that are on."""
    settings = AgentSettings(
        gates=frozenset(switches.split(",")), step_s=step_s, files=files, cold_start_s=cold_start_s
    )

    async def run(clock: LoopClock) -> None:
        made: dict[str, Any] = {}

        def fleet(c: Context) -> Fleet:
            made["fleet"] = Fleet(c.client, c.informers, c.clock, c.seed, pools)
            return made["fleet"]  # type: ignore[no-any-return]

        def manager(c: Context) -> LocalManager:
            made["manager"] = LocalManager(c, ManagerSettings(gates=gates.defaults(MANAGER)))
            return made["manager"]  # type: ignore[no-any-return]

        def agents(c: Context) -> Agents:
            made["agents"] = Agents(c.client, c.informers, c.clock, made["fleet"], settings)
            return made["agents"]  # type: ignore[no-any-return]

        cluster = Cluster(
            Settings(http=False, seed=1),
            [
                ("workloads", lambda c: Workloads(c.client, c.informers, c.clock, c.seed)),
                ("nodes", fleet),
                ("manager", manager),
                ("scheduler", local_scheduler.make),
                ("agents", agents),
            ],
            clock=clock,
        )
        await cluster.start()
        assert cluster.client is not None
        try:
            await main(NodeJourney(clock, cluster.client, made["fleet"], made["manager"], made["agents"]))
        finally:
            await cluster.stop()

    run_virtual(run)
