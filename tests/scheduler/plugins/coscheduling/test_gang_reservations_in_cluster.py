"""Gangs and Reservations in a whole cluster: reserve pods as members, and reservations that members use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from koord.api.config.component import PluginConfig
from koord.api.config.scheduler import configuration
from koord.api.koordinator.custom_kinds import RESERVATIONS
from koord.api.koordinator.protocol import A_BIND_GANG_MEMBER_COUNT, A_RESERVATION_AFFINITY, L_POD_GROUP
from koord.api.koordinator.scheduling import Reservation
from koord.api.kubernetes.builtin_kinds import PODS, PRIORITY_CLASSES
from koord.kube.transport.api_error import unwrap
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.plugins.registry import REGISTRY
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import FaultyCluster, faulty_cluster
from tests.scheduler.plugins.coscheduling.gang_builders import add_group, add_members, bound, phase, pods_of, told
from tests.scheduler.plugins.coscheduling.test_network_gangs_in_cluster import blocks, must_gather
from tests.scheduler.plugins.reservation.test_reservations_in_cluster import check


def completed(**coscheduling_args: Any) -> CompletedConfig:
    """Return the shipped configuration with these arguments of Coscheduling."""
    config = configuration.configuration()
    (profile,) = config.profiles
    kept = tuple(one for one in profile.plugin_config if one.name != "Coscheduling")
    profile = msgspec.structs.replace(
        profile, plugin_config=(*kept, PluginConfig(name="Coscheduling", args=coscheduling_args))
    )
    made = CompletedConfig.complete(msgspec.structs.replace(config, profiles=(profile,)), REGISTRY)
    assert isinstance(made, CompletedConfig), made
    return made


def run(story: Callable[[FaultyCluster], Any], **coscheduling_args: Any) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, completed(**coscheduling_args)) as world:
            await story(world)
            await check(world)

    run_virtual(main)


async def reserve(
    world: FaultyCluster,
    name: str,
    cpu: str = "1",
    gang: str = "",
    once: bool = True,
    owners: list[Any] | None = None,
    **pod_spec: Any,
) -> None:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    template: dict[str, Any] = {"spec": {"schedulerName": "koord-scheduler", "containers": [container], **pod_spec}}
    if gang:
        template["metadata"] = {"namespace": "default", "labels": {L_POD_GROUP: gang}}
    owners = owners or [{"labelSelector": {"matchLabels": {L_POD_GROUP: "g"}}}]
    spec = {"template": template, "owners": owners, "ttl": "0s", "allocateOnce": once}
    unwrap(await world.client.create(RESERVATIONS, {"metadata": {"name": name}, "spec": spec}))


async def reserved(world: FaultyCluster) -> dict[str, Reservation]:
    return {r.metadata.name: r for r in unwrap(await world.client.list(RESERVATIONS)).items}


def test_reservations_are_members_and_get_their_room_together_R18() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="3")
        await add_group(world, "r", 2)
        for number in range(2):
            await reserve(world, f"r-{number}", cpu="2", gang="r")
        await world.settle(30)
        assert {r.status.phase for r in (await reserved(world)).values()} <= {"", "Pending"}
        await world.add_node("n1", cpu="3")
        await world.settle(30)
        held = await reserved(world)
        assert {r.status.phase for r in held.values()} == {"Available"}
        assert {r.status.node_name for r in held.values()} == {"n0", "n1"}
        assert {r.metadata.annotations[A_BIND_GANG_MEMBER_COUNT] for r in held.values()} == {"2"}
        assert await phase(world, "r") == "Scheduled"

    run(story)


def test_pods_and_reservations_in_one_gang_stand_and_fall_together_R18() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="2")
        await add_group(world, "m", 3)
        await reserve(world, "m-kept", gang="m")
        await add_members(world, "m", 2)
        await world.settle(30)
        assert await bound(world, "m-") == 0
        assert (await reserved(world))["m-kept"].status.node_name == ""
        await world.add_node("n1", cpu="1")
        await world.settle(30)
        assert await bound(world, "m-") == 2
        assert (await reserved(world))["m-kept"].status.phase == "Available"

    run(story)


def test_a_reservation_that_leaves_an_incomplete_gang_is_not_counted() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="8")
        await add_group(world, "m", 2)
        await reserve(world, "m-kept", gang="m")
        await world.settle(5)
        unwrap(await world.client.delete(RESERVATIONS, "m-kept"))
        await add_members(world, "m", 1)
        await world.settle(30)
        assert await bound(world, "m-") == 0
        await add_members(world, "m", 1, first=1)
        await world.settle(30)
        assert await bound(world, "m-") == 2

    run(story)


def test_members_use_room_that_is_reserved_for_them_R30() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="4")
        for number in range(4):
            await reserve(world, f"kept-{number}")
        await world.settle(10)
        assert {r.status.phase for r in (await reserved(world)).values()} == {"Available"}
        await add_group(world, "g", 4)
        await add_members(world, "g", 3)
        await world.add_pod("stranger", schedulerName="koord-scheduler")
        await world.settle(30)
        assert await bound(world, "g-") == 0, "the gang is not complete yet"
        assert await world.node_of("stranger") == "", "and its room is nobody else's"
        await add_members(world, "g", 1, first=3)
        await world.settle(30)
        assert await bound(world, "g-") == 4
        owners = [o.name for r in (await reserved(world)).values() for o in r.status.current_owners]
        assert sorted(owners) == sorted(p.metadata.name for p in await pods_of(world, "g-"))
        assert await world.node_of("stranger") == ""

    run(story)


def test_a_gang_that_does_not_fit_gives_reserved_room_back_R18() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="2")
        for number in range(2):
            await reserve(world, f"kept-{number}", once=False)
        await world.settle(10)
        await add_group(world, "g", 3)
        await add_members(world, "g", 3)
        await world.settle(30)
        assert await bound(world, "g-") == 0
        assert not [o for r in (await reserved(world)).values() for o in r.status.current_owners]
        await world.add_node("n1", cpu="1")
        await world.settle(30)
        assert await bound(world, "g-") == 3

    run(story)


async def fill(world: FaultyCluster, block: str, count: int) -> None:
    for number in range(count):
        await world.add_pod(
            f"low-{block}-{number}", cpu="1", schedulerName="koord-scheduler", nodeSelector={"block": block}
        )


async def owners_of(world: FaultyCluster) -> list[str]:
    return sorted(o.name for r in (await reserved(world)).values() for o in r.status.current_owners)


TOPOLOGIES = pytest.mark.parametrize("gathers", [True, False], ids=["topology", "no-topology"])


@TOPOLOGIES
@pytest.mark.parametrize("whose", ["all", "each", "one", "some", "larger"])
def test_a_gang_binds_into_its_reservations_on_full_nodes(whose: str, gathers: bool) -> None:
    """All members may use any, each has one of its own, all share one, two of four, or each is larger than its own."""

    async def story(world: FaultyCluster) -> None:
        await blocks(world, a_1="3", a_2="3", b_1="3")
        await fill(world, "b", 3)
        cpu = "500m" if whose == "larger" else "1"
        for number in range(2 if whose == "some" else 4):
            owners = [{"object": {"name": f"g-{number}", "namespace": "default"}}] if whose == "each" else None
            if whose != "one":
                await reserve(world, f"kept-{number}", cpu=cpu, owners=owners, nodeSelector={"block": "a"})
        if whose == "one":
            for node in ("a-1", "a-2"):
                await reserve(world, f"kept-{node}", cpu="2", once=False, nodeName=node)
        await world.settle(10)
        await fill(world, "a", 4 if whose == "some" else 2)
        await world.settle(10)
        if whose == "some":
            await world.remove_pod("low-a-0")
            await world.remove_pod("low-a-1")
        assert {r.status.phase for r in (await reserved(world)).values()} == {"Available"}
        await add_group(world, "g", 4, topology=must_gather("BlockLayer") if gathers else None)
        await add_members(world, "g", 4)
        await world.settle(30)
        assert await bound(world, "g-") == 4, await told(world, "g-0")
        assert len(await owners_of(world)) == (2 if whose == "some" else 4)

    run(story, awareNetworkTopology=True)


@TOPOLOGIES
def test_a_member_that_its_affinity_keeps_waiting_for_a_reservation_is_woken_by_it(gathers: bool) -> None:
    async def story(world: FaultyCluster) -> None:
        await blocks(world, a_1="4")
        await add_group(world, "g", 2, topology=must_gather("BlockLayer") if gathers else None)
        await add_members(world, "g", 1)
        note = {A_RESERVATION_AFFINITY: '{"name":"late"}'}
        meta = {"name": "g-late", "namespace": "default", "labels": {L_POD_GROUP: "g"}, "annotations": note}
        container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "1"}}}
        body = {"metadata": meta, "spec": {"schedulerName": "koord-scheduler", "containers": [container]}}
        unwrap(await world.client.create(PODS, body))
        await world.settle(30)
        assert await bound(world, "g-") == 0
        await reserve(world, "late", owners=[{"object": {"name": "g-late", "namespace": "default"}}])
        await world.settle(20)
        assert (await bound(world, "g-"), await owners_of(world)) == (2, ["g-late"])

    run(story, awareNetworkTopology=True)


@TOPOLOGIES
@pytest.mark.parametrize("kept", [0, 2])
def test_a_gang_that_preempted_binds_when_its_victims_are_gone(kept: int, gathers: bool) -> None:
    """R17, R21: with and without reservations of its own; victims take their time."""

    async def story(world: FaultyCluster) -> None:
        unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": "urgent"}, "value": 100}))
        await blocks(world, a_1="2", a_2="2", b_1="1")
        for number in range(kept):
            await reserve(world, f"kept-{number}", nodeSelector={"block": "a"})
        await world.settle(5)
        await fill(world, "a", 4 - kept)
        await fill(world, "b", 1)
        await world.settle(10)
        assert await bound(world, "low-") == 5 - kept
        await add_group(world, "g", 4, topology=must_gather("BlockLayer") if gathers else None)
        await add_members(world, "g", 4, priorityClassName="urgent")
        await world.settle(40)
        leaving = [p.metadata.name for p in await pods_of(world, "low-") if p.metadata.deletion_timestamp is not None]
        assert len(leaving) == 4 - kept
        for name in leaving:
            await world.remove_pod(name)
            await world.settle(3)
        await world.settle(12)
        assert await bound(world, "g-") == 4, await told(world, "g-0")
        assert len(await owners_of(world)) == kept

    run(story, awareNetworkTopology=True, enablePreemption=True)
