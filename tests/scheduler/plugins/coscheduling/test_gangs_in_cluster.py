"""Gangs are scheduled all or nothing, in a whole cluster in virtual time."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from koord.api.koordinator.custom_kinds import POD_GROUPS
from koord.api.koordinator.protocol import A_BIND_GANG_GROUP_ID, A_BIND_GANG_MEMBER_COUNT, A_GANG_GROUPS
from koord.api.kubernetes.builtin_kinds import CORE_EVENTS, NODES, PODS, PRIORITY_CLASSES
from koord.cli import scheduler_setup
from koord.embedded.cluster import InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest
from koord.scheduler.plugins.coscheduling.gang_manager import GangManager
from koord.scheduler.scheduler import Scheduler, StandaloneScheduler
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import WRITES, FaultyCluster, RequestFate, faulty_cluster
from tests.scheduler.plugins.coscheduling.gang_builders import (
    add_free_member,
    add_group,
    add_member,
    add_members,
    bound,
    held,
    phase,
    pods_of,
    told,
)


def run(story: Callable[[FaultyCluster], Any]) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            await story(world)
            await check(world)

    run_virtual(main)


async def check(world: FaultyCluster) -> None:
    """Check that no pod waits, no gang round is open and nothing is remembered in vain, besides the general checks."""
    await world.check()
    gang_manager = world.scheduler.state.derived(GangManager)
    assert gang_manager.round is None
    assert not gang_manager.lost_nodes
    assert not [
        uid for group in gang_manager.gangs.groups.values() for uid in gang_manager.gangs.waiting_in_group(group)
    ]
    assert not [group for group in gang_manager.gangs.groups.values() if group.binding]


@asynccontextmanager
async def successor(world: FaultyCluster) -> AsyncIterator[Scheduler]:
    """Let another scheduler take over, with nothing but what the server shows."""
    assert world.cluster.server is not None
    client = Client(
        InProcessTransport(world.cluster.server, "system:kube-scheduler"), clock=world.clock, qps=0, burst=0
    )
    informers = InformerFactory(client, world.clock)
    completed_config = scheduler_setup.scheduler_assembly()
    assert not isinstance(completed_config, str)
    leading = StandaloneScheduler(Scheduler(client, informers, world.clock, completed_config, seed=2))
    await leading.start()
    informers.start()
    await leading.scheduler.wait_synced()
    try:
        yield leading.scheduler
    finally:
        await leading.stop()
        await informers.stop()


def test_a_gang_is_bound_together_and_each_member_told_how_many_they_are() -> None:
    async def story(world: FaultyCluster) -> None:
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
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="8")
        await add_free_member(world, "g", "p-0", 2)
        await world.settle(10)
        assert await bound(world, "p-") == 0
        await add_free_member(world, "g", "p-1", 2)
        await world.settle(10)
        assert await bound(world, "p-") == 2

    run(story)


def test_members_wait_before_the_queue_and_wake_when_the_last_comes() -> None:
    async def story(world: FaultyCluster) -> None:
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
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="8")
        await add_members(world, "g", 2)
        await world.settle(10)
        assert held(world, "g-1") == "gang has not init, gangName: default/g, podName: default/g-1"
        await add_group(world, "g", 2)
        await world.settle(5)
        assert await bound(world, "g-") == 2

    run(story)


def test_lowering_the_minimum_lets_a_gang_go() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="8")
        await add_group(world, "g", 5)
        await add_members(world, "g", 2)
        await world.settle(10)
        assert await bound(world, "g-") == 0
        unwrap(await world.client.patch(POD_GROUPS, "g", {"spec": {"minMember": 2}}, "default", kind="merge"))
        await world.settle(5)
        assert await bound(world, "g-") == 2

    run(story)


@pytest.mark.parametrize("mode", ["Strict", "NonStrict"])
def test_when_one_does_not_fit_none_is_bound_and_all_are_told_once_R18(mode: str) -> None:
    async def story(world: FaultyCluster) -> None:
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
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="2")
        await add_group(world, "g", 3)
        await add_members(world, "g", 3)
        await world.settle(30)
        tries = {q.pod.name: q.attempts for q in world.scheduler.queue.pods()}
        await world.settle(200)
        assert {q.pod.name: q.attempts for q in world.scheduler.queue.pods()} == tries

    run(story)


def test_room_that_comes_later_is_used_R17() -> None:
    async def story(world: FaultyCluster) -> None:
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

    async def story(world: FaultyCluster) -> None:
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
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="4")
        await add_group(world, "g", 2)
        await add_member(world, "g", "g-0", cpu="64")
        await add_member(world, "g", "g-1")
        await add_member(world, "g", "g-2")
        await world.settle(20)
        assert {p.metadata.name for p in await pods_of(world, "g-") if p.spec.node_name} == {"g-1", "g-2"}

    run(story)


def test_two_gangs_that_fit_one_at_a_time_both_finish_R18() -> None:
    async def story(world: FaultyCluster) -> None:
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
    async def story(world: FaultyCluster) -> None:
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
    async def story(world: FaultyCluster) -> None:
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
    async def story(world: FaultyCluster) -> None:
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
    async def story(world: FaultyCluster) -> None:
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
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="8")
        await add_group(world, "g", 2)
        await add_member(world, "g", "g-0")
        await add_member(world, "g", "g-1", schedulingGates=[{"name": "example.com/wait"}])
        await world.settle(10)
        assert await bound(world, "g-") == 0
        unwrap(await world.client.patch(PODS, "g-1", {"spec": {"schedulingGates": None}}, "default", kind="merge"))
        await world.settle(10)
        assert await bound(world, "g-") == 2

    run(story)


# Faults ----------------------------------------------------------------------------------------------------------


def binding_of(name: str) -> Callable[[ApiRequest], bool]:
    return lambda request: request.method == "POST" and request.path.endswith(f"/pods/{name}/binding")


@pytest.mark.parametrize("fate", ["500", "429", "lost", "lost-after", "500-after", "409"])
def test_a_binding_that_fails_in_the_middle_leaves_no_partial_gang_R18(fate: Any) -> None:
    """Another pod wants the room that the member loses for a moment: it must not get it."""

    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="4")
        await add_group(world, "g", 4)
        failures = iter([fate])
        unlucky = binding_of("g-2")
        world.wire.fate = lambda request: next(failures, "well") if unlucky(request) else "well"
        await add_members(world, "g", 4)
        await world.add_pod("greedy", cpu="1", schedulerName="koord-scheduler")
        await world.settle(60)
        assert await bound(world, "g-") == 4
        assert await world.node_of("greedy") == ""

    run(story)


@pytest.mark.parametrize("fate", ["500", "429", "lost", "409"])
def test_a_member_keeps_its_place_from_more_important_pods_while_its_binding_is_tried_again(fate: Any) -> None:
    async def story(world: FaultyCluster) -> None:
        high = {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"}
        unwrap(await world.client.create(PRIORITY_CLASSES, high))
        await world.add_node("n0", cpu="4")
        await add_group(world, "g", 4)
        unlucky = binding_of("g-2")
        world.wire.fate = lambda request: fate if unlucky(request) else "well"
        await add_members(world, "g", 4)
        await world.settle(2)
        assert await bound(world, "g-") == 3
        await world.add_pod("greedy", cpu="1", schedulerName="koord-scheduler", priorityClassName="high")
        await world.settle(20)
        tries = [request for request in world.wire.requests if unlucky(request)]
        most = 12 if fate != "429" else 40  # the client repeats by itself what the server had no time for
        assert 3 < len(tries) < most, "it is tried with growing pauses"
        world.wire.fate = lambda _: "well"
        await world.settle(30)
        assert await bound(world, "g-") == 4
        assert await world.node_of("greedy") == ""

    run(story)


def test_a_member_whose_binding_is_forbidden_is_told_and_keeps_no_place() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="4")
        await add_group(world, "g", 2)
        unlucky = binding_of("g-1")
        world.wire.fate = lambda request: "403" if unlucky(request) else "well"
        await add_members(world, "g", 2)
        await world.settle(3)
        assert (await told(world, "g-1")).startswith('running Bind plugin "DefaultBinder": ')
        assert not world.scheduler.state.is_assumed((await world.pod("g-1")).metadata.uid)
        world.wire.fate = lambda _: "well"
        await world.settle(60)
        assert await bound(world, "g-") == 2

    run(story)


def test_a_place_is_not_kept_on_a_node_that_is_gone() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="2")
        await add_group(world, "g", 2)
        unlucky = binding_of("g-1")
        world.wire.fate = lambda request: "500" if unlucky(request) else "well"
        await add_members(world, "g", 2)
        await world.settle(2)
        await world.add_node("n1", cpu="2")
        unwrap(await world.client.delete(NODES, "n0"))
        await world.settle(2)
        world.wire.fate = lambda _: "well"
        await world.settle(60)
        assert await world.node_of("g-1") == "n1"

    run(story)


def test_a_binding_that_never_succeeds_keeps_the_others_and_goes_on_trying() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="4")
        await add_group(world, "g", 3)
        unlucky = binding_of("g-1")
        world.wire.fate = lambda request: "500" if unlucky(request) else "well"
        await add_members(world, "g", 3)
        await world.settle(30)
        assert await bound(world, "g-") == 2
        world.wire.fate = lambda request: "well"
        await world.settle(60)
        assert await bound(world, "g-") == 3

    run(story)


def test_a_member_deleted_while_its_gang_waits_sends_the_others_back() -> None:
    """Its fellows wait at Permit because one cannot be tried: it is on its way to a node that does not answer."""

    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="4")
        await add_group(world, "g", 3)
        await add_members(world, "g", 2)
        await world.settle(5)
        gang_manager = world.scheduler.state.derived(GangManager)
        gang = gang_manager.gangs.gangs["default/g"]
        await add_member(world, "g", "g-2")
        await world.remove_pod("g-0")
        await world.settle(30)
        assert len(gang.waiting) == 0
        counts = await bound(world, "g-")
        assert counts in (0, 2), "either the gang was complete when it was tried, or nobody is bound"
        await add_member(world, "g", "g-3")
        await world.settle(30)
        assert await bound(world, "g-") == 3

    run(story)


def test_a_new_leader_in_the_middle_of_a_gang_counts_the_bound_from_live_pods() -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            await world.add_node("n0", cpu="4")
            await add_group(world, "g", 4)
            allowed: Iterator[RequestFate] = iter(["well", "well"])
            world.wire.fate = lambda request: (
                next(allowed, "lost") if request.method == "POST" and request.path.endswith("/binding") else "well"
            )
            await add_members(world, "g", 4)
            await world.settle(0.01)
            assert await bound(world, "g-") == 2
            world.wire.cut = True  # the old leader is gone with what it had in mind
            async with successor(world) as next_one:
                await clock.sleep(60)
                assert await bound(world, "g-") == 4
                gang_manager = next_one.state.derived(GangManager)
                assert len(gang_manager.gangs.gangs["default/g"].bound) == 4
                assert gang_manager.round is None

    run_virtual(main)


def test_the_pod_group_is_deleted_in_the_middle_and_made_again() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="1")
        await add_group(world, "g", 2)
        await add_members(world, "g", 2)
        await world.settle(20)
        unwrap(await world.client.delete(POD_GROUPS, "g", "default"))
        await world.add_node("n1", cpu="4")
        await world.settle(30)
        assert await bound(world, "g-") == 0
        assert held(world, "g-1") == "gang has not init, gangName: default/g, podName: default/g-1"
        await add_group(world, "g", 2)
        await world.settle(400)
        assert await bound(world, "g-") == 2

    run(story)


def test_the_status_follows_the_members_and_is_written_only_when_it_changes_R15() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="4")
        await add_group(world, "g", 2)
        await world.settle(5)
        assert await phase(world, "g") == "Pending"
        await add_members(world, "g", 2)
        await world.settle(5)
        assert await phase(world, "g") == "Scheduled"
        for expected, state in (("Running", "Running"), ("Finished", "Succeeded")):
            for name in ("g-0", "g-1"):
                patch = {"status": {"phase": state}}
                unwrap(await world.client.patch(PODS, name, patch, "default", kind="merge", subresource="status"))
            await world.settle(5)
            assert await phase(world, "g") == expected

        def writes() -> int:
            paths = (r.path for r in world.wire.requests if r.method == "PATCH")
            return sum(1 for path in paths if "/podgroups/" in path)

        before = writes()
        assert before <= 5
        for name in ("g-0", "g-1"):
            await world.remove_pod(name)
        await world.settle(30)
        assert (await phase(world, "g"), writes()) == ("Finished", before), "what is over is over"

    run(story)


@pytest.mark.parametrize("fate", ["500", "lost", "lost-after", "409"])
def test_a_status_that_could_not_be_written_is_written_later(fate: Any) -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="4")
        failures = iter([fate] * 3)
        world.wire.fate = lambda request: (
            next(failures, "well") if request.method == "PATCH" and "/podgroups/" in request.path else "well"
        )
        await add_group(world, "g", 2)
        await add_members(world, "g", 2)
        await world.settle(60)
        assert await phase(world, "g") == "Scheduled"
        await world.remove_pod("g-1")
        await world.settle(60)
        assert await phase(world, "g") == "Scheduling"

    run(story)


def test_owners_learn_of_a_failed_round_from_an_event_of_the_pod_group_P6() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n0", cpu="1")
        await add_group(world, "g", 2)
        await world.settle(5)
        await add_members(world, "g", 2)
        await world.settle(60)
        events = unwrap(await world.client.list(CORE_EVENTS, namespace="default")).items
        told_ = {(e.reason, e.message) for e in events if e.involved_object.kind == "PodGroup"}
        assert ("Pending", "0 of at least 2 members are there") in told_
        (failure,) = (message for reason, message in told_ if reason == "FailedScheduling")
        assert 'due to member Pod "default/g-1" is unschedulable' in failure

    run(story)


@pytest.mark.parametrize("seed", range(6))
def test_no_strict_gang_stays_bound_in_part_whatever_happens_R18(seed: int) -> None:
    """Gangs come, lose members and get new ones, nodes come, and the wire fails; then the wire is well."""

    async def main(clock: LoopClock) -> None:
        chance = random.Random(seed)
        async with faulty_cluster(clock, seed=seed) as world:
            fates: tuple[Any, ...] = ("well",) * 12 + ("500", "lost", "lost-after", "429", "500-after")
            world.wire.fate = lambda request: chance.choice(fates) if request.method in WRITES else "well"
            await world.add_node("n0", cpu="6")
            for number in range(4):
                await add_group(world, f"g{number}", 3, mode=chance.choice(["", "NonStrict"]))
            for step in range(24):
                gang = f"g{chance.randrange(4)}"
                if chance.random() < 0.2:
                    await world.remove_pod(f"{gang}-{chance.randrange(6)}")
                elif chance.random() < 0.1:
                    await world.add_node(f"more{step}", cpu="1")
                else:
                    name = f"{gang}-{chance.randrange(6)}"
                    if not await pods_of(world, name):
                        await add_member(world, gang, name)
                await clock.sleep(chance.choice([0.0, 0.0, 0.3, 3.0]))
            world.wire.fate = lambda request: "well"
            await world.add_node("last", cpu="24")
            for number in range(4):
                for member in range(6):
                    if not await pods_of(world, f"g{number}-{member}"):
                        await add_member(world, f"g{number}", f"g{number}-{member}")
            await world.settle(900)
            assert [await bound(world, f"g{number}-") for number in range(4)] == [6] * 4
            await check(world)

    run_virtual(main)
