"""Gangs in a whole cluster in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from koord.api.custom import POD_GROUPS
from koord.api.protocol import A_BIND_GANG_GROUP_ID, A_BIND_GANG_MEMBER_COUNT, A_GANG_GROUPS
from koord.kube.refused import ok
from koord.scheduler.plugins.coscheduling.company import Company
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.shell.gang_world import (
    add_free_member,
    add_group,
    add_member,
    add_members,
    bound,
    held,
    pods_of,
    told,
)
from tests.scheduler.shell.trouble import Troubled, troubled


def run(story: Callable[[Troubled], Any]) -> None:
    async def main(clock: LoopClock) -> None:
        async with troubled(clock) as world:
            await story(world)
            await check(world)

    run_virtual(main)


async def check(world: Troubled) -> None:
    """Besides what must hold for any pods: nobody waits, no round is left open, nothing is remembered in vain."""
    await world.check()
    company = world.scheduler.state.derived(Company)
    assert company.round is None
    assert not company.stranded
    assert not [uid for group in company.gangs.groups.values() for uid in company.gangs.waiting(group)]
    assert not [group for group in company.gangs.groups.values() if group.binding]


def test_a_gang_is_bound_together_and_each_member_told_how_many_they_are() -> None:
    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="8")
        await add_group(world, "g", 3)
        await add_members(world, "g", 3)
        await world.settle(10)
        pods = await pods_of(world, "g-")
        assert [pod.spec.node_name for pod in pods] == ["n0"] * 3
        for pod in pods:
            assert pod.metadata.annotations[A_BIND_GANG_GROUP_ID] == "default/g"
            assert pod.metadata.annotations[A_BIND_GANG_MEMBER_COUNT] == "3"

    run(story)


def test_annotations_alone_make_a_gang() -> None:
    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="8")
        await add_free_member(world, "g", "p-0", 2)
        await world.settle(10)
        assert await bound(world, "p-") == 0
        await add_free_member(world, "g", "p-1", 2)
        await world.settle(10)
        assert await bound(world, "p-") == 2

    run(story)


def test_members_wait_before_the_queue_and_wake_when_the_last_comes() -> None:
    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="8")
        await add_group(world, "g", 3)
        await add_members(world, "g", 2)
        await world.settle(10)
        assert held(world, "g-0") == (
            "gangGroup [default/g] basic check: memberGangs [default/g] child pod not collect enough, "
            "current gang: default/g, podName: default/g-0"
        )
        assert await told(world, "g-0") == "", "before the queue nobody writes conditions, as with Koordinator"
        await add_member(world, "g", "g-2")
        await world.settle(5)
        assert await bound(world, "g-") == 3

    run(story)


def test_members_that_come_before_their_pod_group_wake_when_it_is_made() -> None:
    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="8")
        await add_members(world, "g", 2)
        await world.settle(10)
        assert held(world, "g-1") == "gang has not init, gangName: default/g, podName: default/g-1"
        await add_group(world, "g", 2)
        await world.settle(5)
        assert await bound(world, "g-") == 2

    run(story)


def test_lowering_the_minimum_lets_a_gang_go() -> None:
    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="8")
        await add_group(world, "g", 5)
        await add_members(world, "g", 2)
        await world.settle(10)
        assert await bound(world, "g-") == 0
        ok(await world.client.patch(POD_GROUPS, "g", {"spec": {"minMember": 2}}, "default", kind="merge"))
        await world.settle(5)
        assert await bound(world, "g-") == 2

    run(story)


@pytest.mark.parametrize("mode", ["Strict", "NonStrict"])
def test_when_one_does_not_fit_none_is_bound_and_all_are_told_once_R18(mode: str) -> None:
    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="2")
        await add_group(world, "g", 3, mode=mode)
        await add_members(world, "g", 3)
        await world.settle(60)
        assert await bound(world, "g-") == 0
        for name in ("g-0", "g-1"):
            assert 'GangGroup "default/g" gets rejected due to member Pod "default/g-2"' in await told(world, name)
        assert "Insufficient cpu" in await told(world, "g-2")
        await world.add_pod("plain", cpu="2", schedulerName="koord-scheduler")
        await world.settle(5)
        assert await world.node_of("plain") == "n0", "what the gang cannot use is there for others"

    run(story)


def test_a_gang_without_room_is_tried_again_only_when_something_changed_P15() -> None:
    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="2")
        await add_group(world, "g", 3)
        await add_members(world, "g", 3)
        await world.settle(30)
        tries = {q.pod.name: q.attempts for q in world.scheduler.queue.pods()}
        await world.settle(200)
        assert {q.pod.name: q.attempts for q in world.scheduler.queue.pods()} == tries

    run(story)


def test_room_that_comes_later_is_used_R17() -> None:
    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="2")
        await add_group(world, "g", 20)
        await add_members(world, "g", 20)
        await world.settle(60)
        for number in range(1, 5):
            await world.add_node(f"n{number}", cpu="4")
            await world.settle(15)
            assert await bound(world, "g-") == 0
        await world.add_node("n5", cpu="4")
        await world.settle(15)
        assert await bound(world, "g-") == 20

    run(story)


def test_waking_any_member_wakes_the_group_R16() -> None:
    """The member that did not fit is deleted, with it the one that would have been woken; another takes its place."""

    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="2")
        await add_group(world, "g", 2)
        await add_member(world, "g", "g-0")
        await add_member(world, "g", "g-1", cpu="3")
        await add_member(world, "g", "g-2", cpu="3")
        await world.settle(60)
        assert await bound(world, "g-") == 0
        await world.remove_pod("g-2")
        await world.settle(5)
        await world.add_node("n1", cpu="3")
        await world.settle(20)
        assert await bound(world, "g-") == 2

    run(story)


def test_a_member_too_big_does_not_keep_the_minimum_from_starting_R19() -> None:
    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="4")
        await add_group(world, "g", 2)
        await add_member(world, "g", "g-0", cpu="64")
        await add_member(world, "g", "g-1")
        await add_member(world, "g", "g-2")
        await world.settle(20)
        assert {p.metadata.name for p in await pods_of(world, "g-") if p.spec.node_name} == {"g-1", "g-2"}

    run(story)


def test_two_gangs_that_fit_one_at_a_time_both_finish_R18() -> None:
    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="4")
        for gang in ("a", "b"):
            await add_group(world, gang, 3)
        for number in range(3):  # members come in turns
            for gang in ("a", "b"):
                await add_member(world, gang, f"{gang}-{number}")
        await world.settle(30)
        counts = sorted([await bound(world, "a-"), await bound(world, "b-")])
        assert counts == [0, 3]
        first = "a" if await bound(world, "a-") else "b"
        for number in range(3):
            await world.remove_pod(f"{first}-{number}")
        await world.settle(30)
        assert await bound(world, "b-" if first == "a" else "a-") == 3

    run(story)


def test_one_impossible_gang_blocks_nobody_R19() -> None:
    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="8")
        await add_group(world, "huge", 20)
        await add_members(world, "huge", 20)
        for number in range(4):
            await add_group(world, f"small{number}", 2)
            await add_members(world, f"small{number}", 2)
        await world.settle(30)
        assert [await bound(world, f"small{n}-") for n in range(4)] == [2] * 4
        assert await bound(world, "huge-") == 0

    run(story)


def test_gangs_of_a_group_start_together_or_not_at_all() -> None:
    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="8")
        for name, minimum in (("ga", 2), ("gb", 1)):
            await add_group(world, name, minimum, with_=("ga", "gb"))
        await add_members(world, "ga", 2)
        await world.settle(10)
        assert held(world, "ga-0").startswith("gangGroup [default/ga default/gb] basic check: memberGangs ")
        await add_members(world, "gb", 1)
        await world.settle(10)
        pods = await pods_of(world, "g")
        assert {pod.metadata.annotations[A_BIND_GANG_MEMBER_COUNT] for pod in pods} == {"3"}
        assert {pod.metadata.annotations[A_BIND_GANG_GROUP_ID] for pod in pods} == {"default/ga,default/gb"}

    run(story)


def test_a_group_whose_partner_does_not_fit_is_not_bound_in_part() -> None:
    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="3")
        groups = {A_GANG_GROUPS: json.dumps(["default/ga", "default/gb"])}
        for number in range(2):
            await add_free_member(world, "ga", f"ga-{number}", 2, **groups)
            await add_free_member(world, "gb", f"gb-{number}", 2, **groups)
        await world.settle(60)
        assert await bound(world, "g") == 0
        await world.add_node("n1", cpu="1")
        await world.settle(30)
        assert await bound(world, "g") == 4

    run(story)


def test_members_beyond_the_minimum_go_alone_once_it_has_started() -> None:
    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="3")
        await add_group(world, "g", 2)
        await add_members(world, "g", 4)
        await world.settle(30)
        pods = await pods_of(world, "g-")
        assert sum(1 for pod in pods if pod.spec.node_name) == 3
        marked = [pod for pod in pods if A_BIND_GANG_MEMBER_COUNT in (pod.metadata.annotations or {})]
        assert len(marked) == 2
        (left,) = (pod for pod in pods if not pod.spec.node_name)
        assert "Insufficient cpu" in await told(world, left.metadata.name)

    run(story)


def test_a_member_with_a_scheduling_gate_is_not_collected_yet() -> None:
    async def story(world: Troubled) -> None:
        await world.add_node("n0", cpu="8")
        await add_group(world, "g", 2)
        await add_member(world, "g", "g-0")
        await add_member(world, "g", "g-1", schedulingGates=[{"name": "example.com/wait"}])
        await world.settle(10)
        assert await bound(world, "g-") == 0
        from koord.api.builtin import PODS

        ok(await world.client.patch(PODS, "g-1", {"spec": {"schedulingGates": None}}, "default", kind="merge"))
        await world.settle(10)
        assert await bound(world, "g-") == 2

    run(story)
