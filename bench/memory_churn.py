"""Memory over a virtual day in which pods are created, scheduled and deleted.

One process holds an API server, simulated nodes and the program; the server is part of what is measured, so that what
grows there is seen too. Three things are bounded by a number that a day does not reach, and are filled first: the
parsed paths of the API server, by asking for as many names, and the scheduler's log of attempts and its cache of
events, by scheduling as many pods.
koordlet runs on a fake node whose pods come and go; its windows of samples and models of pods, half an hour at most,
fill in two hours that are not counted.
"""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any

from bench.memory_reading import growth, rss_mb
from koord.api.config import gates
from koord.api.kubernetes.builtin_kinds import NAMESPACES, PODS
from koord.cli.up import local_descheduler, local_scheduler
from koord.cli.up.local_manager import LocalManager
from koord.cli.up.local_program import LocalProgram
from koord.embedded.apiserver.rest.request_context import parse_resource_path
from koord.embedded.cluster import ClusterSettings, ComponentContext, ComponentFactory, EmbeddedCluster
from koord.embedded.kubelet.fleet import FleetSettings, SimulatedFleet
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.koordlet.collect.collector import CollectSettings
from koord.koordlet.reporters.interference_reporter import InterferenceReporterSettings
from koord.koordlet.strategies.strategy import StrategySettings
from koord.kube.client.typed_client import Client
from koord.kube.events.correlator import MAX_CACHED_EVENTS
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.reconcile_loop import ManagerSettings
from koord.scheduler.framework.attempt import MAX_ATTEMPT_LOG_BYTES
from koord.scheduler.scheduler import Scheduler
from koord.telemetry.clock import LoopClock, run_virtual
from tests.koordlet.agent_fixture import GI, AgentFixture, expect_ok, in_virtual_time

NODES = 20
HOURS = 24
PODS_PER_HOUR = 120
PODS_AT_ONCE = 120
FILL_PAUSE_S = 1.0  # between two pods of those that fill the log
AGENT_PODS, AGENT_STEP_S, AGENT_FILL_HOURS = 12, 60.0, 2
AGENT_ORDER = {
    "resourceUsedThresholdWithBE": {"enable": True, "cpuSuppressPolicy": "cpuset"},
    "cpuBurstStrategy": {"policy": "auto"},
    "resourceQOSStrategy": {"beClass": {"cpuQOS": {"enable": True, "groupIdentity": -1}}},
}


