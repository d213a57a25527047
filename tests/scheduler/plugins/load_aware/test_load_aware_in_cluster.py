"""LoadAwareScheduling in a running scheduler: reports come over the watch, time passes, and pods wake in time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from koord.api.config.component import PluginEntry as Named
from koord.api.config.component import PluginSet
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration, KubeSchedulerProfile, SchedulerPlugins
from koord.api.koordinator.custom_kinds import NODE_METRICS
from koord.kube.transport.api_error import unwrap
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.plugins.load_aware.plugin import LoadAwareScheduling
from koord.scheduler.plugins.registry import REGISTRY
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import FaultyCluster, faulty_cluster

HOT = "0/1 nodes are available: 1 node(s) cpu usage exceed threshold"
STALE = "0/1 nodes are available: 1 node(s) nodeMetric expired"


def run(story: Callable[[FaultyCluster], Any]) -> None:
    everywhere = SchedulerPlugins(multi_point=PluginSet(enabled=(Named(name=LoadAwareScheduling.name),)))
    config = KubeSchedulerConfiguration(
        profiles=(KubeSchedulerProfile(scheduler_name="default-scheduler", plugins=everywhere),)
    )
    made = CompletedConfig.complete(config, REGISTRY)
    assert isinstance(made, CompletedConfig), made

    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, made) as world:
            await world.add_node("n0")
            await story(world)
            await world.check()

    run_virtual(main)


async def report(world: FaultyCluster, cpu: str) -> None:
    """Report usage as a koordlet does: the object once, its status every minute."""
    await world.client.create(NODE_METRICS, {"metadata": {"name": "n0"}, "spec": {}})
    usage = {"resources": {"cpu": cpu, "memory": "1Gi"}}
    at = datetime.fromtimestamp(world.clock.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"status": {"updateTime": at, "nodeMetric": {"nodeUsage": usage}}}
    unwrap(await world.client.patch(NODE_METRICS, "n0", status, kind="merge", subresource="status"))


async def told(world: FaultyCluster, name: str) -> str:
    conditions = (await world.pod(name)).status.conditions
    words = next(c.message for c in conditions if c.type == "PodScheduled")
    return words.split(". ")[0]  # without what preemption has to say


def test_a_waiting_pod_is_bound_soon_after_load_falls() -> None:
    async def story(world: FaultyCluster) -> None:
        await report(world, "3500m")
        await world.clock.sleep(1)
        await world.add_pod("waiting")
        await world.clock.sleep(30)
        assert await told(world, "waiting") == HOT
        await report(world, "3400m")
        await world.clock.sleep(30)
        assert await world.node_of("waiting") == ""
        await report(world, "500m")
        await world.clock.sleep(2)
        assert await world.node_of("waiting") == "n0"

    run(story)


def test_a_silent_koordlet_is_a_reason_of_its_own_until_it_speaks_again() -> None:
    async def story(world: FaultyCluster) -> None:
        await report(world, "100m")
        await world.add_pod("early")
        await world.clock.sleep(181)
        assert await world.node_of("early") == "n0"
        await world.add_pod("late", cpu="100m")
        await world.clock.sleep(30)
        assert await told(world, "late") == STALE
        await report(world, "100m")
        await world.clock.sleep(2)
        assert await world.node_of("late") == "n0"

    run(story)


def test_pods_are_counted_before_any_report_shows_them() -> None:
    async def story(world: FaultyCluster) -> None:
        await report(world, "0")
        await world.clock.sleep(1)
        for i in range(4):
            await world.add_pod(f"p{i}", cpu="900m")  # estimated at 765m of 4 cores; the ceiling is 65 %
        await world.clock.sleep(30)
        placed = [name for i in range(4) if await world.node_of(name := f"p{i}")]
        assert len(placed) == 3
        await world.remove_pod(placed[0])
        await world.clock.sleep(11)
        assert all([await world.node_of(f"p{i}") for i in range(4) if f"p{i}" != placed[0]])

    run(story)


def test_what_is_held_equals_what_the_server_shows() -> None:
    async def story(world: FaultyCluster) -> None:
        await report(world, "100m")
        for i in range(3):
            await world.add_pod(f"p{i}", cpu="300m")
        await world.settle(10)
        await world.wire.break_watches()
        await world.remove_pod("p1")
        await report(world, "200m")
        await world.settle(60)
        (profile,) = world.scheduler.profiles.values()
        (plugin,) = (p for p in profile.plugins() if isinstance(p, LoadAwareScheduling))
        assert plugin.summary("n0")["nodeEstimated"]["cpu"] == "510m"
        assert plugin.summary("n0")["nodeDeltaPods"] == ["default/p0", "default/p2"]

    run(story)
