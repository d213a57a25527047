"""Devices in a running scheduler are allocated once, whatever fails on the way, and everyone sees whose they are."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from rich.console import Console

from koord.api.config.component import PluginEntry as Named
from koord.api.config.component import PluginSet
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration, KubeSchedulerProfile, SchedulerPlugins
from koord.api.koordinator.custom_kinds import DEVICES
from koord.api.koordinator.protocol import A_DEVICE_ALLOCATE_HINT, A_DEVICE_ALLOCATED
from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS, NODES, PODS, PRIORITY_CLASSES
from koord.api.kubernetes.pod import Pod
from koord.cli.commands.node_occupancy import print_device_occupancy, read_device_occupancy
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.explain.http import Explainer
from koord.scheduler.plugins.device_share import http
from koord.scheduler.plugins.device_share.cache import NodeDeviceCache
from koord.scheduler.plugins.device_share.device_amounts import add
from koord.scheduler.plugins.device_share.plugin import DeviceShare
from koord.scheduler.plugins.registry import REGISTRY
from koord.telemetry.clock import LoopClock, run_virtual
from koord.telemetry.http_routing import HttpCall
from tests.scheduler.faulty_cluster import WRITES, FaultyCluster, RequestFate, faulty_cluster
from tests.scheduler.plugins.device_share.device_builders import REFERENCE_GPUS, REFERENCE_RDMA

GPU = "koordinator.sh/gpu"
SPEC = {"terminationGracePeriodSeconds": 0}  # no kubelet is here to end pods
ROOM = {"cpu": "128", "memory": "64Gi", "pods": "200", GPU: "800", "koordinator.sh/rdma": "400"}


def run(story: Callable[[FaultyCluster], Any], seed: int = 1) -> None:
    everywhere = SchedulerPlugins(multi_point=PluginSet(enabled=(Named(name=DeviceShare.name),)))
    config = KubeSchedulerConfiguration(
        profiles=(KubeSchedulerProfile(scheduler_name="default-scheduler", plugins=everywhere),)
    )
    made = CompletedConfig.complete(config, REGISTRY)
    assert isinstance(made, CompletedConfig), made

    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, made, seed) as world:
            body = {"metadata": {"name": "n0"}, "status": {"allocatable": ROOM, "capacity": ROOM}}
            unwrap(await world.client.create(NODES, body))
            await machine(world)
            await world.clock.sleep(1)
            await story(world)
            await world.check()
            await check(world)

    run_virtual(main)


async def machine(world: FaultyCluster, *sick: int) -> None:
    listed = [{**info, "health": info["minor"] not in sick} for info in REFERENCE_GPUS] + REFERENCE_RDMA
    body = {"metadata": {"name": "n0"}, "spec": {"devices": listed}}
    found = await world.client.create(DEVICES, body)
    if not hasattr(found, "spec"):
        unwrap(await world.client.patch(DEVICES, "n0", {"spec": {"devices": listed}}, kind="merge"))


async def ask(world: FaultyCluster, name: str, gpu: int, hint: Any = None, **spec: Any) -> Pod:
    requests = {"cpu": "10m", GPU: str(gpu)}
    container = {"name": "c", "image": "app", "resources": {"requests": requests, "limits": {GPU: str(gpu)}}}
    noted = {} if hint is None else {A_DEVICE_ALLOCATE_HINT: json.dumps(hint)}
    meta = {"name": name, "namespace": "default", "annotations": noted}
    return unwrap(
        await world.client.create(PODS, {"metadata": meta, "spec": {"containers": [container], **SPEC, **spec}})
    )


def minors(pod: Pod) -> list[int]:
    text = pod.metadata.annotations.get(A_DEVICE_ALLOCATED, "{}")
    return [device["minor"] for device in json.loads(text).get("gpu", ())]


async def check(world: FaultyCluster) -> None:
    """Check that what is counted is what live pods carry, nothing stays assumed, and no device is allocated twice."""
    (profile,) = world.scheduler.profiles.values()
    (plugin,) = (p for p in profile.plugins() if isinstance(p, DeviceShare))
    book = plugin.cache
    assert book.assumed == {}
    assert {(node, uid): held for node, uid, held in book.iter_allocations()} == book.rebuild_allocations()
    total: Any = {}
    for _, _, held in book.iter_allocations():
        total = add(total, held)
    for site in book.nodes.values():
        assert site.used == total
        assert site.ledger.overcommits() == []
    carried = {p.metadata.uid for p in unwrap(await world.client.list(PODS)).items if minors(p) and p.spec.node_name}
    assert {uid for _, uid, _ in book.iter_allocations()} == carried


def test_forty_shares_of_one_node_are_bound_at_once() -> None:
    async def story(world: FaultyCluster) -> None:
        for i in range(40):
            await ask(world, f"p{i}", 20)
        await world.clock.sleep(0.5)
        pods = [await world.pod(f"p{i}") for i in range(40)]
        assert all(pod.spec.node_name == "n0" for pod in pods)
        assert Counter(minor for pod in pods for minor in minors(pod)) == dict.fromkeys(range(8), 5)

    run(story)


def test_no_card_is_lost_or_given_twice_over_a_bad_wire() -> None:
    async def story(world: FaultyCluster, seed: int) -> None:
        chance = random.Random(seed)
        fates: list[RequestFate] = ["well", "well", "lost", "lost-after", "409", "500", "500-after", "503"]

        def fate(request: ApiRequest) -> RequestFate:
            return chance.choice(fates) if request.method in WRITES else "well"

        world.wire.fate = fate
        for i in range(24):
            await ask(world, f"p{i}", chance.choice([25, 50, 100, 200]))
            if i % 5 == 4:
                await world.remove_pod(f"p{chance.randrange(i)}")
            if i % 7 == 6:
                await machine(world, chance.randrange(8))
            if i % 9 == 8:
                await world.wire.break_watches()
            await world.clock.sleep(chance.random())
        world.wire.fate = lambda _: "well"
        await machine(world)
        await world.settle()

    for seed in range(3):
        run(lambda world, seed=seed: story(world, seed), seed)  # type: ignore[misc]


def test_one_victim_makes_room_and_its_card_is_given_on() -> None:
    async def story(world: FaultyCluster) -> None:
        for name, value in (("low", 1), ("high", 1000)):
            unwrap(await world.client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value}))
        for i in range(8):
            await ask(world, f"low{i}", 100, priorityClassName="low")
            await world.clock.sleep(1)
        await ask(world, "high", 100, priorityClassName="high")
        await world.settle(30)
        left = {p.metadata.name: p for p in unwrap(await world.client.list(PODS)).items}
        assert len(left) == 8
        assert sorted(minor for pod in left.values() for minor in minors(pod)) == list(range(8))
        assert left["high"].spec.node_name == "n0"

    run(story)


def test_a_pod_wakes_when_its_card_is_healthy_again() -> None:
    async def story(world: FaultyCluster) -> None:
        await machine(world, 3)
        await ask(world, "all", 800)
        await world.clock.sleep(60)
        assert await world.node_of("all") == ""
        await machine(world)
        await world.clock.sleep(12)
        assert minors(await world.pod("all")) == list(range(8))

    run(story)


def test_owners_hear_of_devices_that_nobody_counts() -> None:
    async def story(world: FaultyCluster) -> None:
        await ask(world, "odd", 100)
        await world.clock.sleep(1)
        unreadable = {"metadata": {"annotations": {A_DEVICE_ALLOCATED: "{"}}}
        unwrap(await world.client.patch(PODS, "odd", unreadable, "default", kind="merge"))
        bare = {"metadata": {"name": "bare", "labels": {"bare": ""}}}
        unwrap(await world.client.create(NODES, bare | {"status": {"allocatable": ROOM, "capacity": ROOM}}))
        await ask(world, "blind", 100, nodeSelector={"bare": ""})
        await world.settle(30)
        assert await world.node_of("blind") == "bare"
        warnings = [e for e in unwrap(await world.client.list(EVENTS_EVENTS)).items if e.type == "Warning"]
        assert {(e.regarding.name, e.reason) for e in warnings} == {
            ("odd", "UnreadableDevices"),
            ("blind", "DevicesUncounted"),
        }
        await world.remove_pod("odd")
        await world.settle(1)

    run(story)


def test_the_nearest_miss_is_told_in_words() -> None:
    async def story(world: FaultyCluster) -> None:
        await machine(world, 0, 2, 4, 6, 7)
        await ask(world, "pair", 200, {"gpu": {"requiredTopologyScope": "PCIe"}})
        await world.clock.sleep(5)
        account = Explainer(world.scheduler, world.clock).pod("default", "pair")
        assert account is not None
        assert account.last is not None
        assert account.last.nearest is not None
        assert account.last.nearest.reasons == ("Insufficient Topology Scoped GPU Devices",)
        assert account.last.nearest.details == (
            "3 gpu devices would fit but no 2 share one PCIe switch (at most 1); 5 unhealthy",
        )

    run(story)


def test_summaries_are_served_as_koordinator_does() -> None:
    async def story(world: FaultyCluster) -> None:
        await ask(world, "a", 200)
        await world.clock.sleep(1)
        routes: dict[str, Any] = dict(
            http.routes(world.scheduler.state.derived(NodeDeviceCache), world.scheduler.state)
        )
        path = "/plugins/DeviceShare/nodeDeviceSummaries"
        every = json.loads(routes[path](HttpCall(method="GET", path=path)).body)
        one = json.loads(routes[f"{path}/:name"](HttpCall(method="GET", path=path, parameters={"name": "n0"})).body)
        assert every == {"n0": one}
        assert one["deviceFree"]["koordinator.sh/gpu-core"] == "600"
        assert one["deviceUsed"] == {
            "koordinator.sh/gpu-core": "200",
            "koordinator.sh/gpu-memory": "32Gi",
            "koordinator.sh/gpu-memory-ratio": "200",
        }
        assert list(one["allocateSet"]["gpu"]["default/a"]) == ["0", "1"]
        missing = routes[f"{path}/:name"](HttpCall(method="GET", path=path, parameters={"name": "n1"}))
        assert missing.status == 404

    run(story)


def test_everybody_can_see_who_holds_what() -> None:
    async def story(world: FaultyCluster) -> None:
        await machine(world, 7)
        await ask(world, "a", 200)
        await world.clock.sleep(1)
        await ask(world, "b", 50)
        await world.clock.sleep(1)
        out = io.StringIO()
        print_device_occupancy(
            Console(file=out, width=160, markup=False, highlight=False), await read_device_occupancy(world.client, "n0")
        )
        assert [line.rstrip() for line in out.getvalue().splitlines()] == [
            "Node  n0",
            "",
            "NUMA node 0",
            "  PCIe 0        gpu 0 [aaaaaaaaaa] 100%   gpu 1 [aaaaaaaaaa] 100%   rdma 1 [..........]   0% 0/4 VFs",
            "  PCIe 1        gpu 2 [bbbbb.....]  50%   gpu 3 [..........]   0%   rdma 2 [..........]   0% 0/4 VFs",
            "",
            "NUMA node 1",
            "  PCIe 2        gpu 4 [..........]   0%   gpu 5 [..........]   0%   rdma 3 [..........]   0% 0/4 VFs",
            "  PCIe 3        gpu 6 [..........]   0%   gpu 7 [xxxxxxxxxx]   0%   rdma 4 [..........]   0% 0/4 VFs",
            "",
            ". free   x not healthy",
            "   HOLDER     DEVICES                                   FUNCTIONS",
            "a  default/a  gpu 0,1 (100% core, 16.0Gi, 100% memory)  -",
            "b  default/b  gpu 2 (50% core, 8.0Gi, 50% memory)       -",
            "! spec.devices[7].health: the device is unhealthy",
        ]

    run(story)
