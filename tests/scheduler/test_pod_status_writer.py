"""The PodScheduled condition of a pod says what is true, however late its patch arrives."""

from __future__ import annotations

import asyncio

from koord.api.kubernetes.builtin_kinds import PODS
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import FaultyCluster, faulty_cluster


def is_status_patch(request: ApiRequest) -> bool:
    return request.method == "PATCH" and request.path.endswith("/status")


async def condition(world: FaultyCluster, name: str) -> tuple[str, str]:
    conditions = (await world.pod(name)).status.conditions
    return next((c.status, c.reason) for c in conditions if c.type == "PodScheduled")


def test_a_patch_that_arrives_after_the_binding_is_refused() -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            arrives = asyncio.Event()
            world.wire.arrival = lambda request: arrives if is_status_patch(request) else None
            await world.add_pod("p")  # there is no node: unschedulable
            await clock.sleep(1)
            await world.add_node("n0")
            await clock.sleep(30)
            assert await world.node_of("p") == "n0"
            arrives.set()
            await clock.sleep(30)
            assert await condition(world, "p") == ("True", "")
            await world.check()

    run_virtual(main)


def test_a_change_of_the_pod_meanwhile_delays_the_condition_only() -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            arrives = asyncio.Event()
            world.wire.arrival = lambda request: arrives if is_status_patch(request) else None
            await world.add_pod("p")
            await clock.sleep(1)
            unwrap(await world.client.patch(PODS, "p", {"metadata": {"labels": {"a": "b"}}}, "default", kind="merge"))
            arrives.set()
            await clock.sleep(2)
            assert await condition(world, "p") == ("False", "Unschedulable")

    run_virtual(main)


def test_the_newest_update_of_a_pod_is_written_last() -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            arrives = asyncio.Event()
            world.wire.arrival = lambda r: (
                arrives if is_status_patch(r) and "no nodes available" in str(r.body) else None
            )
            await world.add_pod("p", cpu="8")
            await clock.sleep(1)
            await world.add_node("n0")  # too small: another message
            await clock.sleep(10)
            arrives.set()
            await clock.sleep(5)
            conditions = (await world.pod("p")).status.conditions
            (message,) = (c.message for c in conditions if c.type == "PodScheduled")
            assert "1 Insufficient cpu" in message

    run_virtual(main)
