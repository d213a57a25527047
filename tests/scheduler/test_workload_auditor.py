"""The workload auditor: what each event of a workload says, and what a running scheduler tells it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from koord.api.kubernetes.builtin_kinds import PODS, PRIORITY_CLASSES
from koord.kube.transport.api_error import unwrap
from koord.scheduler.workload_auditor import (
    Measured,
    WorkloadAuditorSettings,
    WorkloadEvent,
    WorkloadRecord,
    metric_label_keys,
)
from koord.telemetry import metrics
from koord.telemetry.clock import LoopClock, run_virtual
from koord.telemetry.metrics import MetricRegistry
from tests.scheduler.faulty_cluster import FaultyCluster, faulty_cluster

E = WorkloadEvent
SETTINGS = WorkloadAuditorSettings()


def said(*events: tuple[float, WorkloadEvent]) -> Measured:
    """Return what the last event says; every preemption has one victim."""
    record = WorkloadRecord(("0",))
    found = [record.add(event, at, SETTINGS, ["v"] if event is E.PREEMPT_NOMINATED else []) for at, event in events]
    return found[-1]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([(0, E.CREATE)], Measured()),
        ([(0, E.CREATE), (2, E.SCHEDULED)], Measured(interval_s=2)),
        (
            [(0, E.CREATE), (301, E.SCHEDULED)],
            Measured(interval_s=301, warnings=("nothing happened to it for 301.0 s",)),
        ),
        ([(0, E.PREEMPT_NOMINATED), (5, E.VICTIM_DELETING)], Measured(interval_s=5)),
        (
            [(0, E.PREEMPT_NOMINATED), (1, E.VICTIM_DELETING), (4, E.VICTIMS_DELETED)],
            Measured(interval_s=3, victims_deleted_s=4, retries=1),
        ),
        (
            [(0, E.PREEMPT_NOMINATED), (31, E.VICTIMS_DELETED)],
            Measured(interval_s=31, victims_deleted_s=31, retries=0, warnings=("its victims took 31.0 s to go",)),
        ),
        (
            [(0, E.PREEMPT_NOMINATED), (1, E.VICTIMS_DELETED), (2, E.SCHEDULED)],
            Measured(interval_s=1, rescheduled_s=1),
        ),
        (
            [(0, E.PREEMPT_NOMINATED), (1, E.VICTIMS_DELETED), (12, E.SCHEDULED)],
            Measured(
                interval_s=11,
                rescheduled_s=11,
                warnings=("its next result came 11.0 s after its victims were gone",),
            ),
        ),
        (
            [(0, E.PREEMPT_NOMINATED), (1, E.VICTIMS_DELETED), (2, E.SCHEDULE_FAILURE)],
            Measured(
                interval_s=1, rescheduled_s=1, interrupted_s=2, warnings=("its preemption became void after 2.0 s",)
            ),
        ),
        (
            [(0, E.PREEMPT_NOMINATED), (3, E.PREEMPT_NOMINATED)],
            Measured(
                interval_s=3,
                repeated=True,
                interrupted_s=3,
                retries=0,
                warnings=("its preemption became void after 3.0 s", "it preempts again, 2 times by now"),
            ),
        ),
        # A nomination becomes void once: the second failure says nothing of it.
        ([(0, E.PREEMPT_NOMINATED), (1, E.PREEMPT_FAILURE), (2, E.SCHEDULE_FAILURE)], Measured(interval_s=1)),
    ],
)
def test_what_an_event_says(events: list[tuple[float, WorkloadEvent]], expected: Measured) -> None:
    assert said(*events) == expected


def test_too_many_attempts_while_victims_leave_are_told_once() -> None:
    tries = [said((0, E.PREEMPT_NOMINATED), *((at, E.VICTIM_DELETING) for at in range(1, n))) for n in range(2, 8)]
    assert [bool(one.warnings) for one in tries] == [False, False, False, True, False, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ("team, example.com/tier", ("team", "example.com/tier")),
        ("a.b,a/b", "'a.b' and 'a/b' would both be the metric label 'a_b'"),
        ("priority", "'priority' would be the metric label 'priority', which the auditor sets itself"),
    ],
)
def test_labels_for_the_metrics_are_keys_of_pod_labels(text: str, expected: object) -> None:
    assert metric_label_keys(text) == expected


# A running scheduler ---------------------------------------------------------------------------------------------


def run(story: Callable[[FaultyCluster, MetricRegistry], Any], **settings: Any) -> None:
    async def main(clock: LoopClock) -> None:
        registry = MetricRegistry()
        audited = WorkloadAuditorSettings(**settings)
        async with faulty_cluster(clock, registry=registry, auditor=audited) as world:
            for name, value in {"low": 1, "high": 10}.items():
                unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value}))
            await story(world, registry)

    run_virtual(main)


def outcomes(registry: MetricRegistry) -> dict[tuple[str, str], float]:
    """Return how many events there were before an outcome, by type and outcome."""
    found: dict[tuple[str, str], float] = {}
    for line in metrics.render([registry]).decode().splitlines():
        if line.startswith("scheduler_workload_auditor_scheduling_events_before_outcome_sum{"):
            labels = dict(part.split("=") for part in line.partition("{")[2].partition("}")[0].split(","))
            key = (labels["event_type"].strip('"'), labels["outcome"].strip('"'))
            found[key] = found.get(key, 0.0) + float(line.rpartition(" ")[2])
    return found


def total(registry: MetricRegistry, name: str) -> float:
    lines = metrics.render([registry]).decode().splitlines()
    prefix = f"scheduler_workload_auditor_{name}{{"
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(prefix))


def gang_of(name: str, members: int) -> dict[str, str]:
    return {
        "gang.scheduling.koordinator.sh/name": name,
        "gang.scheduling.koordinator.sh/min-available": str(members),
    }


async def add_member(world: FaultyCluster, name: str, gang: str, members: int) -> None:
    box = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    meta = {"name": name, "namespace": "default", "annotations": gang_of(gang, members)}
    spec = {"schedulerName": "koord-scheduler", "containers": [box]}
    unwrap(await world.client.create(PODS, {"metadata": meta, "spec": spec}, "default"))


def test_a_preemption_is_followed_from_its_victims_to_the_binding() -> None:
    async def story(world: FaultyCluster, registry: MetricRegistry) -> None:
        await world.add_node("n0")
        await world.add_pod("victim", cpu="4", nodeName="n0", priorityClassName="low")
        await world.settle(1)
        await world.add_pod("vip", cpu="4", priorityClassName="high")
        await world.settle(5)
        await world.remove_pod("victim")
        await world.settle(30)
        assert await world.node_of("vip") == "n0"
        found = outcomes(registry)
        assert found[("create", "scheduled")] == found[("preemptNominated", "scheduled")] == 1
        assert found[("victimAllDeleted", "scheduled")] == found[("scheduled", "scheduled")] == 1
        assert total(registry, "preemption_to_victim_deleted_seconds_count") == 1
        assert 4 < total(registry, "preemption_to_victim_deleted_seconds_sum") < 7
        assert total(registry, "victim_reschedule_duration_seconds_count") == 1
        assert total(registry, "preemption_invalidations_total") == 0
        assert world.scheduler.auditor is not None
        assert not world.scheduler.auditor.records

    run(story)


def test_a_gang_is_one_workload() -> None:
    async def story(world: FaultyCluster, registry: MetricRegistry) -> None:
        await world.add_node("n0", cpu="1")
        await add_member(world, "m0", "g", 2)
        await world.settle(1)
        auditor = world.scheduler.auditor
        assert auditor is not None
        assert list(auditor.records) == ["default/g"]
        await add_member(world, "m1", "g", 2)
        await world.settle(5)
        counts = auditor.records["default/g"].counts
        assert counts[E.CREATE] == counts[E.GANG_MIN_MEMBER] == 1
        assert counts[E.SCHEDULE_FAILURE] >= 1
        await world.add_node("n1", cpu="1")
        await world.settle(400)
        assert await world.node_of("m0")
        assert await world.node_of("m1")
        assert outcomes(registry)[("scheduled", "scheduled")] == 1
        assert not auditor.records

    run(story)


def test_gates_and_a_pod_that_is_deleted_unscheduled(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: FaultyCluster, registry: MetricRegistry) -> None:
        await world.add_pod("gated", schedulingGates=[{"name": "example.com/queue"}])
        await world.settle(400)
        patch = {"spec": {"schedulingGates": None}}
        unwrap(await world.client.patch(PODS, "gated", patch, "default", kind="merge"))
        await world.settle(1)
        await world.remove_pod("gated")
        await world.settle(1)
        found = outcomes(registry)
        assert found[("gatedByQueueAdmission", "removed")] == found[("admissionPassed", "removed")] == 1
        assert total(registry, "scheduling_event_interval_seconds_count") >= 2

    with caplog.at_level(logging.WARNING, logger="koord.scheduler.workload_auditor"):
        run(story)
    assert "nothing happened to it for 400" in caplog.text


def test_labels_of_pods_become_labels_of_metrics() -> None:
    async def story(world: FaultyCluster, registry: MetricRegistry) -> None:
        await world.add_node("n0")
        meta = {"name": "p", "namespace": "default", "labels": {"example.com/team": "red"}}
        spec = {"containers": [{"name": "c", "image": "i"}]}
        unwrap(await world.client.create(PODS, {"metadata": meta, "spec": spec}, "default"))
        await world.settle(5)
        text = metrics.render([registry]).decode()
        assert '{event_type="scheduled",example_com_team="red",outcome="scheduled",priority="0"}' in text

    run(story, metric_labels=("example.com/team",))


def test_nothing_is_recorded_unless_it_is_switched_on() -> None:
    async def main(clock: LoopClock) -> None:
        registry = MetricRegistry()
        async with faulty_cluster(clock, registry=registry) as world:
            assert world.scheduler.auditor is None
            assert world.scheduler.queue.observer is None
            assert "workload_auditor" not in metrics.render([registry]).decode()

    run_virtual(main)
