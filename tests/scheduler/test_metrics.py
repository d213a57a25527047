"""The scheduler's metrics: names, labels and buckets as kube-scheduler 1.35 and Koordinator serve them."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from koord.scheduler.metrics import KoordinatorMetrics, SchedulerMetrics, gang_size_label
from koord.telemetry import metrics
from koord.telemetry.metrics import MetricRegistry


class Queue:
    def __init__(self) -> None:
        self.counters: Any = SimpleNamespace(
            incoming=Counter({("active", "UnschedulablePodAdd"): 3}), unschedulable=Counter({("NodeAffinity", "p"): 1})
        )

    def counts(self) -> dict[str, int]:
        return {"active": 1, "backoff": 0, "unschedulable": 2, "gated": 4}

    def in_flight_events(self) -> Counter[str]:
        return Counter({"PodPopped": 1})


class State:
    def cache_size(self) -> dict[str, int]:
        return {"nodes": 5, "pods": 6, "assumed_pods": 1}


def served(registry: MetricRegistry) -> list[str]:
    return [line for line in metrics.render([registry]).decode().splitlines() if line[0] != "#"]


def test_an_attempt_that_binds_is_counted_when_it_is_bound() -> None:
    registry = MetricRegistry()
    metrics = SchedulerMetrics(registry)
    metrics.decision_made("p", "scheduled", 0.001)
    assert not [line for line in served(registry) if line.startswith("scheduler_schedule_attempts_total")]
    metrics.pod_bound("p", 0.02, 3.0, 2)
    metrics.decision_made("p", "unschedulable", 0.001)
    lines = served(registry)
    assert 'scheduler_schedule_attempts_total{profile="p",result="scheduled"} 1' in lines
    assert 'scheduler_schedule_attempts_total{profile="p",result="unschedulable"} 1' in lines
    assert "scheduler_scheduling_algorithm_duration_seconds_count 2" in lines
    assert 'scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="scheduled",le="0.016"} 0' in lines
    assert 'scheduler_scheduling_attempt_duration_seconds_bucket{profile="p",result="scheduled",le="0.032"} 1' in lines
    assert 'scheduler_pod_scheduling_sli_duration_seconds_sum{attempts="2"} 3' in lines
    assert "scheduler_pod_scheduling_attempts_sum 2" in lines


@pytest.mark.parametrize(
    ("attempts", "label"), [pytest.param(14, "14", id="counted"), pytest.param(15, "15+", id="many")]
)
def test_many_attempts_share_a_label(attempts: int, label: str) -> None:
    registry = MetricRegistry()
    SchedulerMetrics(registry).pod_bound("p", 0.1, 1.0, attempts)
    assert f'scheduler_pod_scheduling_sli_duration_seconds_count{{attempts="{label}"}} 1' in served(registry)


def test_parts_have_the_labels_of_kube_scheduler() -> None:
    registry = MetricRegistry()
    metrics = SchedulerMetrics(registry)
    metrics.extension_point("Filter", "Success", "p", 0.1)
    metrics.plugin_took("NodeName", "Filter", "Success", 0.1)
    metrics.hint_took("NodeName", "NodeAdd", "Queue", 0.1)
    metrics.permit_waited("rejected", 2.0)
    metrics.event_handled("NodeAdd", 0.1)
    metrics.victims_searched(3)
    metrics.victims_searched(0)
    metrics.binding_failed("p", "error", 0.1)
    metrics.victims_ended("success", 0.1)
    lines = served(registry)
    for line in (
        "scheduler_framework_extension_point_duration_seconds_count"
        '{extension_point="Filter",profile="p",status="Success"} 1',
        "scheduler_plugin_execution_duration_seconds_count"
        '{extension_point="Filter",plugin="NodeName",status="Success"} 1',
        'scheduler_queueing_hint_execution_duration_seconds_count{event="NodeAdd",hint="Queue",plugin="NodeName"} 1',
        'scheduler_permit_wait_duration_seconds_sum{result="rejected"} 2',
        'scheduler_event_handling_duration_seconds_count{event="NodeAdd"} 1',
        "scheduler_preemption_attempts_total 2",
        "scheduler_preemption_victims_count 1",
        'scheduler_schedule_attempts_total{profile="p",result="error"} 1',
        'scheduler_preemption_victims_bucket{le="2"} 0',
        'scheduler_preemption_victims_bucket{le="4"} 1',
        'scheduler_preemption_goroutines_execution_total{result="success"} 1',
    ):
        assert line in lines


def test_held_numbers_are_read_when_asked_for() -> None:
    registry, queue = MetricRegistry(), Queue()
    SchedulerMetrics(registry).serve_sources(queue, State(), lambda: 7, {"p": lambda: {("NodeName", "Filter"): 3}})
    lines = served(registry)
    for line in (
        'scheduler_pending_pods{queue="gated"} 4',
        'scheduler_inflight_events{event="PodPopped"} 1',
        'scheduler_cache_size{type="assumed_pods"} 1',
        'scheduler_goroutines{operation="binding"} 7',
        'scheduler_queue_incoming_pods_total{event="UnschedulablePodAdd",queue="active"} 3',
        'scheduler_unschedulable_pods{plugin="NodeAffinity",profile="p"} 1',
        'scheduler_plugin_evaluation_total{extension_point="Filter",plugin="NodeName",profile="p"} 3',
    ):
        assert line in lines
    queue.counters.incoming["active", "UnschedulablePodAdd"] += 1
    assert 'scheduler_queue_incoming_pods_total{event="UnschedulablePodAdd",queue="active"} 4' in served(registry)


@pytest.mark.parametrize(
    ("members", "label"),
    [
        pytest.param(0, "0", id="none"),
        pytest.param(1, "1-100", id="one"),
        pytest.param(100, "1-100", id="edge"),
        pytest.param(101, "101-200", id="next"),
        pytest.param(1000, "901-1000", id="last"),
        pytest.param(1001, "1000+", id="more"),
    ],
)
def test_sizes_of_jobs(members: int, label: str) -> None:
    assert gang_size_label(members) == label


def test_both_sets_live_in_one_registry() -> None:
    registry = MetricRegistry()
    SchedulerMetrics(registry)
    KoordinatorMetrics(registry).timeout.labels("p").inc()
    assert 'scheduler_scheduling_timeout{profile="p"} 1' in served(registry)
