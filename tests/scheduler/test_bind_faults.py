"""Whatever happens to a binding request, no pod is bound twice, none is lost and nothing stays assumed."""

from __future__ import annotations

import pytest

from koord.api.kubernetes.builtin_kinds import CORE_EVENTS
from koord.cli import scheduler_setup
from koord.embedded.cluster import InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import unwrap
from koord.kube.transport.interface import ApiRequest
from koord.scheduler.scheduler import Scheduler, StandaloneScheduler
from koord.telemetry.clock import LoopClock, run_virtual
from tests.scheduler.faulty_cluster import RequestFate, faulty_cluster


def is_binding(request: ApiRequest) -> bool:
    return request.method == "POST" and request.path.endswith("/binding")


@pytest.mark.parametrize("fate", ["lost", "lost-after", "409", "429", "500", "500-after", "503"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_binding_that_fails_is_made_in_the_end(fate: RequestFate, times: int) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            left = times

            def fail(request: ApiRequest) -> RequestFate:
                nonlocal left
                if is_binding(request) and left:
                    left -= 1
                    return fate
                return "well"

            world.wire.fate = fail
            await world.add_node("n0")
            for name in ("a", "b", "c"):
                await world.add_pod(name)
            await world.settle()
            assert {await world.node_of(name) for name in ("a", "b", "c")} == {"n0"}
            await world.check()

    run_virtual(main)


def test_an_answer_that_was_lost_keeps_its_room() -> None:
    """The node has room for one pod. While nobody knows whether it is bound, no other may take its place."""

    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            await world.add_node("n0", cpu="1")
            world.wire.fate = lambda request: "lost-after" if is_binding(request) else "well"
            await world.add_pod("first")
            await clock.sleep(0.2)
            await world.add_pod("second")
            await world.settle(60)
            assert await world.node_of("first") == "n0"
            assert await world.node_of("second") == ""
            world.wire.fate = lambda _: "well"
            await world.check()

    run_virtual(main)


def test_a_refused_binding_is_told_and_others_hear_of_the_room() -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            await world.add_node("n0", cpu="1")
            first = await world.add_pod("first", priority=None)
            uid = first.metadata.uid
            world.wire.fate = lambda r: "409" if is_binding(r) and "/first/" in r.path else "well"
            await clock.sleep(0.5)
            await world.add_pod("second")
            await world.settle(30)
            assert await world.node_of("second") == "n0", "the room of a failed binding is free for others"
            notes = [
                e.message for e in unwrap(await world.client.list(CORE_EVENTS)).items if e.involved_object.uid == uid
            ]
            assert any('running Bind plugin "DefaultBinder"' in note for note in notes), notes
            reasons = [c.reason for c in (await world.pod("first")).status.conditions if c.type == "PodScheduled"]
            assert reasons in (["SchedulerError"], ["Unschedulable"])
            await world.check()

    run_virtual(main)


def test_a_pod_deleted_while_it_is_bound_leaves_nothing() -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            await world.add_node("n0", cpu="1")
            world.wire.fate = lambda request: "lost" if is_binding(request) else "well"
            await world.add_pod("first")
            await clock.sleep(0.1)
            await world.remove_pod("first")
            world.wire.fate = lambda _: "well"
            await world.add_pod("second")
            await world.settle()
            assert await world.node_of("second") == "n0"
            await world.check()

    run_virtual(main)


def test_the_server_gone_for_minutes_is_survived_without_a_restart() -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            await world.add_node("n0")
            await world.add_pod("before")
            await clock.sleep(5)
            world.wire.cut = True
            await world.wire.break_watches()
            await world.add_pod("meanwhile")
            await world.remove_pod("before")
            await world.add_node("n1")
            await clock.sleep(300)
            assert await world.node_of("meanwhile") == ""
            world.wire.cut = False
            await world.settle()
            assert await world.node_of("meanwhile") in ("n0", "n1")
            await world.check()

    run_virtual(main)


def test_one_write_for_a_bound_pod() -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock) as world:
            await world.add_node("n0")
            for n in range(4):
                await world.add_pod(f"p{n}", cpu="500m")
            await world.settle(5)
            writes = [r for r in world.wire.requests if r.method != "GET" and "/pods" in r.path]
            assert len(writes) == 4
            assert all(is_binding(r) for r in writes)

    run_virtual(main)


def test_two_schedulers_on_one_cluster_bind_nothing_twice() -> None:
    """As when a lease was lost and the old leader has not noticed: the server's refusal is the last line."""

    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, seed=1) as one:
            assert one.cluster.server is not None
            client = Client(InProcessTransport(one.cluster.server), clock=clock, qps=0, burst=0)
            informers = InformerFactory(client, clock, seed=2)
            made = scheduler_setup.scheduler_assembly()
            assert not isinstance(made, str)
            other = StandaloneScheduler(Scheduler(client, informers, clock, made, seed=2))
            await other.start()
            informers.start()
            await other.scheduler.wait_synced()
            for n in range(3):
                await one.add_node(f"n{n}")
            for n in range(9):
                await one.add_pod(f"p{n}")
            await one.settle()
            assert all([await one.node_of(f"p{n}") for n in range(9)])
            await one.check()
            assert {p.uid: p.node_name for p in other.scheduler.state.pods()} == {
                p.uid: p.node_name for p in one.scheduler.state.pods()
            }
            await other.stop()
            await informers.stop()

    run_virtual(main)
