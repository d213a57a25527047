"""Preemption makes room for a whole gang or for nobody, in a whole cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.koordinator.custom_kinds import ELASTIC_QUOTAS
from koord.api.koordinator.protocol import L_DISABLE_PREEMPTIBLE, L_POD_GROUP, L_QUOTA_NAME, L_QUOTA_PREEMPTIBLE
from koord.api.kubernetes.builtin_kinds import POD_DISRUPTION_BUDGETS, PODS, PRIORITY_CLASSES
from koord.api.model import convert
from koord.cli import scheduler_setup
from koord.kube.transport.api_error import unwrap
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.plugins.registry import REGISTRY
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import FaultyCluster, faulty_cluster
from tests.scheduler.plugins.coscheduling.gang_builders import add_group, add_members, bound, pods_of, told
from tests.scheduler.plugins.coscheduling.test_gangs_in_cluster import check


def preempting() -> CompletedConfig:
    args = {"name": "Coscheduling", "args": {"enablePreemption": True}}
    off = {"disabled": [{"name": "DefaultPreemption"}]}
    plugins = {"multiPoint": {"enabled": [{"name": "Coscheduling"}]}, "postFilter": off}
    profile = {"schedulerName": "koord-scheduler", "plugins": plugins, "pluginConfig": [args]}
    made = CompletedConfig.complete(convert({"profiles": [profile]}, KubeSchedulerConfiguration), REGISTRY)
    assert isinstance(made, CompletedConfig), made
    return made


def run(story: Callable[[FaultyCluster], Any]) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, preempting()) as world:
            unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 100}))
            await world.add_node("n0", cpu="4")
            await world.add_node("n1", cpu="4")
            await story(world)
            await check(world)

    run_virtual(main)


async def fill(world: FaultyCluster, count: int = 8, labels: dict[str, str] | None = None) -> None:
    for number in range(count):
        container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "1"}}}
        meta = {"name": f"low-{number}", "namespace": "default", "labels": labels or {}}
        spec = {"schedulerName": "koord-scheduler", "containers": [container], "terminationGracePeriodSeconds": 0}
        unwrap(await world.client.create(PODS, {"metadata": meta, "spec": spec}))
    await world.settle(5)
    assert await bound(world, "low-") == count


def test_as_many_go_as_the_gang_needs_and_it_is_bound() -> None:
    async def story(world: FaultyCluster) -> None:
        await fill(world)
        await add_group(world, "g", 3)
        await add_members(world, "g", 3, cpu="2", priorityClassName="urgent")
        await world.settle(60)
        assert await bound(world, "g-") == 3
        assert len(await pods_of(world, "low-")) == 2
        records = list(world.scheduler.evictor.ledger)
        assert len(records) == 6
        assert {(one.plugin, one.rule, one.outcome) for one in records} == {("Coscheduling", "Preemption", "evicted")}
        assert {one.measured for one in records} == {"priority 0"}
        assert {one.threshold[-12:] for one in records} == {"priority 100"}
        assert all(one.request.startswith("Pod default/g-") for one in records)
        assert all(one.why_this_pod.endswith("all fit without 6 pod(s) of priority at most 0") for one in records)

    run(story)


def test_nobody_goes_for_a_gang_that_would_not_fit_all_the_same_R21() -> None:
    async def story(world: FaultyCluster) -> None:
        await fill(world)
        await add_group(world, "g", 5)
        await add_members(world, "g", 5, cpu="2", priorityClassName="urgent")
        await world.settle(60)
        assert await bound(world, "g-") == 0
        assert await bound(world, "low-") == 8
        messages = [await told(world, f"g-{number}") for number in range(5)]
        assert any("preemption: 0/2 nodes are available: 2 Insufficient cpu." in message for message in messages)

    run(story)


def test_pods_that_their_labels_protect_stay() -> None:
    async def story(world: FaultyCluster) -> None:
        await fill(world, 4, {L_DISABLE_PREEMPTIBLE: "true"})
        for number in range(4, 8):
            container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "1"}}}
            meta = {"name": f"low-{number}", "namespace": "default", "labels": {L_QUOTA_PREEMPTIBLE: "false"}}
            body = {"metadata": meta, "spec": {"schedulerName": "koord-scheduler", "containers": [container]}}
            unwrap(await world.client.create(PODS, body))
        await world.settle(5)
        await add_group(world, "g", 2)
        await add_members(world, "g", 2, cpu="1", priorityClassName="urgent")
        await world.settle(60)
        assert (await bound(world, "g-"), await bound(world, "low-")) == (0, 8)
        assert "2 no potential victims" in await told(world, "g-0")

    run(story)


def test_members_that_already_have_a_node_need_nobody_to_go() -> None:
    async def story(world: FaultyCluster) -> None:
        await fill(world, 6)
        await add_group(world, "g", 4)
        await add_members(world, "g", 4, cpu="1", priorityClassName="urgent")
        await world.settle(60)
        assert await bound(world, "g-") == 4
        assert len(await pods_of(world, "low-")) == 4

    run(story)


@pytest.mark.parametrize("gang", [True, False], ids=["gang", "plain-pod"])
def test_pods_that_a_disruption_budget_guards_are_spared_where_others_can_go(gang: bool) -> None:
    async def story(world: FaultyCluster) -> None:
        await fill(world, 4)
        for number in range(4):
            container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "1"}}}
            meta = {"name": f"low-guarded-{number}", "namespace": "default", "labels": {"app": "guarded"}}
            body = {"metadata": meta, "spec": {"schedulerName": "koord-scheduler", "containers": [container]}}
            unwrap(await world.client.create(PODS, body))
        await world.settle(5)
        guard = {"minAvailable": 4, "selector": {"matchLabels": {"app": "guarded"}}}
        about = {"name": "guard", "namespace": "default"}
        unwrap(await world.client.create(POD_DISRUPTION_BUDGETS, {"metadata": about, "spec": guard}))
        await world.settle(5)
        if gang:
            await add_group(world, "g", 2)
            await add_members(world, "g", 2, cpu="1", priorityClassName="urgent")
        else:
            await world.add_pod("g-0", schedulerName="koord-scheduler", priorityClassName="urgent")
        await world.settle(60)
        assert await bound(world, "g-") == (2 if gang else 1)
        assert len(await pods_of(world, "low-guarded-")) == 4

    run(story)


def test_nobody_goes_for_a_gang_that_its_quota_refuses_R21() -> None:
    async def story(world: FaultyCluster) -> None:
        unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 100}))
        await world.add_node("n0", cpu="4")
        await fill(world, 4)
        spec = {"min": {"cpu": "1"}, "max": {"cpu": "1"}}
        unwrap(
            await world.client.create(
                ELASTIC_QUOTAS, {"metadata": {"name": "small", "namespace": "default"}, "spec": spec}
            )
        )
        await add_group(world, "g", 2)
        labels = {L_QUOTA_NAME: "small", L_POD_GROUP: "g"}
        for number in range(2):
            container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "2"}}}
            meta = {"name": f"g-{number}", "namespace": "default", "labels": labels}
            pod_spec = {"schedulerName": "koord-scheduler", "containers": [container], "priorityClassName": "urgent"}
            unwrap(await world.client.create(PODS, {"metadata": meta, "spec": pod_spec}))
        await world.settle(60)
        assert (await bound(world, "g-"), await bound(world, "low-")) == (0, 4)

    async def main(clock: LoopClock) -> None:
        made = scheduler_setup.scheduler_assembly()
        assert isinstance(made, CompletedConfig), made
        async with faulty_cluster(clock, made) as world:
            await story(world)

    run_virtual(main)


def test_plain_pods_make_room_too() -> None:
    async def story(world: FaultyCluster) -> None:
        await fill(world)
        await world.add_pod("urgent", cpu="2", schedulerName="koord-scheduler", priorityClassName="urgent")
        await world.settle(60)
        assert await world.node_of("urgent") != ""
        assert len(await pods_of(world, "low-")) == 6

    run(story)
