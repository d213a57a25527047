"""From a node that is too hot to pods that live elsewhere: a place is reserved first, and nobody is left without."""

from __future__ import annotations

from typing import Any

import msgspec

from koord.api.config import gates
from koord.api.config.component import PluginConfig
from koord.api.config.descheduler.plugin_args import API_VERSION
from koord.api.koordinator.custom_kinds import POD_MIGRATION_JOBS, RESERVATIONS
from koord.api.kubernetes.builtin_kinds import DEPLOYMENTS, NODES, POD_DISRUPTION_BUDGETS, PODS
from koord.api.kubernetes.pod import Pod
from koord.cli import scheduler_setup
from koord.cli.up import local_descheduler, local_scheduler
from koord.cli.up.local_manager import LocalManager
from koord.cli.up.local_program import LocalProgram
from koord.descheduler.configuration import DeschedulerSetup, build_setup, load_config
from koord.descheduler.framework.snapshot import is_available
from koord.descheduler.program import Descheduler
from koord.embedded.cluster import ClusterSettings, ComponentContext, EmbeddedCluster
from koord.embedded.kubelet.fleet import FleetSettings, SimulatedFleet
from koord.embedded.kubelet.node_profile import SimulatedPool, SystemDaemonUsage
from koord.embedded.workloads.controller_manager import ControllerManager
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.manager.feature_gates import MANAGER_GATES
from koord.manager.reconcile_loop import ManagerSettings
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.plugin_selection import without_unsupported_plugins
from koord.scheduler.plugins.registry import REGISTRY
from koord.telemetry.clock import LoopClock, run_virtual
from tests.journeys.colocation_cluster import REPORT_S, pod

POOL = SimulatedPool(name="n", count=3, cpu=16, memory="64Gi", system=SystemDaemonUsage(cpu=1, memory="2Gi"))


def assembled(**migration: Any) -> DeschedulerSetup:
    config = load_config(
        {
            "apiVersion": API_VERSION,
            "kind": "DeschedulerConfiguration",
            "deschedulingInterval": "10s",
            "profiles": [
                {
                    "name": "p",
                    "plugins": {"balance": {"enabled": [{"name": "LowNodeLoad"}]}},
                    "pluginConfig": [
                        {
                            "name": "LowNodeLoad",
                            "args": {
                                "lowThresholds": {"cpu": 45},
                                "highThresholds": {"cpu": 60},
                                "anomalyCondition": {"consecutiveAbnormalities": 2, "consecutiveNormalities": 1},
                            },
                        },
                        {"name": "MigrationController", "args": migration},
                    ],
                }
            ],
        }
    )
    assert not isinstance(config, list), config
    made = build_setup(config)
    assert isinstance(made, DeschedulerSetup), made
    return made


def without_load_thresholds() -> CompletedConfig:
    """Return what `koord up` runs, but for the thresholds of load: the pods shall crowd one node."""
    given = scheduler_setup.default_configuration()
    no_thresholds = PluginConfig(name="LoadAwareScheduling", args={"usageThresholds": {"cpu": 0, "memory": 0}})
    profiles = []
    for profile in given.profiles:
        args = (no_thresholds if one.name == no_thresholds.name else one for one in profile.plugin_config)
        profiles.append(msgspec.structs.replace(profile, plugin_config=tuple(args)))
    config, _ = without_unsupported_plugins(msgspec.structs.replace(given, profiles=tuple(profiles)), REGISTRY)
    made = CompletedConfig.complete(config, REGISTRY)
    assert isinstance(made, CompletedConfig), made
    return made


def deployment(name: str, replicas: int, cpu: str) -> dict[str, Any]:
    labels = {"app": name}
    template = pod("", {"cpu": cpu, "memory": "1Gi"}, uses={"cpu": cpu, "memory": "1Gi"}, labels=labels)
    template["metadata"].pop("name")
    template["metadata"].pop("namespace")
    template["spec"]["schedulerName"] = "koord-scheduler"
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


async def crowded(client: Client, clock: LoopClock) -> None:
    """Six pods on one node, as if the others had come later."""
    await clock.sleep(REPORT_S)
    for name in ("n-1", "n-2"):
        unwrap(await client.patch(NODES, name, {"spec": {"unschedulable": True}}, kind="merge"))
    unwrap(await client.create(DEPLOYMENTS, deployment("web", 6, "2")))
    await clock.sleep(30)
    assert [p.spec.node_name for p in await web(client)] == ["n-0"] * 6
    for name in ("n-1", "n-2"):
        unwrap(await client.patch(NODES, name, {"spec": {"unschedulable": False}}, kind="merge"))