def pod(name: str) -> dict[str, Any]:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}}
    spec = {"schedulerName": "koord-scheduler", "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def fill_parsed_paths(client: Client) -> dict[str, int]:
    """Ask for as many objects as the server keeps parsed paths of."""
    most = parse_resource_path.cache_info().maxsize
    assert most is not None
    for number in range(most):
        await client.get(PODS, f"absent-{number}", "default")
    return {"entries": parse_resource_path.cache_info().currsize, "most_entries": most}


# koord-scheduler, koord-manager and koord-descheduler -----------------------------------------------------------------


class ChurningCluster:
    def __init__(self, program: str, clock: LoopClock) -> None:
        self._clock = clock
        self._scheduler: LocalProgram[Scheduler] | None = None
        self._created = 0
        parts: dict[str, tuple[tuple[str, ComponentFactory], ...]] = {
            "API server and nodes": (),
            "koord-scheduler": (("scheduler", self._make_scheduler),),
            "koord-manager": (("manager", _make_manager), ("scheduler", self._make_scheduler)),
            "koord-descheduler": (
                ("scheduler", self._make_scheduler),
                ("descheduler", local_descheduler.make_descheduler),
            ),
        }
        pool = SimulatedPool(name="node", count=NODES, cpu=32, memory="128Gi")
        fleet = FleetSettings(reports_node_metrics=True)
        self.cluster = EmbeddedCluster(
            ClusterSettings(http=False, seed=1),
            [
                ("workloads", lambda c: ControllerManager(c.client, c.informers, c.clock, c.seed)),
                ("nodes", lambda c: SimulatedFleet(c.client, c.informers, c.clock, c.seed, (pool,), fleet)),
                *parts[program],
            ],
            clock=clock,
        )

    def _make_scheduler(self, context: ComponentContext) -> LocalProgram[Scheduler]:
        self._scheduler = local_scheduler.make_scheduler(context)
        return self._scheduler

    @property
    def client(self) -> Client:
        assert self.cluster.client is not None
        return self.cluster.client

    async def replace_pods(self, count: int, pause_s: float) -> None:
        """Create pods one by one, and delete as many once there are enough."""
        for number in range(self._created, self._created + count):
            await self.client.create(PODS, pod(f"p{number}"))
            if number >= PODS_AT_ONCE:
                await self.client.delete(PODS, f"p{number - PODS_AT_ONCE}", "default", grace_seconds=0)
            await self._clock.sleep(pause_s)
        self._created += count

    async def fill(self) -> dict[str, Any]:
        filled: dict[str, Any] = {"parsed_paths": await fill_parsed_paths(self.client)}
        if self._scheduler is None:
            return filled
        log = self._scheduler.program.attempt_log
        before = -1
        # A full log forgets as many attempts as are added.
        while len(log) > before or self._created < MAX_CACHED_EVENTS:
            before = len(log)
            await self.replace_pods(PODS_AT_ONCE, FILL_PAUSE_S)
        filled["attempt_log"] = {"attempts": len(log), "most_bytes": MAX_ATTEMPT_LOG_BYTES}
        filled["cached_events"] = {"pods": self._created, "most_entries": MAX_CACHED_EVENTS}
        return filled


def _make_manager(context: ComponentContext) -> LocalManager:
    return LocalManager(context, ManagerSettings(gates=gates.default_feature_gates(MANAGER_GATES)))


def _cluster_churn(program: str, hours: int) -> dict[str, Any]:
    values: list[float] = []
    filled: dict[str, Any] = {}

    async def main(clock: LoopClock) -> None:
        churning = ChurningCluster(program, clock)
        await churning.cluster.start()
        await churning.client.create(NAMESPACES, {"metadata": {"name": "koordinator-system"}})
        filled.update(await churning.fill())
        for _ in range(hours):
            await churning.replace_pods(PODS_PER_HOUR, 3600 / PODS_PER_HOUR)
            gc.collect()
            values.append(rss_mb())
        await churning.cluster.stop()

    run_virtual(main)
    return growth(values) | {"pods_per_hour": PODS_PER_HOUR, "filled": filled}


# koordlet -------------------------------------------------------------------------------------------------------------


def _agent_churn(hours: int) -> dict[str, Any]:
    values: list[float] = []
    filled: dict[str, Any] = {}
    pods_per_hour = round(3600 / AGENT_STEP_S)

    async def story(world: AgentFixture) -> None:
        world.beat_s = AGENT_STEP_S
        await world.furnish()
        await world.order(AGENT_ORDER)
        filled["parsed_paths"] = await fill_parsed_paths(world.client)
        agent = world.agent(
            frozenset({"CgroupReconcile"}),
            collect=CollectSettings(interval_s=AGENT_STEP_S, psi_s=AGENT_STEP_S, psi=True),
            strategies=StrategySettings(collect_interval_s=AGENT_STEP_S),
            interference=InterferenceReporterSettings(every_s=AGENT_STEP_S),
        )
        await agent.start()
        groups: dict[str, str] = {}
        for number in range((AGENT_FILL_HOURS + hours) * pods_per_hour):
            old = f"p{number - AGENT_PODS}"
            if old in groups:
                world.machine.remove(groups.pop(old))
                await expect_ok(world.client.delete(PODS, old, "default", grace_seconds=0))
            name = f"p{number}"
            groups[name] = await world.run_pod(name, "BE" if number % 2 else "LS", memory_bytes=GI // 8)
            await world.clock.sleep(AGENT_STEP_S)
            world.kernel.writes.clear()  # the fake kernel's own record of every write
            hour, rest = divmod(number + 1, pods_per_hour)
            if rest:
                continue
            gc.collect()
            if hour == AGENT_FILL_HOURS:
                filled["samples"] = {"series": len(agent.store), "bytes": agent.store.size_bytes}
            elif hour > AGENT_FILL_HOURS:
                values.append(rss_mb())
        await agent.stop()

    with tempfile.TemporaryDirectory() as folder:
        in_virtual_time(Path(folder), story)
    return growth(values) | {"pods_per_hour": pods_per_hour, "filled": filled}


KOORDLET = "koordlet"
PROGRAMS = ("API server and nodes", "koord-scheduler", "koord-manager", "koord-descheduler", KOORDLET)


def churn(program: str, hours: int = HOURS) -> dict[str, Any]:
    return _agent_churn(hours) if program == KOORDLET else _cluster_churn(program, hours)
