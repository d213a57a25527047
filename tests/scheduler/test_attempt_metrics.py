"""A running scheduler's attempts appear in its metrics and its monitor, whatever becomes of each."""

from __future__ import annotations

import asyncio

import pytest

from koord.api.config.component import PluginEntry as Named
from koord.api.config.component import PluginSet
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration, KubeSchedulerProfile, SchedulerPlugins
from koord.kube.transport.interface import ApiRequest
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import Wait
from koord.scheduler.plugins.registry import REGISTRY
from koord.scheduler.scheduler_monitor import SchedulerMonitor, SchedulingTimeout
from koord.scheduler.scheduler_monitor import SchedulerMonitorSettings as MonitorSettings
from koord.telemetry import metrics
from koord.telemetry.clock import LoopClock, run_virtual
from koord.telemetry.metrics import MetricRegistry
from tests.scheduler.faulty_cluster import RequestFate, faulty_cluster

PROFILE = "default-scheduler"


def attempts(registry: MetricRegistry) -> dict[str, float]:
    found = {}
    for line in metrics.render([registry]).decode().splitlines():
        if line.startswith("scheduler_schedule_attempts_total{"):
            found[line.partition('result="')[2].partition('"')[0]] = float(line.rpartition(" ")[2])
    return found


def value(registry: MetricRegistry, name: str) -> float:
    lines = metrics.render([registry]).decode().splitlines()
    return float(next(line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == name))


def test_every_attempt_counts_once_under_its_result() -> None:
    async def main(clock: LoopClock) -> None:
        registry = MetricRegistry()
        async with faulty_cluster(clock, registry=registry) as world:
            refusals = 2

            def fail(request: ApiRequest) -> RequestFate:
                nonlocal refusals
                if request.path.endswith("/bad/binding") and refusals:
                    refusals -= 1
                    return "409"
                return "well"

            world.wire.fate = fail
            await world.add_node("n0", cpu="2")
            await world.add_pod("good")
            await world.add_pod("bad")
            await world.settle(30)
            await world.add_pod("huge", cpu="100")
            await world.settle(1)
            assert attempts(registry) == {"scheduled": 2, "error": 2, "unschedulable": 1}
            assert value(registry, "scheduler_scheduling_algorithm_duration_seconds_count") == 5
            assert value(registry, "scheduler_pod_scheduling_attempts_sum") == 4
            assert value(registry, "scheduler_pod_scheduling_feasible_nodes_sum") == 4
            assert value(registry, "scheduler_pod_scheduling_evaluated_nodes_count") == 4
            assert value(registry, "scheduler_preemption_attempts_total") == 1
            assert value(registry, "scheduler_preemption_victims_count") == 0

    run_virtual(main)


def test_the_points_of_a_sampled_attempt_are_timed() -> None:
    async def main(clock: LoopClock) -> None:
        registry = MetricRegistry()
        async with faulty_cluster(clock, registry=registry) as world:
            await world.add_node("n0", cpu="2")
            await world.add_pod("p")
            await world.settle(1)
            lines = metrics.render([registry]).decode().splitlines()
            name = "scheduler_framework_extension_point_duration_seconds_count"
            points = {line.partition('extension_point="')[2].partition('"')[0] for line in lines if name in line}
            assert points >= {"BeforePreFilter", "PreFilter", "AfterPreFilter", "Filter", "Score", "Reserve", "Permit"}

    run_virtual(main)


def test_victims_are_counted() -> None:
    async def main(clock: LoopClock) -> None:
        registry = MetricRegistry()
        async with faulty_cluster(clock, registry=registry) as world:
            await world.add_node("n0", cpu="2")
            for name in ("a", "b"):
                await world.add_pod(name)
            await world.settle(1)
            await world.add_pod("great", cpu="2", priorityClassName="system-node-critical")
            await world.settle(1)
            assert value(registry, "scheduler_preemption_victims_sum") == 2
            assert value(registry, 'scheduler_preemption_victims_bucket{le="2"}') == 1

    run_virtual(main)


class WaitingPlugin(Plugin):
    """Keep every pod waiting at Permit, and never answer."""

    name = "Holds"

    def permit(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Wait:
        return Wait(25.0)


def test_a_pod_that_waits_too_long_is_late_and_then_forgotten() -> None:
    everywhere = SchedulerPlugins(multi_point=PluginSet(enabled=(Named(name=WaitingPlugin.name),)))
    config = KubeSchedulerConfiguration(profiles=(KubeSchedulerProfile(scheduler_name=PROFILE, plugins=everywhere),))
    completed_config = CompletedConfig.complete(
        config, {**REGISTRY, WaitingPlugin.name: lambda args, handle: WaitingPlugin()}
    )
    assert isinstance(completed_config, CompletedConfig)

    async def main(clock: LoopClock) -> None:
        told: list[SchedulingTimeout] = []
        registry = MetricRegistry()
        async with faulty_cluster(clock, completed_config, registry=registry) as world:
            monitor = SchedulerMonitor(told.append, MonitorSettings(period_s=10, timeout_s=15))
            world.scheduler.scheduling_loop.monitor = monitor
            watching = asyncio.create_task(monitor.run(clock))
            await world.add_node("n0")
            await world.add_pod("slow")
            await clock.sleep(24)
            assert [late.pod for late in told] == ["default/slow"]
            assert len(monitor) == 1
            assert "scheduler_permit_wait_duration_seconds" not in metrics.render([registry]).decode()
            await world.remove_pod("slow")
            await clock.sleep(10)
            assert len(monitor) == 0
            assert value(
                registry, 'scheduler_permit_wait_duration_seconds_sum{result="Unschedulable"}'
            ) == pytest.approx(24)
            watching.cancel()

    run_virtual(main)
