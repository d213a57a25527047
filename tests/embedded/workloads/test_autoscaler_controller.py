"""A HorizontalPodAutoscaler scales a Deployment by what its simulated pods use, in virtual time."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, DEPLOYMENTS, PODS
from koord.api.kubernetes.workload import HORIZONTAL_POD_AUTOSCALERS
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
