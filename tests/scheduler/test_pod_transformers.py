"""With their gates on, transformers decide for queue, filters, quotas, preemption and explanations; the server's pods
stay as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import ELASTIC_QUOTAS
from koord.api.koordinator.protocol import A_REPLACE_RESOURCES, L_PREEMPTION_POLICY, L_PRIORITY_CLASS, L_QUOTA_NAME
from koord.api.kubernetes.builtin_kinds import NODES, PODS, PRIORITY_CLASSES
from koord.api.model import convert
from koord.cli import scheduler_setup
from koord.kube.transport.api_error import unwrap
from koord.scheduler.cache.pod_model import Pod
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.explain.http import Explainer
from koord.scheduler.explain.what_if import ApiSnapshot, WhatIf
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import FaultyCluster, faulty_cluster

BATCH_CPU = "kubernetes.io/batch-cpu"
TO_BATCH = {A_REPLACE_RESOURCES: f"cpu:{BATCH_CPU}"}
PRIORITY, POLICY, RESOURCES = "PriorityTransformer", "PreemptionPolicyTransformer", "ReplaceResourcesTransformer"


def configuration(gate: str, *, on: bool) -> CompletedConfig:
    made = scheduler_setup.scheduler_assembly(gates={gate: on})
    assert isinstance(made, CompletedConfig), made
    return made


def run(story: Callable[[FaultyCluster], Awaitable[None]], gate: str, *, on: bool) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, configuration(gate, on=on)) as world:
            await story(world)

    run_virtual(main)


async def add_node(world: FaultyCluster, name: str, **allocatable: str) -> None:
    amounts = {"memory": "16Gi", "pods": "110", **allocatable}
    status = {"allocatable": amounts, "capacity": amounts}
    unwrap(await world.client.create(NODES, {"metadata": {"name": name}, "status": status}))


async def add_pod(world: FaultyCluster, name: str, cpu: str, *, meta: Any, **spec: Any) -> None:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    body = {"metadata": {"name": name, "namespace": "default", **meta}, "spec": {"containers": [container], **spec}}
    unwrap(await world.client.create(PODS, body))


async def message(world: FaultyCluster, name: str) -> str:
    conditions = (await world.pod(name)).status.conditions
    return next((one.message for one in conditions if one.type == "PodScheduled"), "")


async def leaving(world: FaultyCluster) -> list[str]:
    return [p.metadata.name for p in unwrap(await world.client.list(PODS)).items if p.metadata.deletion_timestamp]


@pytest.mark.parametrize("on", [True, False])
def test_a_pod_is_filtered_by_what_it_is_replaced_with(on: bool) -> None:
    async def story(world: FaultyCluster) -> None:
        await add_node(world, "n0", cpu="1", **{BATCH_CPU: "3000"})
        await add_pod(world, "fits", "2", meta={"annotations": TO_BATCH})
        await world.settle(5)
        assert await world.node_of("fits") == ("n0" if on else "")
        requests = (await world.pod("fits")).spec.containers[0].resources.requests
        assert requests == {"cpu": "2"}, "nothing is written back"
        await add_pod(world, "more", "2", meta={"annotations": TO_BATCH})
        await world.settle(5)
        lacking = BATCH_CPU if on else "cpu"
        assert f"Insufficient {lacking}" in await message(world, "more")
        node = world.scheduler.state.node("n0")
        assert node is not None
        assert node.requested == ({BATCH_CPU: 2000} if on else {})
        report = Explainer(world.scheduler, world.clock).pod("default", "more")
        assert report is not None
        assert report.last is not None
        assert [refusal.reason for refusal in report.last.refusals] == [f"Insufficient {lacking}"]

    run(story, RESOURCES, on=on)


@pytest.mark.parametrize("on", [True, False])
def test_a_quota_counts_what_a_pod_is_replaced_with(on: bool) -> None:
    async def story(world: FaultyCluster) -> None:
        await add_node(world, "n0", cpu="16", **{BATCH_CPU: "16000"})
        limits = {"cpu": "16", BATCH_CPU: "3000"}
        spec = {"min": limits, "max": limits}
        unwrap(
            await world.client.create(ELASTIC_QUOTAS, {"metadata": {"name": "q", "namespace": "default"}, "spec": spec})
        )
        meta = {"annotations": TO_BATCH, "labels": {L_QUOTA_NAME: "q"}}
        for name in ("first", "second"):
            await add_pod(world, name, "2", meta=meta, schedulerName="koord-scheduler")
            await world.settle(5)
        assert await world.node_of("first") == "n0"
        assert await world.node_of("second") == ("" if on else "n0")
        if on:
            assert "Insufficient quotas" in await message(world, "second")

    run(story, RESOURCES, on=on)


@pytest.mark.parametrize("on", [True, False])
def test_the_class_decides_who_is_first_in_the_queue(on: bool) -> None:
    async def story(world: FaultyCluster) -> None:
        await add_node(world, "small", cpu="1")
        for name, label in (("early", "koord-batch"), ("late", "koord-prod")):
            await add_pod(world, name, "3", meta={"labels": {L_PRIORITY_CLASS: label}})
            await world.settle(20)  # longer than any back-off
        await add_node(world, "n0", cpu="4")
        await world.settle(5)
        assert await world.node_of("late" if on else "early") == "n0"
        assert (await world.pod("late")).spec.priority == 0, "nothing is written back"

    run(story, PRIORITY, on=on)


@pytest.mark.parametrize("on", [True, False])
def test_the_class_decides_who_is_preempted(on: bool) -> None:
    async def story(world: FaultyCluster) -> None:
        await add_node(world, "n0", cpu="4")
        await add_pod(world, "batch", "3", meta={"labels": {L_PRIORITY_CLASS: "koord-batch"}})
        await world.settle(5)
        await add_pod(world, "prod", "3", meta={"labels": {L_PRIORITY_CLASS: "koord-prod"}})
        await world.settle(5)
        assert await leaving(world) == (["batch"] if on else [])
        assert (await world.pod("prod")).status.nominated_node_name == ("n0" if on else "")

    run(story, PRIORITY, on=on)


@pytest.mark.parametrize(
    ("on", "label", "preempts"),
    [
        pytest.param(False, None, True, id="off"),
        pytest.param(True, None, False, id="no-label"),
        pytest.param(True, "Never", False, id="never"),
        pytest.param(True, "PreemptLowerPriority", True, id="label"),
    ],
)
def test_a_label_decides_who_preempts(on: bool, label: str | None, preempts: bool) -> None:
    async def story(world: FaultyCluster) -> None:
        for name, value in (("low", 1), ("high", 10)):
            unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value}))
        await add_node(world, "n0", cpu="4")
        await add_pod(world, "small", "3", meta={}, priorityClassName="low")
        await world.settle(5)
        labels = {} if label is None else {L_PREEMPTION_POLICY: label}
        await add_pod(world, "great", "3", meta={"labels": labels}, priorityClassName="high")
        await world.settle(5)
        assert await leaving(world) == (["small"] if preempts else [])
        assert ("preemptionPolicy=Never" in await message(world, "great")) is not preempts

    run(story, POLICY, on=on)


@pytest.mark.parametrize("on", [True, False])
def test_a_label_that_comes_later_is_followed(on: bool) -> None:
    async def story(world: FaultyCluster) -> None:
        await add_node(world, "n0", cpu="1", **{BATCH_CPU: "3000"})
        await add_pod(world, "p", "2", meta={})
        await world.settle(5)
        assert await world.node_of("p") == ""
        patch = {"metadata": {"annotations": TO_BATCH}}
        unwrap(await world.client.patch(PODS, "p", patch, "default", kind="merge"))
        await world.settle(30)
        assert await world.node_of("p") == ("n0" if on else "")

    run(story, RESOURCES, on=on)


@pytest.mark.parametrize("on", [True, False])
def test_a_what_if_sees_the_same(on: bool) -> None:
    amounts = {"cpu": "1", "pods": "10", BATCH_CPU: "3000"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}, "status": {"allocatable": amounts}}

    def pod(name: str, on_node: str = "") -> dict[str, Any]:
        container = {"name": "c", "resources": {"requests": {"cpu": "2"}}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": name, "annotations": TO_BATCH},
            "spec": {"schedulerName": "default-scheduler", "nodeName": on_node, "containers": [container]},
        }

    def decide(*there: dict[str, Any]) -> tuple[str, str]:
        what_if = WhatIf(configuration(RESOURCES, on=on), ApiSnapshot([node, *there]), 0.0)
        (outcome,) = what_if.decide([convert(pod("new"), Pod)])
        return outcome.node, outcome.message

    assert decide()[0] == ("n0" if on else "")
    assert f"Insufficient {BATCH_CPU if on else 'cpu'}" in decide(pod("old", "n0"))[1]
