"""Gangs and Reservations in a whole cluster: reserve pods as members, and reservations that members use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from koord.api.koordinator.custom_kinds import RESERVATIONS
from koord.api.koordinator.protocol import A_BIND_GANG_MEMBER_COUNT, L_POD_GROUP
from koord.api.koordinator.scheduling import Reservation
from koord.cli.up import local_scheduler
from koord.kube.transport.api_error import unwrap
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import FaultyCluster, faulty_cluster
from tests.scheduler.plugins.coscheduling.gang_builders import add_group, add_members, bound, phase, pods_of
from tests.scheduler.plugins.reservation.test_reservations_in_cluster import check


def run(story: Callable[[FaultyCluster], Any]) -> None:
    async def main(clock: LoopClock) -> None:
        completed_config = local_scheduler.scheduler_assembly()
        assert not isinstance(completed_config, str), completed_config
        async with faulty_cluster(clock, completed_config) as world:
            await story(world)
            await check(world)

    run_virtual(main)


async def reserve(world: FaultyCluster, name: str, cpu: str = "1", gang: str = "", once: bool = True) -> None:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    template: dict[str, Any] = {"spec": {"schedulerName": "koord-scheduler", "containers": [container]}}
    if gang:
        template["metadata"] = {"namespace": "default", "labels": {L_POD_GROUP: gang}}
    owners = [{"labelSelector": {"matchLabels": {L_POD_GROUP: "g"}}}]
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
