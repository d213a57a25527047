"""Gangs that want to be near each other, in a whole cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.custom import CLUSTER_NETWORK_TOPOLOGIES
from koord.api.model import convert
from koord.api.protocol import A_GANG_NETWORK_TOPOLOGY_SPEC
from koord.kube.refused import ok
from koord.scheduler.assembly import Assembly
from koord.scheduler.plugins.registry import REGISTRY
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.shell.gang_world import add_free_member, bound, pods_of, told
from tests.scheduler.shell.test_gang_stories import check
from tests.scheduler.shell.trouble import Troubled, troubled

LAYERS = [
    {"topologyLayer": "BlockLayer", "parentTopologyLayer": "ClusterTopologyLayer", "labelKey": ["block"]},
    {"topologyLayer": "NodeTopologyLayer", "parentTopologyLayer": "BlockLayer"},
]


def aware() -> Assembly:
    args = {"name": "Coscheduling", "args": {"awareNetworkTopology": True}}
    plugins = {"multiPoint": {"enabled": [{"name": "Coscheduling"}]}}
    profile = {"schedulerName": "koord-scheduler", "plugins": plugins, "pluginConfig": [args]}
    made = Assembly.of(convert({"profiles": [profile]}, KubeSchedulerConfiguration), REGISTRY)
    assert isinstance(made, Assembly), made
    return made


def run(story: Callable[[Troubled], Any]) -> None:
    async def main(clock: LoopClock) -> None:
        async with troubled(clock, aware()) as world:
            await story(world)
            await check(world)

    run_virtual(main)


async def blocks(world: Troubled, **cpus: str) -> None:
    body = {"metadata": {"name": "default"}, "spec": {"networkTopologySpec": LAYERS}}
    ok(await world.client.create(CLUSTER_NETWORK_TOPOLOGIES, body))
    for name, cpu in cpus.items():
        await world.add_node(name.replace("_", "-"), cpu=cpu, labels={"block": name.split("_")[0]})


def must_gather(layer: str) -> dict[str, str]:
    wish = {"gatherStrategy": [{"layer": layer, "strategy": "MustGather"}]}
    return {A_GANG_NETWORK_TOPOLOGY_SPEC: json.dumps(wish)}


def test_all_members_go_to_one_block() -> None:
    async def story(world: Troubled) -> None:
        await blocks(world, a_1="3", a_2="1", b_1="2", b_2="2", c_1="8")
        for number in range(4):
            await add_free_member(world, "g", f"g-{number}", 4, **must_gather("BlockLayer"))
        await world.settle(20)
        nodes = {pod.spec.node_name for pod in await pods_of(world, "g-")}
        assert len({name.split("-")[0] for name in nodes}) == 1
        assert "" not in nodes

    run(story)


def test_no_block_takes_all_until_a_node_comes() -> None:
    async def story(world: Troubled) -> None:
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
    async def story(world: Troubled) -> None:
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
