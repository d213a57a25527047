"""A running scheduler times its plugins, queueing hints and events, and counts which plugins it evaluated."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any

from koord.telemetry import metrics
from koord.telemetry.clock import LoopClock, run_virtual
from koord.telemetry.metrics import MetricRegistry
from tests.scheduler.faulty_cluster import FaultyCluster, faulty_cluster

EVALUATIONS = "scheduler_plugin_evaluation_total"
EXECUTION = "scheduler_plugin_execution_duration_seconds_count"
HINTS = "scheduler_queueing_hint_execution_duration_seconds_count"
EVENTS = "scheduler_event_handling_duration_seconds_count"

Series = dict[tuple[str, ...], float]


def series(registry: MetricRegistry, name: str, *labels: str) -> Series:
    """Return the values of a metric by these labels."""
    found: Series = {}
    for line in metrics.render([registry]).decode().splitlines():
        head, _, value = line.rpartition(" ")
        if head.partition("{")[0] == name:
            known = dict(re.findall(r'(\w+)="([^"]*)"', head))
            key = tuple(known[label] for label in labels)
            found[key] = found.get(key, 0) + float(value)
    return found


def run(story: Callable[[FaultyCluster, MetricRegistry], Coroutine[Any, Any, None]]) -> None:
    async def main(clock: LoopClock) -> None:
        registry = MetricRegistry()
        async with faulty_cluster(clock, registry=registry) as world:
            await world.add_node("n0", cpu="4")
            await world.add_node("n1", cpu="4")
            await story(world, registry)

    run_virtual(main)


def test_plugins_are_counted_for_each_attempt_that_they_did_not_skip() -> None:
    async def story(world: FaultyCluster, registry: MetricRegistry) -> None:
        for number in range(3):
            await world.add_pod(f"equal-{number}", schedulerName="koord-scheduler")
        await world.add_pod("selective", schedulerName="koord-scheduler", nodeSelector={"a": "b"})
        await world.settle(1)
        counted = series(registry, EVALUATIONS, "plugin", "extension_point", "profile")
        fit = {point: n for (plugin, point, _), n in counted.items() if plugin == "NodeResourcesFit"}
        assert fit["PreFilter"] == fit["Filter"] == 4, "results that hold for equal pods count for each of them"
        assert fit["Score"] == fit["PreScore"] == 4
        assert counted["NodeAffinity", "Filter", "koord-scheduler"] == 1, "three pods have no affinity"
        assert ("NodePorts", "Filter", "koord-scheduler") not in counted

    run(story)


def test_counts_survive_the_classes_of_pods_that_are_no_longer_kept() -> None:
    async def story(world: FaultyCluster, registry: MetricRegistry) -> None:
        for number in range(200):
            await world.add_pod(f"p{number}", cpu=f"{number + 1}u", schedulerName="koord-scheduler")
        await world.settle(5)
        assert series(registry, EVALUATIONS, "plugin", "extension_point")["NodeResourcesFit", "Filter"] == 200

    run(story)


def test_a_pod_that_pre_filter_rejects_counts_for_the_plugins_that_were_asked() -> None:
    async def story(world: FaultyCluster, registry: MetricRegistry) -> None:
        claim = {"name": "v", "persistentVolumeClaim": {"claimName": "absent"}}
        await world.add_pod("p", schedulerName="koord-scheduler", volumes=[claim])
        await world.settle(1)
        counted = series(registry, EVALUATIONS, "plugin", "extension_point")
        assert counted == {("NodeResourcesFit", "PreFilter"): 1, ("VolumeRestrictions", "PreFilter"): 1}

    run(story)


def test_plugins_of_one_attempt_in_ten_are_timed() -> None:
    async def story(world: FaultyCluster, registry: MetricRegistry) -> None:
        for number in range(20):
            await world.add_pod(f"p{number}", cpu=f"{number + 1}m", schedulerName="koord-scheduler")
        await world.settle(5)
        timed = series(registry, EXECUTION, "plugin", "extension_point", "status")
        assert timed["NodeResourcesFit", "PreFilter", "Success"] == 2
        assert timed["NodeAffinity", "PreFilter", "Skip"] == 2
        assert timed["DefaultBinder", "Bind", "Success"] == 2
        points = {point for _, point, _ in timed}
        assert points >= {"PreFilter", "Filter", "PreScore", "Score", "ScoreExtensionNormalize", "Reserve"}

    run(story)


def test_a_rejection_is_timed_under_its_status() -> None:
    async def story(world: FaultyCluster, registry: MetricRegistry) -> None:
        await world.add_pod("huge", cpu="9", schedulerName="koord-scheduler")
        await world.settle(1)
        timed = series(registry, EXECUTION, "extension_point", "status")
        assert timed["PostFilter", "Unschedulable"] >= 1

    run(story)


def test_queueing_hints_are_timed_with_their_answer() -> None:
    async def story(world: FaultyCluster, registry: MetricRegistry) -> None:
        await world.add_pod("huge", cpu="9", schedulerName="koord-scheduler")
        await world.settle(5)
        await world.add_node("small", cpu="1")
        await world.settle(5)
        await world.add_node("large", cpu="16")
        await world.settle(5)
        timed = series(registry, HINTS, "plugin", "event", "hint")
        assert timed["NodeResourcesFit", "NodeAdd", "QueueSkip"] == 1
        assert timed["NodeResourcesFit", "NodeAdd", "Queue"] == 1

    run(story)


def test_events_are_timed_by_kind() -> None:
    async def story(world: FaultyCluster, registry: MetricRegistry) -> None:
        await world.add_pod("p", schedulerName="koord-scheduler")
        await world.settle(1)
        await world.remove_pod("p")
        await world.settle(1)
        timed = series(registry, EVENTS, "event")
        assert timed["NodeAdd",] == 2
        assert timed["UnschedulablePodAdd",] == 1
        assert timed["AssignedPodUpdate",] >= 1
        assert timed["AssignedPodDelete",] == 1

    run(story)


def test_the_deletion_of_victims_is_timed() -> None:
    async def story(world: FaultyCluster, registry: MetricRegistry) -> None:
        for number in range(2):
            await world.add_pod(f"low-{number}", cpu="4", schedulerName="koord-scheduler")
        await world.settle(1)
        await world.add_pod("high", cpu="4", schedulerName="koord-scheduler", priorityClassName="system-node-critical")
        await world.settle(5)
        assert series(registry, "scheduler_preemption_goroutines_execution_total", "result") == {("success",): 1}

    run(story)
