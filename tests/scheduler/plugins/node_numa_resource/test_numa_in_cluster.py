"""CPUs and NUMA nodes in a whole cluster are written with the binding and given back whatever ends a pod."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from koord.api.koordinator import custom_kinds
from koord.api.kubernetes.builtin_kinds import NODES, PODS, PRIORITY_CLASSES
from koord.api.kubernetes.pod import Pod
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest
from koord.scheduler.plugins.node_numa_resource.cache import NodeAllocationCache
from koord.telemetry.clock import LoopClock, run_virtual
from koord.values.cpuset import CPUSet
from tests.scheduler.faulty_cluster import WRITES, FaultyCluster, RequestFate, faulty_cluster
from tests.scheduler.plugins.node_numa_resource.numa_cluster import STATUS, topology

LSR = {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}


def story(told: Callable[[FaultyCluster], Awaitable[None]]) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            await told(world)

    run_virtual(main)


async def machine(world: FaultyCluster, name: str, **labels: str) -> None:
    await world.add_node(
        name, "16", labels={f"node.koordinator.sh/{k.replace('_', '-')}": v for k, v in labels.items()}
    )
    await describe(world, name)


async def describe(world: FaultyCluster, name: str, **more: Any) -> None:
    body = {"apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology"}
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(topology(name, **more)))
    unwrap(await world.client.create(custom_kinds.NODE_RESOURCE_TOPOLOGIES, {**found, **body}))


async def bound_pod(world: FaultyCluster, name: str, cpu: int, **spec: Any) -> Pod:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": str(cpu), "memory": "1Gi"}}}
    body = {
        "metadata": {"name": name, "namespace": "default", "labels": LSR},
        "spec": {"schedulerName": "koord-scheduler", "containers": [container], **spec},
    }
    return unwrap(await world.client.create(PODS, body))


async def cpus_of(world: FaultyCluster, name: str) -> str:
    text = (await world.pod(name)).metadata.annotations.get(STATUS)
    return json.loads(text)["cpuset"] if text is not None else ""


async def accounted(world: FaultyCluster) -> None:
    """Check that the cache holds what live, bound pods carry, and no CPU is carried twice."""
    await world.check()
    books = world.scheduler.state.derived(NodeAllocationCache)
    written: dict[str, dict[str, str]] = {}
    taken: dict[str, int] = {}
    for one in unwrap(await world.client.list(PODS)).items:
        text = one.metadata.annotations.get(STATUS)
        if one.spec.node_name and text is not None:
            cpus = json.loads(text)["cpuset"]
            written.setdefault(one.spec.node_name, {})[one.metadata.uid] = cpus
            bits = CPUSet.parse(cpus).bits
            assert not taken.get(one.spec.node_name, 0) & bits, "no CPU is given twice"
            taken[one.spec.node_name] = taken.get(one.spec.node_name, 0) | bits
    held = {
        n: {uid: str(e.allocation.cpus) for uid, e in entries.items()} for n, entries in books.pod_allocations().items()
    }
    assert held == written
    assert books.assumed == {}
    again = await world.rebuilt()
    assert again.derived(NodeAllocationCache).pod_allocations() == books.pod_allocations(), (
        "a new leader reads the same from the pods"
    )


def test_cpus_travel_with_the_binding_and_come_back_with_the_pod() -> None:
    async def told(world: FaultyCluster) -> None:
        await machine(world, "a")
        for name, cpu in (("x", 8), ("y", 8), ("z", 4)):
            await bound_pod(world, name, cpu)
            await world.settle(5)
        assert [await cpus_of(world, name) for name in "xyz"] == ["0-7", "8-15", ""]
        writes = [r for r in world.wire.requests if r.method == "PATCH" and "/pods/x" in r.path]
        assert writes == [], "no write besides the binding"
        await world.remove_pod("x")
        await world.settle(60)
        assert await cpus_of(world, "z") == "0-3"
        await accounted(world)

    story(told)


def test_a_topology_that_comes_late_wakes_the_pod_that_needs_it() -> None:
    async def told(world: FaultyCluster) -> None:
        await world.add_node("a", "16")
        await bound_pod(world, "x", 4)
        await world.settle(60)
        assert await world.node_of("x") == ""
        await describe(world, "a")
        await world.settle(60)
        assert await cpus_of(world, "x") == "0-3"
        await accounted(world)

    story(told)


def test_a_preemptor_takes_the_cpus_of_its_victim() -> None:
    async def told(world: FaultyCluster) -> None:
        await machine(world, "a")  # by Kubernetes' count there is room for both: only CPUs are short
        unwrap(
            await world.client.patch(
                NODES, "a", {"status": {"allocatable": {"cpu": "64"}}}, kind="merge", subresource="status"
            )
        )
        for name, value in (("low", 9000), ("high", 9900)):
            unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value}))
        await bound_pod(world, "low", 16, priorityClassName="low")
        await world.settle(5)
        await bound_pod(world, "high", 8, priorityClassName="high")
        await world.settle(60)
        assert (await world.pod("low")).metadata.deletion_timestamp is not None
        assert await cpus_of(world, "high") == "", "the CPUs are not free before the victim is gone"
        await world.remove_pod("low")
        await world.settle(60)
        assert await cpus_of(world, "high") == "0-7"
        await accounted(world)

    story(told)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_leaks_whatever_fails(seed: int) -> None:
    """Bindings are lost, refused or done without an answer, while pods, nodes and topologies come and go."""
    chance = random.Random(seed)
    fates: tuple[RequestFate, ...] = ("well", "well", "lost", "lost-after", "409", "500", "500-after", "503")

    def fate(request: ApiRequest) -> RequestFate:
        return chance.choice(fates) if request.method in WRITES and "/events" not in request.path else "well"

    async def told(world: FaultyCluster) -> None:
        await machine(world, "a")
        await machine(world, "b", numa_topology_policy="SingleNUMANode")
        world.wire.fate = fate
        for turn in range(14):
            await bound_pod(world, f"p{turn}", chance.choice((2, 4, 6)))
            if turn % 3 == 2:
                await world.remove_pod(f"p{chance.randrange(turn)}")
            if turn == 5:
                unwrap(await world.client.delete(custom_kinds.NODE_RESOURCE_TOPOLOGIES, "a"))
            if turn == 8:
                await describe(world, "a")
            if turn == 10:
                unwrap(await world.client.delete(NODES, "b"))
                await world.wire.break_watches()
            await world.settle(chance.random())
        world.wire.fate = lambda _: "well"
        await world.settle()
        await accounted(world)

    story(told)