async def web(client: Client) -> list[Pod]:
    return [p for p in unwrap(await client.list(PODS, "default")).items if p.metadata.deletion_timestamp is None]


def travel(story: Any, **migration: Any) -> None:
    switched = gates.parse_feature_gates("", MANAGER_GATES)
    assert isinstance(switched, dict)

    async def run(clock: LoopClock) -> None:
        made: dict[str, LocalProgram[Descheduler]] = {}

        def descheduler(c: ComponentContext) -> LocalProgram[Descheduler]:
            made["it"] = local_descheduler.make_descheduler(c, assembled(**migration))
            return made["it"]

        cluster = EmbeddedCluster(
            ClusterSettings(http=False, seed=1),
            [
                ("workloads", lambda c: ControllerManager(c.client, c.informers, c.clock, c.seed)),
                (
                    "nodes",
                    lambda c: SimulatedFleet(
                        c.client, c.informers, c.clock, c.seed, (POOL,), FleetSettings(reports_node_metrics=True)
                    ),
                ),
                ("manager", lambda c: LocalManager(c, ManagerSettings(gates=switched))),
                ("scheduler", lambda c: local_scheduler.make_scheduler(c, without_load_thresholds())),
                ("descheduler", descheduler),
            ],
            clock=clock,
        )
        await cluster.start()
        assert cluster.client is not None
        try:
            await crowded(cluster.client, clock)
            await story(cluster.client, clock, made["it"])
        finally:
            await cluster.stop()

    run_virtual(run)


def test_pods_move_from_the_hot_node_into_places_that_were_held_for_them() -> None:
    async def story(client: Client, clock: LoopClock, it: LocalProgram[Descheduler]) -> None:
        least = 6
        for _ in range(240):
            await clock.sleep(2)
            least = min(least, sum(1 for p in await web(client) if is_available(p)))
        jobs = unwrap(await client.list(POD_MIGRATION_JOBS)).items
        assert jobs
        assert {(j.status.phase, j.status.status) for j in jobs} == {("Succeeded", "Complete")}
        for job in jobs:
            assert job.status.message.startswith('Bind Pod "default/web-')
            assert job.metadata.annotations["koordinator.sh/evict-trigger"] == "LowNodeLoad"
            assert "node cpu usage(" in job.metadata.annotations["koordinator.sh/evict-reason"]
        pods = await web(client)
        assert len(pods) == 6
        on_hot = [p for p in pods if p.spec.node_name == "n-0"]
        assert 1 + 2 * len(on_hot) <= 0.6 * 16  # below the threshold with what the system uses, and no further
        assert len(on_hot) == 4
        assert least >= 5, "one replacement at a time of a workload of six was away"
        moved = {j.status.pod_ref.uid for j in jobs if j.status.pod_ref is not None}
        assert moved == {p.metadata.uid for p in pods if p.spec.node_name != "n-0"}
        assert {r.status.phase for r in unwrap(await client.list(RESERVATIONS)).items} <= {"Succeeded"}

    travel(story)


def test_with_a_budget_that_is_never_met_every_job_gives_its_place_back_in_time() -> None:
    async def story(client: Client, clock: LoopClock, it: LocalProgram[Descheduler]) -> None:
        budget = {
            "metadata": {"name": "all", "namespace": "default"},
            "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "web"}}},
        }
        unwrap(await client.create(POD_DISRUPTION_BUDGETS, budget))
        before = {p.metadata.uid for p in await web(client)}
        await clock.sleep(400)
        assert {p.metadata.uid for p in await web(client)} == before
        late = [j for j in unwrap(await client.list(POD_MIGRATION_JOBS)).items if j.status.phase == "Failed"]
        assert late
        assert {j.status.reason for j in late} == {"Timeout"}
        held = {r.metadata.name for r in unwrap(await client.list(RESERVATIONS)).items}
        assert not held & {j.metadata.uid for j in late}

    travel(story, defaultJobTTL="2m")


def test_an_evictor_that_runs_dry_says_whom_and_touches_nobody() -> None:
    async def story(client: Client, clock: LoopClock, it: LocalProgram[Descheduler]) -> None:
        before = {p.metadata.uid for p in await web(client)}
        proposed = 0
        for _ in range(30):
            await clock.sleep(10)
            assert it.program.last_outcome is not None
            proposed += len(it.program.last_outcome.effects)
        assert proposed
        assert {p.metadata.uid for p in await web(client)} == before
        assert not unwrap(await client.list(POD_MIGRATION_JOBS)).items

    travel(story, dryRun=True)
