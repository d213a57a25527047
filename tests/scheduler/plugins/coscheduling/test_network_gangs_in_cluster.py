"""Network-aware gangs gather in topology domains, in a whole cluster."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.koordinator.custom_kinds import CLUSTER_NETWORK_TOPOLOGIES
from koord.api.koordinator.protocol import A_GANG_NETWORK_TOPOLOGY_SPEC, A_NETWORK_TOPOLOGY_SELECTOR, L_POD_GROUP
from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS, PODS, PRIORITY_CLASSES
from koord.api.model import convert
from koord.kube.transport.api_error import unwrap
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.plugins.coscheduling.controller import NetworkTopologyController
from koord.scheduler.plugins.coscheduling.explain import report_gangs
from koord.scheduler.plugins.coscheduling.gang_manager import GangManager
from koord.scheduler.plugins.registry import REGISTRY
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import FaultyCluster, faulty_cluster
from tests.scheduler.plugins.coscheduling.gang_builders import (
    add_free_member,
    add_group,
    add_members,
    bound,
    pods_of,
    told,
)
from tests.scheduler.plugins.coscheduling.test_gangs_in_cluster import check

LAYERS = [
    {"topologyLayer": "BlockLayer", "parentTopologyLayer": "ClusterTopologyLayer", "labelKey": ["block"]},
    {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "BlockLayer"},
]


def aware(gates: Mapping[str, bool] | None = None, **more: bool) -> CompletedConfig:
    args = {"name": "Coscheduling", "args": {"awareNetworkTopology": True} | more}
    off = {"disabled": [{"name": "DefaultPreemption"}]}
    plugins = {"multiPoint": {"enabled": [{"name": "Coscheduling"}]}, "postFilter": off}
    profile = {"schedulerName": "koord-scheduler", "plugins": plugins, "pluginConfig": [args]}
    made = CompletedConfig.complete(convert({"profiles": [profile]}, KubeSchedulerConfiguration), REGISTRY, gates=gates)
    assert isinstance(made, CompletedConfig), made
    return made


def run(story: Callable[[FaultyCluster], Any], gates: Mapping[str, bool] | None = None, **more: bool) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, aware(gates, **more)) as world:
            await story(world)
            await check(world)

    run_virtual(main)


async def blocks(world: FaultyCluster, **cpus: str) -> None:
    body = {"metadata": {"name": "default"}, "spec": {"networkTopologySpec": LAYERS}}
    unwrap(await world.client.create(CLUSTER_NETWORK_TOPOLOGIES, body))
    for name, cpu in cpus.items():
        await world.add_node(name.replace("_", "-"), cpu=cpu, labels={"block": name.split("_")[0]})


def must_gather(layer: str) -> dict[str, str]:
    wish = {"gatherStrategy": [{"layer": layer, "strategy": "MustGather"}]}
    return {A_GANG_NETWORK_TOPOLOGY_SPEC: json.dumps(wish)}


def test_all_members_go_to_one_block() -> None:
    async def story(world: FaultyCluster) -> None:
        await blocks(world, a_1="3", a_2="1", b_1="2", b_2="2", c_1="8")
        for number in range(4):
            await add_free_member(world, "g", f"g-{number}", 4, **must_gather("BlockLayer"))
        await world.settle(20)
        nodes = {pod.spec.node_name for pod in await pods_of(world, "g-")}
        assert len({name.split("-")[0] for name in nodes}) == 1
        assert "" not in nodes

    run(story)


def test_no_block_takes_all_until_a_node_comes() -> None:
    async def story(world: FaultyCluster) -> None:
        await blocks(world, a_1="2", b_1="2")
        for number in range(3):
            await add_free_member(world, "g", f"g-{number}", 3, **must_gather("BlockLayer"))
        await world.settle(20)
        assert await bound(world, "g-") == 0
        assert (
            "no candidate topology nodes can accommodate job, desiredOfferSlot: 3, "
            "topology topologyNode BlockLayer/a: 2;topology topologyNode BlockLayer/b: 2, "
            "0/2 nodes are available: 2 Insufficient cpu."
        ) in await told(world, "g-0")
        await world.add_node("b-2", cpu="1", labels={"block": "b"})
        await world.settle(15)
        assert {p.spec.node_name for p in await pods_of(world, "g-")} == {"b-1", "b-2"}

    run(story)


def test_without_a_topology_such_a_gang_is_told_so_and_others_go_on() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="8")
        for number in range(2):
            await add_free_member(world, "g", f"g-{number}", 2, **must_gather("BlockLayer"))
            await add_free_member(world, "h", f"h-{number}", 2)
        await world.settle(20)
        assert "no cluster network topology" in await told(world, "g-0")
        assert (await bound(world, "g-"), await bound(world, "h-")) == (0, 2)
        await blocks(world, a_1="4")
        await world.settle(15)
        assert await bound(world, "g-") == 2

    run(story)


@pytest.mark.parametrize("declared", ["PodGroup", "annotations"])
def test_rules_for_the_network_that_nobody_reads_are_told_of_once(declared: str) -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="1")
        if declared == "PodGroup":
            await add_group(world, "g", 2, topology=must_gather("BlockLayer"))
            await add_members(world, "g", 2)
        else:
            for number in range(2):
                await add_free_member(world, "g", f"g-{number}", 2, **must_gather("BlockLayer"))
        await add_group(world, "plain", 1)
        await add_members(world, "plain", 1)
        await world.settle(60)
        await world.add_node("n1", cpu="2")
        await world.settle(60)
        assert await bound(world, "g-") == 2
        events = unwrap(await world.client.list(EVENTS_EVENTS, "default")).items
        (event,) = (e for e in events if e.reason == "NetworkTopologyIgnored")
        assert event.type == "Warning"
        assert event.regarding.kind == ("PodGroup" if declared == "PodGroup" else "Pod")
        assert event.note == (
            "gang.scheduling.koordinator.sh/network-topology-spec is ignored: the arguments of Coscheduling in profile "
            "koord-scheduler do not set awareNetworkTopology: true"
        )
        scheduler = world.scheduler
        manager = scheduler.state.derived(GangManager)
        (report,) = (
            one
            for one in report_gangs(manager, lambda uid: scheduler.queue.status_of(uid, 0.0))
            if one.name == "default/g"
        )
        assert report.warning == event.note

    run(story, awareNetworkTopology=False)


async def add_near(world: FaultyCluster, name: str, cpu: str, **spec: Any) -> str:
    """Add a pod that carries the selector; return its node."""
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    meta = {"name": name, "namespace": "default", "annotations": {A_NETWORK_TOPOLOGY_SELECTOR: "job-1"}}
    body = {"metadata": meta, "spec": {"schedulerName": "koord-scheduler", "containers": [container], **spec}}
    unwrap(await world.client.create(PODS, body))
    await world.settle(5)
    return await world.node_of(name)


def test_pods_that_carry_one_selector_gather_without_a_gang() -> None:
    async def story(world: FaultyCluster) -> None:
        await blocks(world, a_1="8", a_2="8", b_1="8", b_2="8", c_1="8")
        assert await add_near(world, "alone", "100m") == "c-1", "where the least would be left for others"
        await world.remove_pod("alone")
        home = await add_near(world, "first", "100m", nodeSelector={"block": "b"})
        assert await add_near(world, "second", "100m") == home
        other = await add_near(world, "third", "7900m")
        assert (other != home, other.split("-")[0]) == (True, "b")
        assert await add_near(world, "fourth", "100m") == home, "where most of them are"

    run(story)


def test_the_status_shows_the_network_and_is_written_only_when_it_changes() -> None:
    async def story(world: FaultyCluster) -> None:
        await blocks(world, a_1="1", a_2="1", b_1="1")
        await world.settle(30)
        found = unwrap(await world.client.get(CLUSTER_NETWORK_TOPOLOGIES, "default"))
        shown = [
            (d.topology_info.topology_layer, d.topology_info.topology_name, d.child_topology_names, d.node_num)
            for d in found.status.detail_status
        ]
        assert shown == [
            ("ClusterTopologyLayer", "", ("a", "b"), 3),
            ("BlockLayer", "a", (), 2),
            ("BlockLayer", "b", (), 1),
        ]
        (surveyor,) = (d for d in world.scheduler.controllers if isinstance(d, NetworkTopologyController))
        before = surveyor.writes
        await world.add_pod("plain", cpu="1", schedulerName="koord-scheduler")
        await world.settle(60)
        assert surveyor.writes == before
        await world.add_node("b-2", cpu="1", labels={"block": "b"})
        await world.settle(30)
        found = unwrap(await world.client.get(CLUSTER_NETWORK_TOPOLOGIES, "default"))
        assert found.status.detail_status[0].node_num == 4
        assert surveyor.writes == before + 1

    run(story)


def test_room_is_made_in_the_block_where_that_costs_least_and_nowhere_else_R21() -> None:
    async def story(world: FaultyCluster) -> None:
        for name, value in (("urgent", 100), ("middle", 10)):
            unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value}))
        await blocks(world, a_1="2", a_2="2", b_1="2", b_2="2", c_1="2")
        for block, priority in (("a", "middle"), ("b", ""), ("c", "")):
            for number in range(2 if block == "c" else 4):
                named = {"priorityClassName": priority} if priority else {}
                await world.add_pod(
                    f"low-{block}-{number}",
                    cpu="1",
                    schedulerName="koord-scheduler",
                    nodeSelector={"block": block},
                    terminationGracePeriodSeconds=0,
                    **named,
                )
        await world.settle(10)
        assert await bound(world, "low-") == 10
        for number in range(3):
            await add_free_member(world, "g", f"g-{number}", 3, **must_gather("BlockLayer"), priority="urgent")
        await world.settle(60)
        nodes = {pod.spec.node_name for pod in await pods_of(world, "g-")}
        assert nodes == {"b-1", "b-2"}
        assert len(await pods_of(world, "low-")) == 7

    run(story, enablePreemption=True)


def test_nobody_goes_where_no_block_could_take_all_R21() -> None:
    async def story(world: FaultyCluster) -> None:
        unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 100}))
        await blocks(world, a_1="2", b_1="2")
        for number in range(4):
            await world.add_pod(f"low-{number}", cpu="1", schedulerName="koord-scheduler")
        await world.settle(10)
        for number in range(3):
            await add_free_member(world, "g", f"g-{number}", 3, **must_gather("BlockLayer"), priority="urgent")
        await world.settle(60)
        assert (await bound(world, "g-"), await bound(world, "low-")) == (0, 4)
        assert (
            "preemption: no candidate topology nodes can accommodate job, desiredOfferSlot: 3, "
            "topology topologyNode BlockLayer/a: 2;topology topologyNode BlockLayer/b: 2, "
            "0/2 nodes are available: 2 Insufficient cpu."
        ) in await told(world, "g-0")

    run(story, enablePreemption=True)


BATCH = {"EnableInlineBatchSchedule": True}


def test_a_plan_is_carried_out_in_one_go_and_is_counted() -> None:
    async def story(world: FaultyCluster) -> None:
        batches: list[bool] = []
        gang_manager = world.scheduler.state.derived(GangManager)
        gang_manager.batch_done_callbacks.append(lambda held, seconds: batches.append(held))
        await blocks(world, a_1="3", a_2="9", b_1="8")
        for number in range(12):
            await add_free_member(world, "g", f"g-{number:02}", 12, **must_gather("BlockLayer"))
        await world.settle(20)
        assert Counter(pod.spec.node_name for pod in await pods_of(world, "g-")) == {"a-1": 3, "a-2": 9}
        assert batches == [True]

    run(story, BATCH)


def test_a_plan_that_does_not_hold_is_given_up_as_a_whole_R18() -> None:
    """Members that must be apart across nodes: each node alone would take one, all of them are in one zone."""

    async def story(world: FaultyCluster) -> None:
        batches: list[bool] = []
        gang_manager = world.scheduler.state.derived(GangManager)
        gang_manager.batch_done_callbacks.append(lambda held, seconds: batches.append(held))
        await blocks(world, a_1="4", a_2="4")
        apart = {
            "podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "block", "labelSelector": {"matchLabels": {L_POD_GROUP: "g"}}}
                ]
            }
        }
        await add_group(world, "g", 2, topology=must_gather("BlockLayer"))
        await add_members(world, "g", 2, affinity=apart)
        await world.settle(20)
        assert await bound(world, "g-") == 0
        words = [await told(world, f"g-{number}") for number in range(2)]
        assert any(
            "job failed due to job batch schedule failed, assumed 1 pods, failed 1 pods, first failed pod default/g-"
            in w
            for w in words
        )
        assert set(batches) == {False}

    run(story, BATCH)
