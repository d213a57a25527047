"""With CrossSchedulerNomination, room that another scheduler keeps for a pod is not taken by pods of lower priority."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from koord.api.koordinator.protocol import L_SCHEDULER_NAME
from koord.api.kubernetes.builtin_kinds import PODS, PRIORITY_CLASSES
from koord.cli import scheduler_setup
from koord.kube.transport.api_error import unwrap
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.explain.what_if import ApiSnapshot, WhatIf
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.builders import make_pod
from tests.scheduler.faulty_cluster import FaultyCluster, faulty_cluster


def configuration(*, on: bool) -> CompletedConfig:
    made = scheduler_setup.scheduler_assembly(gates={"CrossSchedulerNomination": on})
    assert isinstance(made, CompletedConfig), made
    return made


def run(story: Callable[[FaultyCluster], Awaitable[None]], *, on: bool = True) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, configuration(on=on)) as world:
            for name, value in (("low", 1), ("middle", 5), ("high", 10)):
                unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value}))
            await world.add_node("n0", labels={"room": "ours"})
            await story(world)

    run_virtual(main)


async def add_theirs(world: FaultyCluster) -> None:
    """Add a pod of another scheduler that waits for the whole of n0."""
    await world.add_pod("theirs", cpu="4", schedulerName="other", priorityClassName="middle")
    patch = {"status": {"nominatedNodeName": "n0"}}
    unwrap(await world.client.patch(PODS, "theirs", patch, "default", kind="merge", subresource="status"))
    await world.settle(1)


@pytest.mark.parametrize(
    ("on", "priority", "node"),
    [
        pytest.param(True, "low", "", id="a-lesser-one-waits"),
        pytest.param(True, "middle", "n0", id="an-equal-one-does-not"),
        pytest.param(True, "high", "n0", id="a-greater-one-does-not"),
        pytest.param(False, "low", "n0", id="off"),
    ],
)
def test_who_respects_the_nomination(on: bool, priority: str, node: str) -> None:
    async def story(world: FaultyCluster) -> None:
        await add_theirs(world)
        await world.add_pod("mine", priorityClassName=priority)
        await world.settle(5)
        assert await world.node_of("mine") == node
        assert (await world.pod("theirs")).status.nominated_node_name == "n0", "it is not ours to clear"

    run(story, on=on)


async def delete(world: FaultyCluster) -> None:
    await world.remove_pod("theirs")


async def withdraw(world: FaultyCluster) -> None:
    patch = {"status": {"nominatedNodeName": None}}
    unwrap(await world.client.patch(PODS, "theirs", patch, "default", kind="merge", subresource="status"))


async def end(world: FaultyCluster) -> None:
    patch = {"status": {"phase": "Failed"}}
    unwrap(await world.client.patch(PODS, "theirs", patch, "default", kind="merge", subresource="status"))


async def nominate_elsewhere(world: FaultyCluster) -> None:
    patch = {"status": {"nominatedNodeName": "n1"}}
    unwrap(await world.client.patch(PODS, "theirs", patch, "default", kind="merge", subresource="status"))


async def bind(world: FaultyCluster, node: str) -> None:
    await world.add_node("n1")
    uid = (await world.pod("theirs")).metadata.uid
    assert await world.client.bind("default", "theirs", node, uid=uid) is None


async def bind_elsewhere(world: FaultyCluster) -> None:
    await bind(world, "n1")


async def bind_there(world: FaultyCluster) -> None:
    await bind(world, "n0")


@pytest.mark.parametrize(
    ("deed", "node"),
    [
        (delete, "n0"),
        (withdraw, "n0"),
        (end, "n0"),
        (nominate_elsewhere, "n0"),
        (bind_elsewhere, "n0"),
        (bind_there, ""),
    ],
)
def test_who_waited_is_woken_when_the_room_is_free(deed: Callable[[FaultyCluster], Awaitable[None]], node: str) -> None:
    async def story(world: FaultyCluster) -> None:
        await add_theirs(world)
        await world.add_pod("mine", priorityClassName="low", nodeSelector={"room": "ours"})
        await world.settle(20)
        assert await world.node_of("mine") == ""
        await deed(world)
        await world.settle(20)  # less than the time after which every pod is tried again
        assert await world.node_of("mine") == node

    run(story)


def test_a_pod_that_comes_over_is_counted_as_ours() -> None:
    async def story(world: FaultyCluster) -> None:
        await add_theirs(world)
        nominations = world.scheduler.queue.nominations
        uid = (await world.pod("theirs")).metadata.uid
        assert nominations.by_others(uid) is not None
        labels = {"metadata": {"labels": {L_SCHEDULER_NAME: "default-scheduler"}}}
        unwrap(await world.client.patch(PODS, "theirs", labels, "default", kind="merge"))
        await world.settle(5)
        assert nominations.by_others(uid) is None
        assert await world.node_of("theirs") == "n0"

    run(story)


@pytest.mark.parametrize("on", [True, False])
def test_a_what_if_counts_it_too(on: bool) -> None:
    amounts = {"cpu": "4", "pods": "10"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n0"}, "status": {"allocatable": amounts}}
    container = {"name": "c", "resources": {"requests": {"cpu": "4"}}}
    theirs = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "theirs", "namespace": "default", "uid": "theirs"},
        "spec": {"schedulerName": "other", "priority": 5, "containers": [container]},
        "status": {"nominatedNodeName": "n0"},
    }
    mine = make_pod("mine", cpu="1", schedulerName="default-scheduler", priority=1)
    (outcome,) = WhatIf(configuration(on=on), ApiSnapshot([node, theirs]), 0.0).decide([mine])
    assert outcome.node == ("" if on else "n0")
