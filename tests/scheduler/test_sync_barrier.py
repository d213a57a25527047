"""A new leader waits until its watch shows what the one before it wrote, and no longer than it is told."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from koord.api.kubernetes.builtin_kinds import NAMESPACES, PODS
from koord.cli import scheduler_setup
from koord.embedded.cluster import InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.interface import ApiRequest, ApiResponse, Unreachable, WatchStream
from koord.scheduler.cache.cluster_state import ClusterState
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.scheduler import Scheduler
from koord.scheduler.sync_barrier import SyncBarrier, SyncBarrierSettings
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import FaultyCluster, FaultyTransport, faulty_cluster

SETTINGS = SyncBarrierSettings(lease="koord-scheduler", timeout_s=60.0)
ANNOTATION = "scheduling.koordinator.sh/sync-barrier-koord-scheduler"


class LaggingTransport(FaultyTransport):
    """Send requests, and show nothing of the cluster while it lags."""

    lags = False

    async def send(self, request: ApiRequest) -> ApiResponse:
        if self.lags and request.method == "GET":
            raise Unreachable("no answer")
        return await super().send(request)

    async def watch(self, request: ApiRequest) -> WatchStream | ApiResponse:
        if self.lags:
            raise Unreachable("no answer")
        return await super().watch(request)

    async def fall_behind(self) -> None:
        self.lags = True
        await self.break_watches()


class Standby:
    """A scheduler that does not lead yet, on a transport that can lag."""

    def __init__(self, world: FaultyCluster, *, gate: bool) -> None:
        made = scheduler_setup.scheduler_assembly(gates={"SyncBarrier": gate})
        assert isinstance(made, CompletedConfig), made
        assert world.cluster.server is not None
        self.wire = LaggingTransport(InProcessTransport(world.cluster.server, "system:kube-scheduler"))
        self.client = Client(self.wire, clock=world.clock, qps=0, burst=0, chance=random.Random(2))
        self.informers = InformerFactory(self.client, world.clock, seed=2)
        self.scheduler = Scheduler(self.client, self.informers, world.clock, made, seed=2, sync_barrier=SETTINGS)
        self.barrier = SyncBarrier(self.client, self.scheduler.handle.pods, self.scheduler.state, world.clock, SETTINGS)


@asynccontextmanager
async def standby(world: FaultyCluster, *, gate: bool = True) -> AsyncIterator[Standby]:
    made = Standby(world, gate=gate)
    await made.scheduler.start()
    made.informers.start()
    await made.scheduler.wait_synced()
    try:
        yield made
    finally:
        await made.scheduler.stop()
        await made.informers.stop()


def run(story: Callable[[FaultyCluster], Awaitable[None]]) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            await world.leading.stop()  # the leader before
            await story(world)

    run_virtual(main)


async def add_barrier(world: FaultyCluster) -> None:
    answer = await world.client.create(NAMESPACES, {"metadata": {"name": SETTINGS.namespace}})
    assert not isinstance(answer, ApiError) or answer.already_exists
    gates = [{"name": "koordinator.sh/barrier"}]
    spec = {"containers": [{"name": "c", "image": "none"}], "schedulingGates": gates, "schedulerName": "nobody"}
    body = {"metadata": {"name": SETTINGS.name, "namespace": SETTINGS.namespace}, "spec": spec}
    unwrap(await world.client.create(PODS, body))


def test_the_barrier_pod_is_annotated() -> None:
    async def story(world: FaultyCluster) -> None:
        await add_barrier(world)
        async with standby(world) as made:
            assert await made.barrier.wait()
        pod = unwrap(await world.client.get(PODS, SETTINGS.name, SETTINGS.namespace))
        assert pod.metadata.annotations[ANNOTATION].startswith("2026-01-01T00:00:")

    run(story)


def test_without_a_barrier_pod_nobody_waits() -> None:
    async def story(world: FaultyCluster) -> None:
        async with standby(world) as made:
            began = world.clock.monotonic()
            assert not await made.barrier.wait()
            assert world.clock.monotonic() == began

    run(story)


def test_a_watch_that_lags_is_waited_for() -> None:
    async def story(world: FaultyCluster) -> None:
        await add_barrier(world)
        await world.add_node("n0")
        async with standby(world) as made:
            await made.wire.fall_behind()
            uid = (await world.add_pod("bound", nodeName="n0")).metadata.uid
            waiting = asyncio.create_task(made.barrier.wait())
            await world.clock.sleep(30)
            assert not waiting.done()
            made.wire.lags = False
            assert await waiting
            assert made.scheduler.state.placed_pod(uid) is not None

    run(story)


def test_the_cluster_state_is_waited_for_as_well_as_the_watch() -> None:
    """A first list is told to the handlers piece by piece, after the informer shows all of it."""

    async def story(world: FaultyCluster) -> None:
        await add_barrier(world)
        await world.add_node("n0")
        await world.add_pod("bound", nodeName="n0")
        async with standby(world) as made:
            behind = ClusterState()
            barrier = SyncBarrier(made.client, made.scheduler.handle.pods, behind, world.clock, SETTINGS)
            waiting = asyncio.create_task(barrier.wait())
            await world.clock.sleep(30)
            assert not waiting.done()
            shown = made.scheduler.handle.pods.get("default", "bound")
            assert shown is not None
            behind.set_pod(shown)
            await world.add_pod("another", schedulerName="nobody")  # any change of pods
            assert await waiting

    run(story)


@pytest.mark.parametrize("ended", [True, False])
def test_a_pod_that_goes_meanwhile_is_not_waited_for(ended: bool) -> None:
    async def story(world: FaultyCluster) -> None:
        await add_barrier(world)
        await world.add_node("n0")
        await world.add_pod("bound", nodeName="n0")
        async with standby(world) as made:
            barrier = SyncBarrier(made.client, made.scheduler.handle.pods, ClusterState(), world.clock, SETTINGS)
            waiting = asyncio.create_task(barrier.wait())
            await world.clock.sleep(30)
            assert not waiting.done()
            if ended:
                patch = {"status": {"phase": "Succeeded"}}
                unwrap(await world.client.patch(PODS, "bound", patch, "default", kind="merge", subresource="status"))
            else:
                await world.remove_pod("bound")
            assert await waiting

    run(story)


def test_the_wait_has_an_end() -> None:
    async def story(world: FaultyCluster) -> None:
        await add_barrier(world)
        async with standby(world) as made:
            await made.wire.fall_behind()
            began = world.clock.monotonic()
            assert not await made.barrier.wait()
            assert world.clock.monotonic() - began == pytest.approx(SETTINGS.timeout_s)
            made.wire.lags = False

    run(story)


def test_a_refused_annotation_is_tried_again() -> None:
    async def story(world: FaultyCluster) -> None:
        await add_barrier(world)
        async with standby(world) as made:
            end = world.clock.monotonic() + 10
            made.wire.fate = lambda request: (
                "500" if request.method == "PATCH" and world.clock.monotonic() < end else "well"
            )
            assert await made.barrier.wait()
            assert world.clock.monotonic() >= end
            made.wire.fate = lambda request: "500" if request.method == "PATCH" else "well"
            assert not await made.barrier.wait()

    run(story)


@pytest.mark.parametrize("gate", [True, False])
def test_a_leader_that_lags_does_not_give_a_node_twice(gate: bool) -> None:
    async def story(world: FaultyCluster) -> None:
        await add_barrier(world)
        await world.add_node("n0", cpu="4")
        await world.add_pod("second", cpu="3")
        async with standby(world, gate=gate) as made:
            await made.wire.fall_behind()
            await world.add_pod("first", cpu="3", nodeName="n0")  # by the leader before
            leading = asyncio.create_task(made.scheduler.lead())
            await world.clock.sleep(10)
            made.wire.lags = False
            await world.clock.sleep(60)
            assert await world.node_of("second") == ("" if gate else "n0"), "without the gate the node is overcommitted"
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)

    run(story)
