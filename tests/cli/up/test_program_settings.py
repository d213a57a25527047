"""The programs of `koord up` take their feature gates, tell their metrics and configuration, and start in silence."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from koord.cli.scheduler_setup import scheduler_assembly
from koord.cli.up.components import (
    AGENTS_UP_TO,
    FEATURE_GATES,
    choose_components,
    shipped_profiles,
    simulated_pools,
)
from koord.embedded.cluster import ClusterSettings, EmbeddedCluster
from koord.embedded.kubelet.node_profile import InvalidProfile
from koord.kube.client.typed_client import Client
from koord.kube.transport.interface import ApiRequest
from koord.telemetry.clock import LoopClock, run_virtual

Story = Callable[[EmbeddedCluster, Client, LoopClock], Awaitable[None]]


def on_cluster(story: Story, settings: Mapping[str, str] = MappingProxyType({}), *, nodes: int = 2) -> None:
    async def main(clock: LoopClock) -> None:
        made = choose_components("all", nodes=nodes, profile=None, settings=settings)
        assert not isinstance(made, str), made
        cluster = EmbeddedCluster(ClusterSettings(http=False, seed=1), made, clock=clock)
        await cluster.start()
        assert cluster.client is not None
        try:
            await clock.sleep(30)
            await story(cluster, cluster.client, clock)
        finally:
            await cluster.stop()

    run_virtual(main)


@pytest.mark.parametrize("program", sorted(FEATURE_GATES))
def test_each_program_refuses_a_gate_that_it_does_not_have(program: str) -> None:
    settings = {f"{program}.feature-gates": "NoSuchGate=true", "nodes.agents": "true"}
    said = choose_components("all", nodes=1, profile=None, settings=settings)
    assert isinstance(said, str)
    assert f"--set {program}.feature-gates: NoSuchGate is not a known feature gate" in said


def test_gates_of_agents_that_do_not_run_are_refused() -> None:
    gates = {"koordlet.feature-gates": "CPUBurst=false"}
    for nodes, settings in ((1, {"nodes.agents": "false"}), (AGENTS_UP_TO + 1, {})):
        said = choose_components("all", nodes=nodes, profile=None, settings=gates | settings)
        assert isinstance(said, str)
        assert "nodes.agents=true" in said
    assert not isinstance(choose_components("all", nodes=AGENTS_UP_TO, profile=None, settings=gates), str)


def test_the_scheduler_runs_with_the_defaults_of_its_gates_and_with_those_that_are_set() -> None:
    by_default = scheduler_assembly()
    assert not isinstance(by_default, str)
    gates = FEATURE_GATES["scheduler"].known
    assert by_default.gates == {name: gate.default for name, gate in gates.items()}


def test_gates_reach_the_running_programs() -> None:
    found: dict[str, bool] = {}

    async def story(cluster: EmbeddedCluster, client: Client, clock: LoopClock) -> None:
        parts = dict(cluster._running)
        scheduler, descheduler = parts["scheduler"].program, parts["descheduler"].program  # type: ignore[attr-defined]
        found["scheduler"] = scheduler.completed_config.gates["DisableDefaultQuota"]
        found["descheduler"] = "DisablePVCReservation" in descheduler._context.gates
        agents = await parts["nodes"]._starting  # type: ignore[attr-defined]
        found["koordlet"] = "CPUBurst" in agents.agents._settings.gates
        found["manager"] = parts["manager"].manager.context.settings.gates["EnableSyncGPUSharedResource"]  # type: ignore[attr-defined]

    on_cluster(
        story,
        {
            "nodes.agents": "true",
            "scheduler.feature-gates": "DisableDefaultQuota=true",
            "descheduler.feature-gates": "DisablePVCReservation=true",
            "koordlet.feature-gates": "CPUBurst=false",
            "manager.feature-gates": "EnableSyncGPUSharedResource=false",
        },
    )
    assert found == {"scheduler": True, "descheduler": True, "koordlet": False, "manager": False}


@pytest.mark.parametrize(
    ("program", "metric"),
    [
        ("koord-scheduler", "scheduler_pending_pods"),
        ("koord-manager", "koord_manager"),
        ("koord-descheduler", "descheduler"),
    ],
)
def test_the_metrics_of_a_program_are_at_its_page(program: str, metric: str) -> None:
    async def story(cluster: EmbeddedCluster, client: Client, clock: LoopClock) -> None:
        answer = await client.raw(ApiRequest(method="GET", path=f"/koord/{program}/metrics"))
        assert answer.ok
        assert metric in answer.body.raw().decode()

    on_cluster(story)


def test_nothing_is_warned_of_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    async def story(cluster: EmbeddedCluster, client: Client, clock: LoopClock) -> None:
        assert [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING] == []

    on_cluster(story)
    on_cluster(story, nodes=1)
    on_cluster(story, {"nodes.agents": "true"})


def test_every_shipped_profile_says_what_it_is_for_and_is_valid() -> None:
    found = shipped_profiles()
    assert set(found) == {"numa", "gpu", "big-little", "thousand"}
    assert all(text.endswith(".") for text in found.values())
    sizes = {}
    for name in found:
        pools = simulated_pools(3, Path(name))
        assert not isinstance(pools, InvalidProfile), pools.errors
        sizes[name] = sum(pool.count for pool in pools)
    assert sizes == {"numa": 4, "gpu": 4, "big-little": 8, "thousand": 1000}


def test_an_unknown_profile_is_refused_with_the_names() -> None:
    said = choose_components("all", nodes=3, profile=Path("huge"), settings={})
    assert said == (
        "--profile huge: no such file, and no shipped profile of that name; there are big-little, gpu, numa, thousand"
    )
