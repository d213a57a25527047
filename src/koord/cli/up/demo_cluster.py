"""This module is the cluster of `koord up --demo colocation`: the real programs on simulated machines, in
virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from koord.api.config import gates
from koord.api.koordinator.custom_kinds import CLUSTER_COLOCATION_PROFILES
from koord.api.kubernetes.builtin_kinds import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES
from koord.api.kubernetes.resource import Resource
from koord.cli.up import local_agents, local_scheduler
from koord.cli.up.local_manager import LocalManager
from koord.cli.up.local_program import proxy_page
from koord.embedded.cluster import ClusterSettings, ComponentContext, EmbeddedCluster
from koord.embedded.kubelet.fleet import FleetSettings, SimulatedFleet
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.transport.api_error import unwrap
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.reconcile_loop import ManagerSettings
from koord.sim import colocation_day
from koord.sim.agents.cluster_agents import SimulatedAgents
from koord.sim.agents.cluster_load import LoadObserver
from koord.sim.agents.http import build_server
from koord.sim.agents.node_agent import SimulatedAgentSettings as AgentSettings
from koord.sim.colocation_day import JobSubmitter
from koord.telemetry.clock import Clock

# Nodes that never fail need no heartbeat every ten seconds of a day that lasts minutes.
_SLOW_HEARTBEATS = FleetSettings(lease_period_s=30.0, status_period_s=3600.0, tick_s=5.0)
STEP_S = 30.0
JOB_INTERVAL_S = 20.0
MAX_WAITING_JOBS = 4
SERVICES_ONLY_S = 1800.0  # services alone, to see what they use
_KINDS: dict[str, Resource[Any]] = {
    "Namespace": NAMESPACES,
    "ClusterColocationProfile": CLUSTER_COLOCATION_PROFILES,
    "Deployment": DEPLOYMENTS,
}


class DemoCluster:
    """DemoCluster calls `on_round` after every step of all nodes, with all that can be shown up to date."""

    def __init__(self, clock: Clock, *, seed: int, nodes: int, on_round: Callable[[], None]) -> None:
        self._clock = clock
        self._seed = seed
        self._on_round = on_round
        self._nodes = nodes
        self._fleet: SimulatedFleet | None = None
        self._agents: SimulatedAgents | None = None
        self._submitter: JobSubmitter | None = None
        self.observation = LoadObserver(STEP_S)
        self._cluster = EmbeddedCluster(
            ClusterSettings(http=False, seed=seed),
            [
                ("workloads", lambda c: ControllerManager(c.client, c.informers, c.clock, c.seed)),
                ("nodes", self._make_fleet),
                (
                    "manager",
                    lambda c: LocalManager(c, ManagerSettings(gates=gates.default_feature_gates(MANAGER_GATES))),
                ),
                ("scheduler", local_scheduler.make_scheduler),
                ("agents", self._make_agents),
                ("jobs", self._make_jobs),
            ],
            clock=clock,
        )

    @property
    def agents(self) -> SimulatedAgents:
        assert self._agents is not None, "started"
        return self._agents

    @property
    def submitter(self) -> JobSubmitter:
        assert self._submitter is not None, "started"
        return self._submitter

    async def start(self) -> None:
        await self._cluster.start()
        client = self._cluster.client
        assert client is not None
        documents = {"data": colocation_day.slo_documents()}
        settings = ManagerSettings(gates={})
        unwrap(
            await client.patch(CONFIG_MAPS, settings.config_name, documents, settings.config_namespace, kind="merge")
        )
        for obj in colocation_day.objects(self._nodes):
            unwrap(await client.create(_KINDS[obj["kind"]], obj))

    async def stop(self) -> None:
        await self._cluster.stop()

    def _make_fleet(self, c: ComponentContext) -> SimulatedFleet:
        pools = (colocation_day.pool(self._nodes),)
        self._fleet = SimulatedFleet(
            c.client, c.informers, c.clock, c.seed, pools, _SLOW_HEARTBEATS, colocation_day.traces()
        )
        return self._fleet

    def _make_agents(self, c: ComponentContext) -> SimulatedAgents:
        assert self._fleet is not None
        settings = AgentSettings(gates=colocation_day.GATES, step_s=STEP_S, cold_start_s=1800.0)
        self._agents = SimulatedAgents(c.client, c.informers, c.clock, self._fleet, settings, on_round=self._observe)
        c.component_routes.add(local_agents.KOORDLET_PAGE, proxy_page(build_server(self._agents, c.clock)))
        return self._agents

    def _make_jobs(self, c: ComponentContext) -> JobSubmitter:
        self._submitter = JobSubmitter(
            c.client,
            c.informers,
            c.clock,
            Random(f"{self._seed} jobs"),
            colocation_day.job,
            namespace=colocation_day.JOB_NAMESPACE,
            every_s=JOB_INTERVAL_S * colocation_day.NODES / max(self._nodes, 1),
            backlog=MAX_WAITING_JOBS,
            after_s=SERVICES_ONLY_S,
        )
        return self._submitter

    def _observe(self) -> None:
        agents = self.agents
        facts = {name: agents.facts(name) for name in agents.agents}
        self.observation.observe(self._clock.time(), agents.agents, facts)
        self._on_round()
