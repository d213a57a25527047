"""Extenders are asked about the victims of a gang before anybody is evicted for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from koord.api.config.scheduler.configuration import Extender, KubeSchedulerConfiguration, ManagedResource
from koord.api.koordinator.protocol import L_POD_GROUP
from koord.api.kubernetes.builtin_kinds import PODS, PRIORITY_CLASSES
from koord.api.model import convert
from koord.kube.transport.api_error import unwrap
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.extender import HttpExtenderTransport
from koord.scheduler.plugins.registry import REGISTRY
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.fake_extender import FakeExtender
from tests.scheduler.faulty_cluster import FaultyCluster, faulty_cluster
from tests.scheduler.plugins.coscheduling.gang_builders import add_group, add_members, bound, told
from tests.scheduler.plugins.coscheduling.test_gang_preemption_in_cluster import fill
from tests.scheduler.plugins.coscheduling.test_gangs_in_cluster import check

URL = "http://extender/scheduler"
LICENCE = "example.com/licence"
LICENSED = (ManagedResource(name=LICENCE, ignored_by_scheduler=True),)


def reviewer(**settings: Any) -> Extender:
    return Extender(**{"url_prefix": URL, "preempt_verb": "preempt", "node_cache_capable": True, **settings})


def configured(*extenders: Extender) -> CompletedConfig:
    args = {"name": "Coscheduling", "args": {"enablePreemption": True}}
    off = {"disabled": [{"name": "DefaultPreemption"}]}
    plugins = {"multiPoint": {"enabled": [{"name": "Coscheduling"}]}, "postFilter": off}
    profile = {"schedulerName": "koord-scheduler", "plugins": plugins, "pluginConfig": [args]}
    given = msgspec.structs.replace(
        convert({"profiles": [profile]}, KubeSchedulerConfiguration), extenders=tuple(extenders)
    )
    made = CompletedConfig.complete(given, REGISTRY)
    assert isinstance(made, CompletedConfig), made
    return made


Story = Callable[[FaultyCluster, FakeExtender], Coroutine[Any, Any, None]]


def run(story: Story, *settings: Extender, nodes: int = 4) -> None:
    """Run a story in a cluster whose nodes are full of pods of low priority."""

    async def main(clock: LoopClock) -> None:
        fake = FakeExtender()
        async with faulty_cluster(clock, configured(*settings), extender_transport=lambda *_: fake) as world:
            await fill_nodes(world, nodes)
            fake.calls.clear()
            await story(world, fake)
            await check(world)

    run_virtual(main)


async def fill_nodes(world: FaultyCluster, nodes: int) -> None:
    unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 100}))
    for number in range(nodes):
        await world.add_node(f"n{number}", cpu="4")
    await fill(world, nodes * 4)


async def nodes_of(world: FaultyCluster, prefix: str) -> dict[str, int]:
    """Return how many pods with such names each node has."""
    counts: dict[str, int] = {}
    for pod in unwrap(await world.client.list(PODS)).items:
        if pod.metadata.name.startswith(prefix) and pod.spec.node_name:
            counts[pod.spec.node_name] = counts.get(pod.spec.node_name, 0) + 1
    return counts


@pytest.mark.parametrize("cached", [True, False], ids=["names", "whole-pods"])
def test_a_gang_gets_the_nodes_whose_victims_the_extender_lets_go(cached: bool) -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        fake.refused_victims = {"n0", "n2"}
        await add_group(world, "g", 3)
        await add_members(world, "g", 3, cpu="2", priorityClassName="urgent")
        await world.settle(60)
        assert set(await nodes_of(world, "g-")) == {"n1", "n3"}
        low = await nodes_of(world, "low-")
        assert (low["n0"], low["n2"], low.get("n1", 0) + low.get("n3", 0)) == (4, 4, 2)
        for args in fake.calls_of("preempt"):
            assert args["Pod"]["metadata"]["name"].startswith("g-")
            shown = args["NodeNameToMetaVictims" if cached else "NodeNameToVictims"]
            assert all(node["Pods"] and node["NumPDBViolations"] == 0 for node in shown.values())
        assert set().union(*map(asked_nodes, fake.calls_of("preempt"))) >= {"n0", "n1", "n3"}

    run(story, reviewer(node_cache_capable=cached))


def asked_nodes(args: dict[str, Any]) -> set[str]:
    return set(args["NodeNameToMetaVictims"] or args["NodeNameToVictims"])


def test_nobody_is_evicted_for_a_gang_when_the_extender_leaves_too_few_nodes() -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        fake.refused_victims = {"n0", "n1", "n2"}
        await add_group(world, "g", 3)
        await add_members(world, "g", 3, cpu="2", priorityClassName="urgent")
        await world.settle(60)
        assert (await bound(world, "g-"), await bound(world, "low-")) == (0, 16)
        messages = [await told(world, f"g-{number}") for number in range(3)]
        expected = "1 Insufficient cpu, 3 node(s) where an extender lets nobody be evicted."
        assert any(f"preemption: 0/4 nodes are available: {expected}" in message for message in messages), messages
        assert not any([(await world.pod(f"g-{number}")).status.nominated_node_name for number in range(3)])

    run(story, reviewer())


@pytest.mark.parametrize("ignorable", [False, True])
def test_a_broken_extender_stops_the_eviction_for_a_gang_unless_it_is_ignorable(ignorable: bool) -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        fake.status = 500
        await add_group(world, "g", 2)
        await add_members(world, "g", 2, cpu="2", priorityClassName="urgent")
        await world.settle(60)
        if ignorable:
            assert await bound(world, "g-") == 2
            return
        assert (await bound(world, "g-"), await bound(world, "low-")) == (0, 16)
        messages = [await told(world, f"g-{number}") for number in range(2)]
        expected = f"preemption: failed preempt with extender at URL {URL}/preempt, code 500"
        assert any(expected in message for message in messages), messages
        fake.status = 200
        await world.add_pod("poke", cpu="5", schedulerName="koord-scheduler")
        await world.settle(400)
        assert await bound(world, "g-") == 2

    run(story, reviewer(ignorable=ignorable))


def test_the_extender_may_name_other_victims_for_a_gang() -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        seen: list[set[str]] = []

        def everybody(args: dict[str, Any]) -> dict[str, Any]:
            nodes = asked_nodes(args)
            seen.append(nodes)
            state = world.scheduler.state
            there = {name: [p.uid for p in node.pods.values()] for name in nodes if (node := state.node(name))}
            left = {name: {"Pods": [{"UID": uid} for uid in uids]} for name, uids in there.items()}
            return {"NodeNameToMetaVictims": left}

        fake.preempt = everybody
        await add_group(world, "g", 2)
        await add_members(world, "g", 2, cpu="1", priorityClassName="urgent")
        await world.settle(60)
        assert await bound(world, "g-") == 2
        assert await bound(world, "low-") == 16 - 4 * len(seen[0]), "all pods of the nodes that were shown are evicted"

    run(story, reviewer())


def test_only_the_members_of_interest_are_shown_even_if_another_member_is_tried_first() -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        fake.refused_victims = {"n0"}
        await add_group(world, "g", 3)
        await add_licensed_member(world, "g-z", "2")
        await add_members(world, "g", 2, cpu="4", priorityClassName="urgent")
        await world.settle(60)
        assert await bound(world, "g-") == 3
        assert {args["Pod"]["metadata"]["name"] for args in fake.calls_of("preempt")} == {"g-z"}
        assert await world.node_of("g-z") != "n0"

    run(story, reviewer(managed_resources=LICENSED))


async def add_licensed_member(world: FaultyCluster, name: str, cpu: str) -> None:
    amounts = {"requests": {"cpu": cpu, LICENCE: "1"}, "limits": {LICENCE: "1"}}
    spec = {
        "schedulerName": "koord-scheduler",
        "priorityClassName": "urgent",
        "containers": [{"name": "c", "image": "app", "resources": amounts}],
    }
    meta = {"name": name, "namespace": "default", "labels": {L_POD_GROUP: "g"}}
    unwrap(await world.client.create(PODS, {"metadata": meta, "spec": spec}))


def test_a_pod_of_no_gang_is_preempted_for_where_the_extender_lets_it() -> None:
    async def story(world: FaultyCluster, fake: FakeExtender) -> None:
        fake.refused_victims = {"n0", "n1", "n3"}
        await world.add_pod("single", cpu="2", schedulerName="koord-scheduler", priorityClassName="urgent")
        await world.settle(60)
        assert await world.node_of("single") == "n2"
        assert (await nodes_of(world, "low-"))["n2"] == 2

    run(story, reviewer())


async def until_bound(world: FaultyCluster, prefix: str, count: int) -> None:
    async with asyncio.timeout(60):
        while await bound(world, prefix) < count:  # noqa: ASYNC110 - what the server has is all there is to see
            await asyncio.sleep(0.1)


def test_a_gang_is_reviewed_over_real_http() -> None:
    async def main() -> None:
        fake = FakeExtender()
        fake.refused_victims = {"n0"}
        async with fake.serve() as url:
            config = configured(reviewer(url_prefix=url, node_cache_capable=False))
            async with faulty_cluster(
                LoopClock(asyncio.get_running_loop()), config, extender_transport=HttpExtenderTransport
            ) as world:
                unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 100}))
                for number in range(2):
                    await world.add_node(f"n{number}", cpu="4")
                for number in range(8):
                    await world.add_pod(
                        f"low-{number}", schedulerName="koord-scheduler", terminationGracePeriodSeconds=0
                    )
                await until_bound(world, "low-", 8)
                await add_group(world, "g", 2)
                await add_members(world, "g", 2, cpu="2", priorityClassName="urgent")
                await until_bound(world, "g-", 2)
                assert await nodes_of(world, "g-") == {"n1": 2}
                assert await nodes_of(world, "low-") == {"n0": 4}
        victims = [set(args["NodeNameToVictims"]) for args in fake.calls_of("preempt")]
        assert {"n0", "n1"} >= set().union(*victims) >= {"n1"}

    asyncio.run(main())
