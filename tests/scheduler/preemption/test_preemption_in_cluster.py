"""Preemption in a running scheduler: what the victims and the preemptor go through."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS, NODES, PODS, PRIORITY_CLASSES
from koord.api.kubernetes.pod import Pod
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest
from koord.policy.eviction import parse_record
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import FaultyCluster, RequestFate, faulty_cluster

CLASSES = {"low": 1, "middle": 5, "high": 10}


def run(story: Callable[[FaultyCluster], Any], seed: int = 1) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, seed=seed) as world:
            for name, value in CLASSES.items():
                unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value}))
            await story(world)

    run_virtual(main)


async def crowd(world: FaultyCluster, *nodes: str) -> None:
    """Add nodes of 4 cpu with two pods of 2 cpu each, of low priority."""
    for node in nodes:
        await world.add_node(node)
        for i in range(2):
            await world.add_pod(f"{node}-{i}", cpu="2", nodeName=node, priorityClassName="low")
    await world.settle(1)


async def leaving(world: FaultyCluster) -> list[str]:
    pods = unwrap(await world.client.list(PODS)).items
    return sorted(pod.metadata.name for pod in pods if pod.metadata.deletion_timestamp)


async def finish(world: FaultyCluster) -> None:
    """Remove terminating pods, as a kubelet does when their grace period is over."""
    for name in await leaving(world):
        await world.remove_pod(name)


def condition(pod: Pod, kind: str) -> Any:
    return next(c for c in pod.status.conditions if c.type == kind)


def test_room_is_made_kept_and_taken() -> None:
    async def story(world: FaultyCluster) -> None:
        await crowd(world, "n0")
        await world.add_pod("great", cpu="4", priorityClassName="high")
        await world.settle(1)
        great = await world.pod("great")
        assert great.status.nominated_node_name == "n0"
        refused = condition(great, "PodScheduled")
        assert (refused.reason, refused.message) == (
            "Unschedulable",
            "0/1 nodes are available: 1 Insufficient cpu.",
        )
        assert await leaving(world) == ["n0-0", "n0-1"]
        target = condition(await world.pod("n0-0"), "DisruptionTarget")
        assert (target.status, target.reason, target.message) == (
            "True",
            "PreemptionByScheduler",
            "default-scheduler: preempting to accommodate a higher priority pod",
        )

        await world.remove_pod("n0-0")  # half of the room is there: it is not for others
        await world.add_pod("small", cpu="1", priorityClassName="middle")
        await world.settle(1)
        assert await world.node_of("small") == ""
        assert "Insufficient cpu" in condition(await world.pod("small"), "PodScheduled").message

        await finish(world)
        await world.settle()
        assert await world.node_of("great") == "n0"
        assert (await world.pod("great")).status.nominated_node_name in ("", "n0")
        assert len(world.scheduler.queue.nominations) == 0
        assert await world.node_of("small") == ""
        notes = {
            (e.regarding.name, e.note, e.action)
            for e in unwrap(await world.client.list(EVENTS_EVENTS)).items
            if e.reason == "Preempted"
        }
        note = f"Preempted by pod {great.metadata.uid} on node n0"
        assert notes == {("n0-0", note, "Preempting"), ("n0-1", note, "Preempting")}
        records = sorted(world.scheduler.evictor.ledger, key=lambda one: one.name)
        assert [(one.key, one.outcome, one.plugin, one.rule) for one in records] == [
            ("default/n0-0", "evicted", "DefaultPreemption", "Preemption"),
            ("default/n0-1", "evicted", "DefaultPreemption", "Preemption"),
        ]
        assert {(one.request, one.request_uid, one.node) for one in records} == {
            ("Pod default/great", great.metadata.uid, "n0")
        }
        low, high = (f"priority {value}" for value in (CLASSES["low"], CLASSES["high"]))
        assert {(one.measured, one.threshold) for one in records} == {(low, f"default/great has {high}")}
        assert {one.rank[:6] for one in records} == {"1 of 2", "2 of 2"}
        carried = [
            parse_record(e.metadata.annotations)
            for e in unwrap(await world.client.list(EVENTS_EVENTS)).items
            if e.reason == "Preempted"
        ]
        assert sorted(carried, key=lambda one: one.name) == records  # type: ignore[union-attr]
        await world.check()

    run(story)


def test_while_victims_leave_no_others_are_taken() -> None:
    async def story(world: FaultyCluster) -> None:
        await crowd(world, "n0", "n1")
        await world.add_pod("great", cpu="4", priorityClassName="high")
        await world.settle(1)
        gone = await leaving(world)
        assert len(gone) == 2
        room = {"cpu": "4", "memory": "16Gi", "pods": "110"}
        taint = {"key": "k", "effect": "NoSchedule"}
        body = {"metadata": {"name": "n2"}, "spec": {"taints": [taint]}, "status": {"allocatable": room}}
        unwrap(await world.client.create(NODES, body))  # wakes it, and is of no use
        await world.settle(60)
        assert await leaving(world) == gone
        words = condition(await world.pod("great"), "PodScheduled").message
        assert words.endswith("preemption: not eligible due to a terminating pod on the nominated node.")
        await finish(world)
        await world.settle()
        assert await world.node_of("great") == gone[0].split("-")[0]
        await world.check()

    run(story)


def test_a_greater_one_takes_a_promise_away() -> None:
    async def story(world: FaultyCluster) -> None:
        await crowd(world, "n0")
        await world.add_pod("mine", cpu="4", priorityClassName="middle")
        await world.settle(1)
        assert (await world.pod("mine")).status.nominated_node_name == "n0"
        await world.remove_pod("n0-0")
        await world.remove_pod("n0-1")
        await world.add_pod("late", cpu="4", nodeName="n0", priorityClassName="low")
        await world.add_pod("great", cpu="4", priorityClassName="high")
        await world.settle()
        await finish(world)
        await world.settle()
        assert await world.node_of("great") == "n0"
        assert await world.node_of("mine") == ""
        assert (await world.pod("mine")).status.nominated_node_name == ""
        await world.check()

    run(story)


@pytest.mark.parametrize("fate", ["lost", "lost-after", "429", "500", "500-after", "503"])
def test_evictions_that_fail_are_tried_again(fate: RequestFate) -> None:
    async def story(world: FaultyCluster) -> None:
        await crowd(world, "n0")
        left = 5

        def trouble(request: ApiRequest) -> RequestFate:
            nonlocal left
            if request.method == "DELETE" and left:
                left -= 1
                return fate
            return "well"

        world.wire.fate = trouble
        await world.add_pod("great", cpu="4", priorityClassName="high")
        for _ in range(3):  # while one victim leaves, the one that could not be told is left alone
            await world.settle()
            await finish(world)
        await world.settle()
        assert await world.node_of("great") == "n0"
        await world.check()

    run(story)


@pytest.mark.parametrize("seed", range(6))
def test_priorities_prevail_whatever_comes(seed: int) -> None:
    """Pods of all priorities come in any order. In the end nobody waits for room that a lesser one holds, as far as
    one node's lesser pods are enough: and nothing is lost, doubled or left behind on the way."""

    async def story(world: FaultyCluster) -> None:
        dice = random.Random(seed)
        for i in range(3):
            await world.add_node(f"n{i}")
        for i in range(24):
            await world.add_pod(f"p{i}", cpu=dice.choice("124"), priorityClassName=dice.choice(list(CLASSES)))
            if dice.random() < 0.6:
                await world.settle(dice.choice((0.01, 1, 20)))
            if dice.random() < 0.4:
                await finish(world)
        for _ in range(12):
            await world.settle()
            await finish(world)
        await world.check()
        assert not await leaving(world)
        pods = unwrap(await world.client.list(PODS)).items
        for waiting in (pod for pod in pods if not pod.spec.node_name):
            for node in ("n0", "n1", "n2"):
                here = [pod for pod in pods if pod.spec.node_name == node]
                lasting = sum(cpu(pod) for pod in here if (pod.spec.priority or 0) >= (waiting.spec.priority or 0))
                assert lasting + cpu(waiting) > 4, f"{waiting.metadata.name} could have {node}"

    run(story, seed)


def cpu(pod: Pod) -> int:
    assert pod.spec.containers[0].resources is not None
    return int(str((pod.spec.containers[0].resources.requests or {})["cpu"]))
