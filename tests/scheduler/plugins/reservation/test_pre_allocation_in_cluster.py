"""Reservations that pre-allocate running pods take over their CPUs and GPUs: nothing is held twice, nothing is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koord.api.koordinator import custom_kinds
from koord.api.koordinator.protocol import A_DEVICE_ALLOCATED, A_RESERVATION_ALLOCATED, A_RESOURCE_STATUS
from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli import scheduler_setup
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.plugins.device_share.cache import NodeDeviceCache as Devices
from koord.scheduler.plugins.node_numa_resource.cache import NodeAllocationCache
from koord.scheduler.plugins.registry import REGISTRY
from koord.telemetry.clock import LoopClock, run_virtual
from koord.values.cpuset import CPUSet
from tests.scheduler.faulty_cluster import RequestFate, faulty_cluster
from tests.scheduler.random_workload import FATES, GPU, LSR, RandomWorkload, check


def run(story: Callable[[RandomWorkload], Awaitable[None]], completed_config: CompletedConfig | None = None) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, completed_config) as world:
            life = RandomWorkload(world, random.Random(1))
            await life.machine(0)
            await story(life)
            await check(life)

    run_virtual(main)


def template(cpu: int, gpu: int, **labels: str) -> dict[str, Any]:
    requests = {"cpu": str(cpu), "memory": "1Gi", GPU: str(gpu)}
    container = {"name": "c", "image": "app", "resources": {"requests": requests, "limits": {GPU: str(gpu)}}}
    spec = {"schedulerName": "koord-scheduler", "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"metadata": {"labels": {**LSR, **labels}}, "spec": spec}


async def add_pod(life: RandomWorkload, name: str, cpu: int, gpu: int, **labels: str) -> None:
    body = template(cpu, gpu, **labels)
    body["metadata"] |= {"name": name, "namespace": "default"}
    unwrap(await life.client.create(PODS, body))


async def reserve_over(life: RandomWorkload, cpu: int, gpu: int) -> None:
    spec = {
        "template": template(cpu, gpu),
        "owners": [{"labelSelector": {"matchLabels": {"app": "there"}}}],
        "ttl": "24h",
        "allocateOnce": False,
        "allocatePolicy": "Restricted",
        "preAllocation": True,
    }
    unwrap(await life.client.create(custom_kinds.RESERVATIONS, {"metadata": {"name": "r"}, "spec": spec}))


def given(found: Any) -> tuple[int, set[int]]:
    notes = found.metadata.annotations
    cpus = CPUSet.parse(json.loads(notes[A_RESOURCE_STATUS])["cpuset"]).bits
    return cpus, {card["minor"] for card in json.loads(notes[A_DEVICE_ALLOCATED])["gpu"]}


async def used(life: RandomWorkload) -> tuple[int, int]:
    """Return the CPUs and whole GPUs of the machine that are in use."""
    state = life.world.scheduler.state
    (book,) = (state.derived(NodeAllocationCache)._by_node[name] for name in ("n0",))
    cpus = 0
    for allocation in book.ledger.pods.values():
        assert not cpus & allocation.cpus.bits
        cpus |= allocation.cpus.bits
    return cpus.bit_count(), len(state.derived(Devices).nodes["n0"].used.get("gpu", {}))


@pytest.mark.parametrize("fate", ["well", *FATES])
def test_what_a_running_pod_has_is_a_part_of_what_its_reservation_gets(fate: RequestFate) -> None:
    async def story(life: RandomWorkload) -> None:
        await add_pod(life, "first", 4, 200)
        await add_pod(life, "there", 2, 100, app="there")
        await life.world.settle(30)
        left = 4

        def fail(request: ApiRequest) -> RequestFate:
            nonlocal left
            if request.method == "PATCH" and left:
                left -= 1
                return fate
            return "well"

        life.world.wire.fate = fail
        await reserve_over(life, 6, 300)
        await life.world.settle()
        reservation = unwrap(await life.client.get(custom_kinds.RESERVATIONS, "r"))
        assert reservation.status.phase == "Available", reservation.status
        pod = await life.world.pod("there")
        assert json.loads(pod.metadata.annotations[A_RESERVATION_ALLOCATED])["name"] == "r"
        (mine, cards), (all_of_it, all_cards) = given(pod), given(reservation)
        assert mine & ~all_of_it == 0, "the pod's CPUs are among those of the reservation"
        assert cards <= all_cards
        assert await used(life) == (10, 5)
        await life.world.remove_pod("there")
        await life.world.settle(30)
        assert await used(life) == (10, 5), "what the owner left is the reservation's"
        await add_pod(life, "next", 4, 200, app="there")
        await life.world.settle(30)
        mine, cards = given(await life.world.pod("next"))
        assert mine & ~all_of_it == 0
        assert cards <= all_cards
        await check(life)
        await life.client.delete(custom_kinds.RESERVATIONS, "r")
        await life.world.settle(30)
        assert await used(life) == (8, 4), "the owner keeps its own"

    run(story)


def test_one_that_cannot_have_all_of_it_waits_and_leaves_nothing_behind() -> None:
    async def story(life: RandomWorkload) -> None:
        await add_pod(life, "there", 2, 100, app="there")
        await add_pod(life, "big", 12, 700)
        await life.world.settle(30)
        await reserve_over(life, 6, 300)
        await life.world.settle(60)
        assert unwrap(await life.client.get(custom_kinds.RESERVATIONS, "r")).status.phase in ("", "Pending")
        assert await used(life) == (14, 8)
        await check(life)
        await life.world.remove_pod("big")
        await life.world.settle()
        assert unwrap(await life.client.get(custom_kinds.RESERVATIONS, "r")).status.phase == "Available"
        assert await used(life) == (6, 3)

    run(story)


@pytest.mark.parametrize("gate", [False, True])
def test_with_its_gate_a_reservation_holds_what_its_devices_come_to(gate: bool) -> None:
    made = CompletedConfig.complete(scheduler_setup.default_configuration(), REGISTRY, {"ResizePod": gate})
    assert isinstance(made, CompletedConfig)

    async def story(life: RandomWorkload) -> None:
        spec = {"template": template(2, 200), "owners": [{"labelSelector": {}}], "ttl": "24h"}
        unwrap(await life.client.create(custom_kinds.RESERVATIONS, {"metadata": {"name": "r"}, "spec": spec}))
        await life.world.settle(30)
        held = unwrap(await life.client.get(custom_kinds.RESERVATIONS, "r")).status.allocatable
        asked = {"cpu": "2", "memory": "1Gi", GPU: "200"}
        share = {f"{GPU}-core": "200", f"{GPU}-memory": "32Gi", f"{GPU}-memory-ratio": "200"}
        assert dict(held) == (asked | share if gate else asked)

    run(story, made)


def test_a_node_where_it_cannot_have_the_card_of_its_owner_is_left_out() -> None:
    async def story(life: RandomWorkload) -> None:
        for number in range(7):
            await add_pod(life, f"fill-{number}", 1, 100)
        await life.world.settle(30)
        await add_pod(life, "there", 1, 50, app="there")
        await add_pod(life, "beside", 1, 50)
        await life.world.settle(30)
        assert given(await life.world.pod("there"))[1] == given(await life.world.pod("beside"))[1]
        for number in range(7):
            await life.world.remove_pod(f"fill-{number}")
        await life.machine(1)
        await life.world.settle(30)
        await reserve_over(life, 2, 100)
        await life.world.settle(60)
        assert unwrap(await life.client.get(custom_kinds.RESERVATIONS, "r")).status.node_name == "n1"
        assert A_RESERVATION_ALLOCATED not in (await life.world.pod("there")).metadata.annotations

    run(story)
