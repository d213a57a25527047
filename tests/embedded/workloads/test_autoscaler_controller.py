"""A HorizontalPodAutoscaler scales a Deployment by what its simulated pods use, in virtual time. How many replicas a
HorizontalPodAutoscaler wants: Kubernetes' rule, its windows and its policies."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, DEPLOYMENTS, PODS
from koord.api.kubernetes.workload import (
    HORIZONTAL_POD_AUTOSCALERS,
    HorizontalPodAutoscalerSpec,
    MetricSpec,
    MetricTarget,
    ResourceMetricSource,
    ScalingBehavior,
    ScalingPolicy,
    ScalingRules,
)
from koord.embedded.workloads.autoscaler_controller import (
    MetricUnknown,
    PastRecommendation,
    PodUsage,
    ReplicaRecommendation,
    ScaleView,
    decide_scale,
    recommendation_of_metric,
)
from koord.kube.client.typed_client import Client
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock
from tests.cli.cluster_with_agents import with_agents

USAGE = "sim.koord.sh/usage"


def a_deployment(cpu: str) -> dict[str, Any]:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "1"}}}
    usage = json.dumps({"model": "constant", "cpu": cpu})
    meta = {"labels": {"app": "web"}, "annotations": {USAGE: usage}}
    template = {"metadata": meta, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    return {"metadata": {"name": "web"}, "spec": spec}


def an_autoscaler(kind: str = "Deployment") -> dict[str, Any]:
    target = {"type": "Utilization", "averageUtilization": 50}
    metric = {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    ref = {"apiVersion": "apps/v1", "kind": kind, "name": "web"}
    return {"metadata": {"name": "web"}, "spec": {"scaleTargetRef": ref, "maxReplicas": 4, "metrics": [metric]}}


async def until(clock: LoopClock, within_s: float, seen: Callable[[], Awaitable[bool]]) -> None:
    end = clock.monotonic() + within_s
    while not await seen():
        assert clock.monotonic() < end, f"not within {within_s} s"
        await clock.sleep(5)


def test_it_grows_to_its_maximum_under_load_and_shrinks_five_minutes_after_it() -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        await client.create(DEPLOYMENTS, a_deployment("90%"), "default")
        await client.create(HORIZONTAL_POD_AUTOSCALERS, an_autoscaler(), "default")

        async def replicas() -> int:
            found = unwrap(await client.dynamic.get(DEPLOYMENTS, "web", "default"))
            return int(found["spec"]["replicas"])

        async def is_at(count: int) -> bool:
            return await replicas() == count

        await until(clock, 400, lambda: is_at(4))
        await clock.sleep(150)  # nodes report once a minute: then all four are measured
        assert await replicas() == 4
        found = unwrap(await client.get(HORIZONTAL_POD_AUTOSCALERS, "web", "default"))
        conditions = {one.type: (one.status, one.reason) for one in found.status.conditions}
        assert conditions["ScalingLimited"] == ("True", "TooManyReplicas")
        assert conditions["ScalingActive"] == ("True", "ValidMetricFound")
        idle = {"metadata": {"annotations": {USAGE: json.dumps({"model": "constant", "cpu": "10%"})}}}
        for pod in unwrap(await client.list(PODS, "default")).items:
            unwrap(await client.patch(PODS, pod.metadata.name, idle, namespace="default", kind="merge"))
        began = clock.monotonic()
        await until(clock, 900, lambda: is_at(1))
        assert clock.monotonic() - began > 300  # not at once: the load may come back
        events = unwrap(await client.list(CORE_EVENTS, "default")).items
        sizes = [event.message for event in events if event.reason == "SuccessfulRescale"]
        assert any(message.startswith("New size: 4; reason: cpu resource utilization") for message in sizes)
        assert any(message == "New size: 1; reason: All metrics below target" for message in sizes)

    with_agents(story)


def test_what_cannot_be_scaled_is_said_in_its_status() -> None:
    async def story(client: Client, clock: LoopClock) -> None:
        await client.create(HORIZONTAL_POD_AUTOSCALERS, an_autoscaler("DaemonSet"), "default")
        await clock.sleep(1)
        found = unwrap(await client.get(HORIZONTAL_POD_AUTOSCALERS, "web", "default"))
        [condition] = found.status.conditions
        assert (condition.type, condition.reason) == ("AbleToScale", "FailedGetScale")
        assert condition.message == "apps/v1 DaemonSet is no kind that can be scaled"

    with_agents(story)


CPU_50 = MetricSpec(
    type="Resource", resource=ResourceMetricSource(name="cpu", target=MetricTarget(average_utilization=50))
)


def pods(*used: int | None) -> list[PodUsage]:
    return [PodUsage(requested={"cpu": 1000}, used=None if one is None else {"cpu": one}) for one in used]


@pytest.mark.parametrize(
    ("used", "replicas"),
    [
        pytest.param((500, 500), 2, id="on-target"),
        pytest.param((545, 545), 2, id="within-a-tenth"),
        pytest.param((1000, 1000), 4, id="twice-the-target"),
        pytest.param((600, 600), 3, id="rounded-up"),
        pytest.param((100, 100), 1, id="a-fifth-of-the-target"),
        pytest.param((1000, None), 2, id="an-unmeasured-pod-uses-nothing-when-more-are-wanted"),
        pytest.param((100, None), 2, id="an-unmeasured-pod-uses-its-target-when-fewer-are"),
    ],
)
def test_replicas_for_what_pods_use(used: tuple[int | None, ...], replicas: int) -> None:
    recommendation = recommendation_of_metric(CPU_50, pods(*used), len(used))
    assert isinstance(recommendation, ReplicaRecommendation)
    assert recommendation.replicas == replicas


def test_a_target_may_be_an_amount() -> None:
    target = MetricTarget(type="AverageValue", average_value="250m")
    metric = MetricSpec(type="Resource", resource=ResourceMetricSource(name="cpu", target=target))
    recommendation = recommendation_of_metric(metric, pods(500, 500), 2)
    assert isinstance(recommendation, ReplicaRecommendation)
    assert (recommendation.replicas, recommendation.utilization_percent, recommendation.average_units) == (4, None, 500)


@pytest.mark.parametrize(
    ("metric", "seen", "reason"),
    [
        pytest.param(CPU_50, pods(None), "FailedGetResourceMetric", id="nothing-is-measured"),
        pytest.param(CPU_50, [PodUsage(requested={}, used={"cpu": 5})], "FailedGetResourceMetric", id="no-request"),
        pytest.param(MetricSpec(type="External"), pods(500), "InvalidMetricSourceType", id="a-metric-nobody-has"),
    ],
)
def test_what_is_not_known_is_said(metric: MetricSpec, seen: list[PodUsage], reason: str) -> None:
    answer = recommendation_of_metric(metric, seen, 1)
    assert isinstance(answer, MetricUnknown)
    assert answer.reason == reason


def scale(
    recommended: int,
    *,
    current: int = 4,
    behavior: ScalingBehavior | None = None,
    past: tuple[PastRecommendation, ...] = (),
    changes: tuple[PastRecommendation, ...] = (),
    all_known: bool = True,
) -> tuple[int, str]:
    spec = HorizontalPodAutoscalerSpec(min_replicas=2, max_replicas=20, metrics=(CPU_50,), behavior=behavior)
    recommendation = ReplicaRecommendation(replicas=recommended, metric=CPU_50, utilization_percent=0, average_units=0)
    view = ScaleView(
        spec=spec,
        current=current,
        recommendations=(recommendation,),
        all_known=all_known,
        past=past,
        changes=changes,
        now_s=1000.0,
    )
    decided = decide_scale(view)
    return decided.replicas, decided.limited_by


def rules(select: str = "Max", window_s: int | None = None, *policies: tuple[str, int, int]) -> ScalingRules:
    made = tuple(ScalingPolicy(type=kind, value=value, period_seconds=period) for kind, value, period in policies)
    return ScalingRules(select_policy=select, stabilization_window_seconds=window_s, policies=made)


def test_the_bounds_of_the_autoscaler_hold() -> None:
    assert scale(1) == (2, "TooFewReplicas")
    assert scale(30, current=15) == (20, "TooManyReplicas")


def test_it_grows_by_four_or_to_twice_at_once() -> None:
    assert scale(20, current=3) == (7, "ScaleUpLimit")
    assert scale(20, current=8) == (16, "ScaleUpLimit")


def test_it_shrinks_to_the_highest_wish_of_five_minutes() -> None:
    assert scale(2, past=(PastRecommendation(701.0, 3), PastRecommendation(600.0, 4))) == (3, "")
    assert scale(2, past=(PastRecommendation(699.0, 4),)) == (2, "")


def test_an_unknown_metric_keeps_pods_and_adds_them() -> None:
    assert scale(2, all_known=False) == (4, "")
    assert scale(6, all_known=False) == (6, "")


def test_policies_count_what_was_changed_in_their_period() -> None:
    up = ScalingBehavior(scale_up=rules("Max", 0, ("Pods", 2, 60)))
    assert scale(10, behavior=up) == (6, "ScaleUpLimit")
    assert scale(10, behavior=up, changes=(PastRecommendation(950.0, 2),)) == (4, "ScaleUpLimit")
    assert scale(10, behavior=up, changes=(PastRecommendation(930.0, 2),)) == (6, "ScaleUpLimit")
    down = ScalingBehavior(scale_down=rules("Max", 0, ("Percent", 25, 60)))
    assert scale(2, behavior=down) == (3, "ScaleDownLimit")


def test_a_direction_can_be_switched_off() -> None:
    behavior = ScalingBehavior(
        scale_up=rules("Disabled", 0, ("Pods", 4, 15)), scale_down=rules("Disabled", 0, ("Pods", 4, 15))
    )
    assert scale(10, behavior=behavior)[0] == 4
    assert scale(2, behavior=behavior)[0] == 4
