"""This module runs a co-locating cluster whose simulated nodes run the node agent's strategies on machines of
their own.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from koord.api.config import gates
from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, PODS
from koord.cli.up import local_scheduler
from koord.cli.up.local_manager import LocalManager
from koord.embedded.cluster import ClusterSettings, ComponentContext, EmbeddedCluster
from koord.embedded.kubelet.fleet import SimulatedFleet
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.transport.api_error import unwrap
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.reconcile_loop import ManagerSettings
from koord.sim.agents.cluster_agents import SimulatedAgents
from koord.sim.agents.node_agent import SimulatedAgent
from koord.sim.agents.node_agent import SimulatedAgentSettings as AgentSettings
from koord.sim.machine.simulated_machine import ContainerOutcome
from koord.telemetry.clock import LoopClock, run_virtual
from tests.journeys.colocation_cluster import ColocationCluster

BESTEFFORT = "kubepods/besteffort"


class NodeAgentCluster(ColocationCluster, frozen=True):
    agents: SimulatedAgents

    @property
    def agent(self) -> SimulatedAgent:
        """Return the agent of the only node."""
        return next(iter(self.agents.agents.values()))

    def knob(self, group: str, name: str) -> str | None:
        return self.agent.machine.read_knob(group, name)

    async def group(self, name: str) -> str:
        """Return the cgroup of a pod."""
        found = await self.pod(name)
        assert found is not None, f"no pod {name}"
        pods = self.agents.facts(found.spec.node_name).pods
        return next(pod.group for pod in pods if pod.uid == found.metadata.uid)

    async def container_step_result(self, name: str) -> ContainerOutcome:
        """Return what the container of a pod got in the last step."""
        found = await self.pod(name)
        assert found is not None, f"no pod {name}"
        step = self.agents.agents[found.spec.node_name].last_step
        assert step is not None
        return next(fare for fare in step.moment.outcomes.values() if fare.pod == found.metadata.uid)

    async def set_usage(self, name: str, **uses: object) -> None:
        """Set what the pod uses from now on."""
        text = json.dumps({"model": "constant", **uses})
        patch = {"metadata": {"annotations": {"sim.koord.sh/usage": text}}}
        unwrap(await self.client.patch(PODS, name, patch, "default", kind="merge"))

    async def create_and_wait(self, *pods: dict[str, Any]) -> None:
        """Create pods and wait until they run."""
        for one in pods:
            unwrap(await self.client.create(PODS, one))
        await self.clock.sleep(10)

    async def events_about(self, name: str) -> list[tuple[str, str]]:
        """Return the reasons and notes of the events about a pod."""
        events = unwrap(await self.client.list(CORE_EVENTS, "default")).items
        return [(one.reason, one.message) for one in events if one.involved_object.name == name]


def run_on_node_agent_cluster(
    main: Callable[[NodeAgentCluster], Awaitable[None]],
    *pools: SimulatedPool,
    switches: str,
    step_s: float = 1.0,
    cold_start_s: float = 24 * 3600.0,
) -> None:
    """Run `main` on such a cluster; `switches` are the node agent's gates that are on."""
    settings = AgentSettings(gates=frozenset(switches.split(",")), step_s=step_s, cold_start_s=cold_start_s)

    async def run(clock: LoopClock) -> None:
        made: dict[str, Any] = {}

        def fleet(c: ComponentContext) -> SimulatedFleet:
            made["fleet"] = SimulatedFleet(c.client, c.informers, c.clock, c.seed, pools)
            return made["fleet"]  # type: ignore[no-any-return]

        def manager(c: ComponentContext) -> LocalManager:
            made["manager"] = LocalManager(c, ManagerSettings(gates=gates.default_feature_gates(MANAGER_GATES)))
            return made["manager"]  # type: ignore[no-any-return]

        def agents(c: ComponentContext) -> SimulatedAgents:
            made["agents"] = SimulatedAgents(c.client, c.informers, c.clock, made["fleet"], settings)
            return made["agents"]  # type: ignore[no-any-return]

        cluster = EmbeddedCluster(
            ClusterSettings(http=False, seed=1),
            [
                ("workloads", lambda c: ControllerManager(c.client, c.informers, c.clock, c.seed)),
                ("nodes", fleet),
                ("manager", manager),
                ("scheduler", local_scheduler.make_scheduler),
                ("agents", agents),
            ],
            clock=clock,
        )
        await cluster.start()
        assert cluster.client is not None
        try:
            await main(NodeAgentCluster(clock, cluster.client, made["fleet"], made["manager"], made["agents"]))
        finally:
            await cluster.stop()

    run_virtual(run)
