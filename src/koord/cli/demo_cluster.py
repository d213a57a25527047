"""This module is the cluster of `koord up --demo colocation`: the real programs on simulated machines, in
virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from koord.api.builtin import CONFIG_MAPS, DEPLOYMENTS, NAMESPACES
from koord.api.config import gates
from koord.api.config.gate_tables import MANAGER
from koord.api.custom import CLUSTER_COLOCATION_PROFILES
from koord.api.resource import Resource
from koord.cli import local_agents, local_scheduler
from koord.cli.local_manager import LocalManager
from koord.cli.page import page_of
from koord.embedded.cluster import Cluster, Context, Settings
from koord.embedded.kubelet.fleet import Fleet
from koord.embedded.kubelet.fleet import Settings as FleetSettings
from koord.embedded.workloads.workloads import Workloads
from koord.kube.refused import ok
from koord.manager.world import Settings as ManagerSettings
from koord.sim import colocation
from koord.sim.agent import Settings as AgentSettings
from koord.sim.agents import Agents
from koord.sim.observation import Observation
from koord.sim.serving import endpoint_of
from koord.sim.submitter import Submitter
from koord.telemetry.clock import Clock

# Nodes that never fail need no heartbeat every ten seconds of a day that lasts minutes.
_CALM = FleetSettings(lease_period_s=30.0, status_period_s=3600.0, tick_s=5.0)
STEP_S = 30.0
JOB_EVERY_S = 20.0
BACKLOG = 4
CALM_S = 1800.0  # services alone, to see what they use
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
        self._fleet: Fleet | None = None
        self._agents: Agents | None = None
        self._submitter: Submitter | None = None
        self.observation = Observation(STEP_S)
        self._cluster = Cluster(
            Settings(http=False, seed=seed),
            [
                ("workloads", lambda c: Workloads(c.client, c.informers, c.clock, c.seed)),
                ("nodes", self._make_fleet),
                ("manager", lambda c: LocalManager(c, ManagerSettings(gates=gates.defaults(MANAGER)))),
                ("scheduler", local_scheduler.make),
                ("agents", self._make_agents),
                ("jobs", self._make_jobs),
            ],
            clock=clock,
        )

    @property
    def agents(self) -> Agents:
        assert self._agents is not None, "started"
        return self._agents

    @property
    def submitter(self) -> Submitter:
        assert self._submitter is not None, "started"
        return self._submitter

    async def start(self) -> None:
        await self._cluster.start()
        client = self._cluster.client
        assert client is not None
        documents = {"data": colocation.slo_documents()}
        settings = ManagerSettings(gates={})
        ok(await client.patch(CONFIG_MAPS, settings.config_name, documents, settings.config_namespace, kind="merge"))
        for obj in colocation.objects(self._nodes):
            ok(await client.create(_KINDS[obj["kind"]], obj))

    async def stop(self) -> None:
        await self._cluster.stop()

    def _make_fleet(self, c: Context) -> Fleet:
        pools = (colocation.pool(self._nodes),)
        self._fleet = Fleet(c.client, c.informers, c.clock, c.seed, pools, _CALM, colocation.traces())
        return self._fleet

    def _make_agents(self, c: Context) -> Agents:
        assert self._fleet is not None
        settings = AgentSettings(gates=colocation.GATES, step_s=STEP_S, cold_start_s=1800.0)
        self._agents = Agents(c.client, c.informers, c.clock, self._fleet, settings, on_round=self._look)
        c.pages.add(local_agents.NAME, page_of(endpoint_of(self._agents, c.clock)))
        return self._agents

    def _make_jobs(self, c: Context) -> Submitter:
        self._submitter = Submitter(
            c.client,
            c.informers,
            c.clock,
            Random(f"{self._seed} jobs"),
            colocation.job,
            namespace=colocation.JOBS,
            every_s=JOB_EVERY_S * colocation.NODES / max(self._nodes, 1),
            backlog=BACKLOG,
            after_s=CALM_S,
        )
        return self._submitter

    def _look(self) -> None:
        agents = self.agents
        facts = {name: agents.facts(name) for name in agents.agents}
        self.observation.look(self._clock.time(), agents.agents, facts)
        self._on_round()
