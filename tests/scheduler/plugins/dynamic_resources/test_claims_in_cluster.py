"""Pods with claims on a whole cluster: devices are written into claims, shared, given back, and never given twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration
from koord.api.kubernetes.affinity import NodeSelector
from koord.api.kubernetes.builtin_kinds import DEVICE_CLASSES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from koord.api.kubernetes.dynamic_resources import ResourceClaim
from koord.api.model import convert
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.plugins.dynamic_resources.claim_cache import FINALIZER, ClaimCache
from koord.scheduler.plugins.registry import REGISTRY
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import FaultyCluster, RequestFate, faulty_cluster
from tests.scheduler.plugins.dynamic_resources.device_objects import (
    DRIVER,
    exactly,
    make_class,
    make_device,
    make_slice,
    on_node,
    results,
)

Story = Callable[["ClaimCluster"], Awaitable[None]]


class ClaimCluster:
    """A cluster with two devices on each of two nodes; classes `gpu` and slices are there."""

    def __init__(self, world: FaultyCluster) -> None:
        self.world = world
        self.client = world.client

    async def build(self, nodes: int = 2, devices: int = 2) -> None:
        given = make_class("gpu", f'device.driver == "{DRIVER}"')
        unwrap(await self.client.create(DEVICE_CLASSES, msgspec.to_builtins(given)))
        for n in range(nodes):
            await self.world.add_node(f"n{n}")
            await self.publish(f"n{n}", devices)

    async def publish(self, node: str, devices: int, generation: int = 1) -> None:
        listed = [make_device(f"d{i}", index=i) for i in range(devices)]
        body = msgspec.to_builtins(make_slice(f"{node}-slice", listed, node=node, generation=generation))
        del body["metadata"]["uid"]
        await self.client.delete(RESOURCE_SLICES, f"{node}-slice")
        unwrap(await self.client.create(RESOURCE_SLICES, body))

    async def add_claim(self, name: str, *requests: dict[str, Any]) -> None:
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [*(requests or (exactly(),))]}}}
        unwrap(await self.client.create(RESOURCE_CLAIMS, body, "default"))

    async def add_pod(self, name: str, *claims: str, **spec: Any) -> None:
        wanted = [{"name": f"c{i}", "resourceClaimName": claim} for i, claim in enumerate(claims)]
        await self.world.add_pod(name, resourceClaims=wanted, **spec)

    async def claim(self, name: str) -> ResourceClaim:
        return unwrap(await self.client.get(RESOURCE_CLAIMS, name, "default"))

    async def free(self, name: str) -> None:
        """Deallocate a claim, as the claim controller does when the last user of it is gone."""
        patch = {"status": {"allocation": None, "reservedFor": None}}
        unwrap(await self.client.patch(RESOURCE_CLAIMS, name, patch, "default", kind="merge", subresource="status"))

    async def devices(self) -> dict[str, list[str]]:
        """Return the devices of each allocated claim, as pool/device."""
        claims = unwrap(await self.client.list(RESOURCE_CLAIMS)).items
        return {
            claim.metadata.name: [f"{each.pool}/{each.device}" for each in claim.status.allocation.devices.results]
            for claim in claims
            if claim.status.allocation is not None
        }

    async def message(self, name: str) -> str:
        conditions = (await self.world.pod(name)).status.conditions
        return next((each.message for each in conditions if each.type == "PodScheduled"), "")

    async def check(self) -> None:
        """Check that no device is given twice, that claims are where their pods are, and that nothing is leaked."""
        await self.world.check()
        given = await self.devices()
        counts = Counter(device for devices in given.values() for device in devices)
        assert all(count == 1 for count in counts.values()), given
        cache = self.world.scheduler.state.derived(ClaimCache)
        assert {f"{pool}/{device}": count for (_, pool, device), count in cache.in_use.items()} == dict(counts)


def play(story: Story, nodes: int = 2, devices: int = 2) -> None:
    async def main(clock: LoopClock) -> None:
        plain = CompletedConfig.complete(KubeSchedulerConfiguration(), REGISTRY)
        assert isinstance(plain, CompletedConfig), plain
        async with faulty_cluster(clock, plain) as world:
            cluster = ClaimCluster(world)
            await cluster.build(nodes, devices)
            await story(cluster)
            await cluster.check()

    run_virtual(main)


def test_a_claim_is_allocated_and_reserved_for_its_pod() -> None:
    async def story(cluster: ClaimCluster) -> None:
        await cluster.add_claim("c", exactly("r", 2))
        await cluster.add_pod("p", "c")
        await cluster.world.settle(5)
        node = await cluster.world.node_of("p")
        claim = await cluster.claim("c")
        pod = await cluster.world.pod("p")
        assert await cluster.devices() == {"c": [f"{node}/d0", f"{node}/d1"]}
        assert FINALIZER in claim.metadata.finalizers
        assert [(user.resource, user.name, user.uid) for user in claim.status.reserved_for] == [
            ("pods", "p", pod.metadata.uid)
        ]
        assert claim.status.allocation is not None
        assert claim.status.allocation.node_selector == convert(on_node(node), NodeSelector)

    play(story)


def test_as_many_pods_as_there_are_devices_get_one_each() -> None:
    async def story(cluster: ClaimCluster) -> None:
        for i in range(5):
            await cluster.add_claim(f"c{i}")
            await cluster.add_pod(f"p{i}", f"c{i}", cpu="10m")
        await cluster.world.settle(30)
        assert sorted(each for devices in (await cluster.devices()).values() for each in devices) == [
            "n0/d0",
            "n0/d1",
            "n1/d0",
            "n1/d1",
        ]
        (left,) = [i for i in range(5) if not await cluster.world.node_of(f"p{i}")]
        assert "2 cannot allocate all claims" in await cluster.message(f"p{left}")
        done = next(i for i in range(5) if i != left)
        await cluster.world.remove_pod(f"p{done}")
        await cluster.free(f"c{done}")
        await cluster.world.settle(30)
        assert await cluster.world.node_of(f"p{left}"), "a device that is given back wakes who waits for one"

    play(story)


def test_pods_that_share_a_claim_go_to_one_node() -> None:
    async def story(cluster: ClaimCluster) -> None:
        await cluster.add_claim("c")
        for i in range(4):
            await cluster.add_pod(f"p{i}", "c", cpu="10m")
        await cluster.world.settle(60)
        nodes = {await cluster.world.node_of(f"p{i}") for i in range(4)}
        assert len(nodes) == 1
        assert nodes != {""}
        assert len((await cluster.claim("c")).status.reserved_for) == 4

    play(story)


def test_new_slices_wake_a_pod() -> None:
    async def story(cluster: ClaimCluster) -> None:
        await cluster.add_claim("c", exactly("r", 3))
        await cluster.add_pod("p", "c")
        await cluster.world.settle(30)
        assert await cluster.world.node_of("p") == ""
        await cluster.publish("n1", 3, generation=2)
        await cluster.world.settle(30)
        assert await cluster.world.node_of("p") == "n1"

    play(story)


def test_a_claim_that_blocks_its_pod_is_deallocated_where_nobody_else_uses_it() -> None:
    async def story(cluster: ClaimCluster) -> None:
        await cluster.add_claim("c")
        allocation = results((DRIVER, "n0", "d0"), nodeSelector=on_node("n0"))
        patch = {"status": {"allocation": allocation}}
        client = cluster.client
        unwrap(await client.patch(RESOURCE_CLAIMS, "c", patch, "default", kind="merge", subresource="status"))
        unwrap(await client.patch(NODES, "n0", {"spec": {"unschedulable": True}}, kind="merge"))
        await cluster.add_pod("p", "c")
        await cluster.world.settle(60)
        assert await cluster.world.node_of("p") == "n1"
        assert await cluster.devices() == {"c": ["n1/d0"]}

    play(story)


def is_claim_write(request: ApiRequest) -> bool:
    return request.method == "PATCH" and "/resourceclaims/" in request.path


@pytest.mark.parametrize("fate", ["lost", "lost-after", "409", "500", "500-after", "503"])
@pytest.mark.parametrize("part", ["/status", ""])
def test_a_write_that_fails_is_made_in_the_end(fate: RequestFate, part: str) -> None:
    async def story(cluster: ClaimCluster) -> None:
        left = 3

        def fail(request: ApiRequest) -> RequestFate:
            nonlocal left
            if is_claim_write(request) and left and request.path.endswith("/status") == bool(part):
                left -= 1
                return fate
            return "well"

        cluster.world.wire.fate = fail
        for i in range(4):
            await cluster.add_claim(f"c{i}")
            await cluster.add_pod(f"p{i}", f"c{i}", cpu="10m")
        await cluster.world.settle()
        assert all([await cluster.world.node_of(f"p{i}") for i in range(4)])

    play(story)


def test_a_claim_that_another_scheduler_allocates_meanwhile_is_left_to_it() -> None:
    async def story(cluster: ClaimCluster) -> None:
        await cluster.add_claim("c")
        taken = False
        allocation = results((DRIVER, "n1", "d1"), nodeSelector=on_node("n1"))

        def steal(request: ApiRequest) -> RequestFate:
            nonlocal taken
            if is_claim_write(request) and not taken:
                taken = True
                return "409"
            return "well"

        cluster.world.wire.fate = steal
        patch = {"status": {"allocation": allocation}}
        await cluster.add_pod("p", "c")
        client = cluster.client
        unwrap(await client.patch(RESOURCE_CLAIMS, "c", patch, "default", kind="merge", subresource="status"))
        await cluster.world.settle()
        assert await cluster.devices() == {"c": ["n1/d1"]}
        assert await cluster.world.node_of("p") == "n1"

    play(story)


def test_a_binding_that_is_refused_takes_the_pod_off_its_claim() -> None:
    async def story(cluster: ClaimCluster) -> None:
        await cluster.add_claim("c")
        cluster.world.wire.fate = lambda r: "409" if r.method == "POST" and r.path.endswith("/binding") else "well"
        await cluster.add_pod("p", "c")
        await cluster.world.settle(2)
        assert await cluster.world.node_of("p") == ""
        await cluster.world.remove_pod("p")
        await cluster.world.settle(30)
        assert (await cluster.claim("c")).status.reserved_for == ()
        cluster.world.wire.fate = lambda _: "well"
        await cluster.add_pod("q", "c")
        await cluster.world.settle(30)
        assert await cluster.world.node_of("q")

    play(story)


def test_a_pod_deleted_before_its_claim_is_written_leaves_the_devices_free() -> None:
    async def story(cluster: ClaimCluster) -> None:
        await cluster.add_claim("c")
        cluster.world.wire.fate = lambda r: "lost" if is_claim_write(r) else "well"
        await cluster.add_pod("p", "c")
        await cluster.world.settle(1)
        await cluster.world.remove_pod("p")
        await cluster.world.settle(30)
        cluster.world.wire.fate = lambda _: "well"
        assert await cluster.devices() == {}

    play(story, nodes=1, devices=1)
