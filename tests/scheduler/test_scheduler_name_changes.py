"""A pod that asks for another scheduler while it waits at Permit is let go, unless DynamicSchedulerCheck is off."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import msgspec

from koord.api.config.component import PluginEntry, PluginSet
from koord.api.config.scheduler.configuration import SchedulerPlugins
from koord.api.koordinator.custom_kinds import RESERVATIONS
from koord.api.koordinator.protocol import L_SCHEDULER_NAME
from koord.api.kubernetes.builtin_kinds import PODS
from koord.cli import scheduler_setup
from koord.kube.transport.api_error import unwrap
from koord.scheduler.bind import MAX_CONCURRENT_BINDINGS
from koord.scheduler.cache.node_info import NodeInfo
from koord.scheduler.cache.pod_info import PodInfo
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.framework.cycle_state import CycleState
from koord.scheduler.framework.plugin import Plugin
from koord.scheduler.framework.verdict import Wait
from koord.scheduler.plugins.registry import REGISTRY
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import FaultyCluster, faulty_cluster

KOORD_SCHEDULER = "koord-scheduler"


class WaitForEver(Plugin):
    """Make every pod of koord-scheduler wait at Permit."""

    name: ClassVar[str] = "WaitForEver"

    def permit(self, cycle: CycleState, pod: PodInfo, node: NodeInfo) -> Wait | None:
        return Wait(3600) if pod.scheduler == KOORD_SCHEDULER else None


def waiting_config(gates: dict[str, bool] | None = None) -> CompletedConfig:
    config = scheduler_setup.default_configuration()
    first, *others = config.profiles
    waits = PluginSet(enabled=(PluginEntry(name=WaitForEver.name),))
    plugins = msgspec.structs.replace(first.plugins or SchedulerPlugins(), permit=waits)
    first = msgspec.structs.replace(first, plugins=plugins)
    factories = {**REGISTRY, WaitForEver.name: lambda args, handle: WaitForEver()}
    made = CompletedConfig.complete(msgspec.structs.replace(config, profiles=(first, *others)), factories, gates)
    assert isinstance(made, CompletedConfig), made
    return made


async def one_waits(world: FaultyCluster) -> str:
    """Make a pod that has its node and waits; return its UID."""
    await world.add_node("n0", cpu="1")
    uid = (await world.add_pod("waiting", schedulerName=KOORD_SCHEDULER)).metadata.uid
    await world.clock.sleep(5)
    assert world.scheduler.waiting_pods.get(uid) is not None
    return uid


async def ask_for(world: FaultyCluster, scheduler: str) -> None:
    labels = {"metadata": {"labels": {L_SCHEDULER_NAME: scheduler}}}
    unwrap(await world.client.patch(PODS, "waiting", labels, "default", kind="merge"))
    await world.clock.sleep(5)


def test_a_stranger_gets_it() -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, waiting_config()) as world:
            uid = await one_waits(world)
            await ask_for(world, "somebody-else")
            assert world.scheduler.waiting_pods.get(uid) is None
            assert world.scheduler.state.placed_pod(uid) is None, "its room is free"
            assert uid not in world.scheduler.queue
            await world.add_pod("other")
            await world.settle(30)
            assert await world.node_of("other") == "n0"
            assert await world.node_of("waiting") == ""

    run_virtual(main)


def test_another_profile_of_this_scheduler_gets_it() -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, waiting_config()) as world:
            await one_waits(world)
            await ask_for(world, scheduler_setup.DEFAULT_SCHEDULER_NAME)
            await world.settle(30)
            assert await world.node_of("waiting") == "n0", "where nobody makes it wait"

    run_virtual(main)


def test_with_the_gate_off_it_stays() -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, waiting_config({"DynamicSchedulerCheck": False})) as world:
            uid = await one_waits(world)
            await ask_for(world, "somebody-else")
            assert world.scheduler.waiting_pods.get(uid) is not None

    run_virtual(main)


def test_one_whose_binding_has_not_been_sent_is_checked_too() -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            await world.add_node("n0", cpu="100")
            sent = asyncio.Event()
            world.wire.arrival = lambda request: sent if request.path.endswith("/binding") else None
            for i in range(MAX_CONCURRENT_BINDINGS):
                await world.add_pod(f"earlier-{i}", schedulerName=KOORD_SCHEDULER)
            await world.add_pod("waiting", schedulerName=KOORD_SCHEDULER)
            await clock.sleep(1)
            await ask_for(world, "somebody-else")
            sent.set()
            await clock.sleep(30)
            assert await world.node_of("earlier-0") == "n0"
            assert await world.node_of("waiting") == ""
            await world.client.delete(PODS, "waiting", "default", grace_seconds=0)

    run_virtual(main)


def test_a_waiting_reservation_is_let_go_too() -> None:
    def template(scheduler: str) -> dict[str, object]:
        container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "1"}}}
        return {"spec": {"schedulerName": scheduler, "containers": [container]}}

    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, waiting_config()) as world:
            await world.add_node("n0", cpu="1")
            spec = {"template": template(KOORD_SCHEDULER), "owners": [{"object": {"name": "p"}}], "ttl": "1h"}
            made = unwrap(await world.client.create(RESERVATIONS, {"metadata": {"name": "r"}, "spec": spec}))
            await clock.sleep(5)
            uid = made.metadata.uid
            assert world.scheduler.waiting_pods.get(uid) is not None
            changed = {"spec": {"template": template("somebody-else")}}
            unwrap(await world.client.patch(RESERVATIONS, "r", changed, kind="merge"))
            await clock.sleep(5)
            assert world.scheduler.waiting_pods.get(uid) is None
            assert world.scheduler.state.placed_pod(uid) is None
            await world.add_pod("other")
            await world.settle(30)
            assert await world.node_of("other") == "n0"

    run_virtual(main)
