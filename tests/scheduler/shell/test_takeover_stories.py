"""Reservations that pre-allocate running pods take over their CPUs and GPUs: nothing is held twice, nothing is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from koord.api import custom
from koord.api.builtin import PODS
from koord.api.protocol import A_DEVICE_ALLOCATED, A_RESERVATION_ALLOCATED, A_RESOURCE_STATUS
from koord.cli import local_scheduler
from koord.kube.refused import ok
from koord.kube.transport import Request
from koord.scheduler.assembly import Assembly
from koord.scheduler.assembly.gated import gated
from koord.scheduler.plugins.device_share.book import Book as Devices
from koord.scheduler.plugins.node_numa_resource.books import Books
from koord.scheduler.plugins.registry import REGISTRY
from koord.telemetry.clock import LoopClock, run_virtual
from koord.values.cpuset import CPUSet
from tests.scheduler.shell.everything import FATES, GPU, LSR, Life, check
from tests.scheduler.shell.trouble import Fate, troubled


def run(story: Callable[[Life], Awaitable[None]], assembly: Assembly | None = None) -> None:
    async def main(clock: LoopClock) -> None:
        async with troubled(clock, assembly) as world:
            life = Life(world, random.Random(1))
            await life.machine(0)
            await story(life)
            await check(life)

    run_virtual(main)


def template(cpu: int, gpu: int, **labels: str) -> dict[str, Any]:
    requests = {"cpu": str(cpu), "memory": "1Gi", GPU: str(gpu)}
    container = {"name": "c", "image": "app", "resources": {"requests": requests, "limits": {GPU: str(gpu)}}}
    spec = {"schedulerName": "koord-scheduler", "containers": [container], "terminationGracePeriodSeconds": 0}
    return {"metadata": {"labels": {**LSR, **labels}}, "spec": spec}


async def add_pod(life: Life, name: str, cpu: int, gpu: int, **labels: str) -> None:
    body = template(cpu, gpu, **labels)
    body["metadata"] |= {"name": name, "namespace": "default"}
    ok(await life.client.create(PODS, body))


async def reserve_over(life: Life, cpu: int, gpu: int) -> None:
    spec = {
        "template": template(cpu, gpu),
        "owners": [{"labelSelector": {"matchLabels": {"app": "there"}}}],
        "ttl": "24h",
        "allocateOnce": False,
        "allocatePolicy": "Restricted",
        "preAllocation": True,
    }
    ok(await life.client.create(custom.RESERVATIONS, {"metadata": {"name": "r"}, "spec": spec}))


def given(found: Any) -> tuple[int, set[int]]:
    notes = found.metadata.annotations
    cpus = CPUSet.parse(json.loads(notes[A_RESOURCE_STATUS])["cpuset"]).bits
    return cpus, {card["minor"] for card in json.loads(notes[A_DEVICE_ALLOCATED])["gpu"]}


async def used(life: Life) -> tuple[int, int]:
    """Return the CPUs and whole GPUs of the machine that are in use."""
    state = life.world.scheduler.state
    (book,) = (state.derived(Books)._books[name] for name in ("n0",))
    cpus = 0
    for allocation in book.ledger.pods.values():
        assert not cpus & allocation.cpus.bits
        cpus |= allocation.cpus.bits
    return cpus.bit_count(), len(state.derived(Devices).sites["n0"].used.get("gpu", {}))


@pytest.mark.parametrize("fate", ["well", *FATES])
def test_what_a_running_pod_has_is_a_part_of_what_its_reservation_gets(fate: Fate) -> None:
    async def story(life: Life) -> None:
        await add_pod(life, "first", 4, 200)
        await add_pod(life, "there", 2, 100, app="there")
        await life.world.settle(30)
        left = 4

        def fail(request: Request) -> Fate:
            nonlocal left
            if request.method == "PATCH" and left:
                left -= 1
                return fate
            return "well"

        life.world.wire.fate = fail
        await reserve_over(life, 6, 300)
        await life.world.settle()
        reservation = ok(await life.client.get(custom.RESERVATIONS, "r"))
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
        await life.client.delete(custom.RESERVATIONS, "r")
        await life.world.settle(30)
        assert await used(life) == (8, 4), "the owner keeps its own"

    run(story)


def test_one_that_cannot_have_all_of_it_waits_and_leaves_nothing_behind() -> None:
    async def story(life: Life) -> None:
        await add_pod(life, "there", 2, 100, app="there")
        await add_pod(life, "big", 12, 700)
        await life.world.settle(30)
        await reserve_over(life, 6, 300)
        await life.world.settle(60)
        assert ok(await life.client.get(custom.RESERVATIONS, "r")).status.phase in ("", "Pending")
        assert await used(life) == (14, 8)
        await check(life)
        await life.world.remove_pod("big")
        await life.world.settle()
        assert ok(await life.client.get(custom.RESERVATIONS, "r")).status.phase == "Available"
        assert await used(life) == (6, 3)

    run(story)


@pytest.mark.parametrize("gate", [False, True])
def test_with_its_gate_a_reservation_holds_what_its_devices_come_to(gate: bool) -> None:
    made = Assembly.of(local_scheduler.configuration(), gated(REGISTRY, {"ResizePod": gate}))
    assert isinstance(made, Assembly)

    async def story(life: Life) -> None:
        spec = {"template": template(2, 200), "owners": [{"labelSelector": {}}], "ttl": "24h"}
        ok(await life.client.create(custom.RESERVATIONS, {"metadata": {"name": "r"}, "spec": spec}))
        await life.world.settle(30)
        held = ok(await life.client.get(custom.RESERVATIONS, "r")).status.allocatable
        asked = {"cpu": "2", "memory": "1Gi", GPU: "200"}
        share = {f"{GPU}-core": "200", f"{GPU}-memory": "32Gi", f"{GPU}-memory-ratio": "200"}
        assert dict(held) == (asked | share if gate else asked)

    run(story, made)


def test_a_node_where_it_cannot_have_the_card_of_its_owner_is_left_out() -> None:
    async def story(life: Life) -> None:
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
        assert ok(await life.client.get(custom.RESERVATIONS, "r")).status.node_name == "n1"
        assert A_RESERVATION_ALLOCATED not in (await life.world.pod("there")).metadata.annotations

    run(story)
