"""Reservations in a running scheduler get a node like pods, hold it for owners, and leave nothing behind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from koord.api.config.component import PluginConfig, PluginSet
from koord.api.config.component import PluginEntry as Named
from koord.api.config.scheduler import configuration
from koord.api.config.scheduler.configuration import KubeSchedulerConfiguration, KubeSchedulerProfile, SchedulerPlugins
from koord.api.koordinator.custom_kinds import RESERVATIONS
from koord.api.koordinator.scheduling import Reservation
from koord.api.kubernetes.builtin_kinds import EVENTS_EVENTS, NODES, PODS
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.embedded.cluster import InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.interface import ApiRequest
from koord.scheduler.configuration.completed_config import CompletedConfig
from koord.scheduler.configuration.plugin_selection import without_unsupported_plugins
from koord.scheduler.plugins.registry import REGISTRY
from koord.scheduler.plugins.reservation.cache import ReservationCache
from koord.scheduler.plugins.reservation.metrics import register_reservation_metrics
from koord.scheduler.plugins.reservation.plugin import ReservationPlugin
from koord.scheduler.plugins.reservation.report import reservation_reports
from koord.scheduler.scheduler import Scheduler, StandaloneScheduler
from koord.telemetry.clock import LoopClock, run_virtual
from koord.telemetry.metrics import MetricRegistry
from tests.scheduler.faulty_cluster import FaultyCluster, FaultyTransport, RequestFate, faulty_cluster

AFFINITY = "scheduling.koordinator.sh/reservation-affinity"
ALLOCATED = "scheduling.koordinator.sh/reservation-allocated"
OWNER = [{"labelSelector": {"matchLabels": {"app": "owner"}}}]


def assembled(gates: dict[str, bool] | None = None, **args: Any) -> CompletedConfig:
    everywhere = SchedulerPlugins(
        multi_point=PluginSet(enabled=(Named(name=ReservationPlugin.name),)),
        bind=PluginSet(
            enabled=(Named(name=ReservationPlugin.name), Named(name="DefaultBinder")), disabled=(Named(name="*"),)
        ),
        post_filter=PluginSet(
            enabled=(Named(name=ReservationPlugin.name), Named(name="DefaultPreemption")), disabled=(Named(name="*"),)
        ),
    )
    profile = KubeSchedulerProfile(
        scheduler_name="default-scheduler",
        plugins=everywhere,
        plugin_config=(PluginConfig(name=ReservationPlugin.name, args=args),) if args else (),
    )
    made = CompletedConfig.complete(KubeSchedulerConfiguration(profiles=(profile,)), REGISTRY, gates)
    assert isinstance(made, CompletedConfig), made
    return made


def run(story: Callable[[FaultyCluster], Any], **args: Any) -> None:
    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, assembled(**args)) as world:
            await world.add_node("n0")
            await story(world)
            await check(world)

    run_virtual(main)


async def check(world: FaultyCluster) -> None:
    """Check that nothing stays assumed, and that what is free is what live objects say."""
    state = world.scheduler.state
    book = state.derived(ReservationCache)
    live = {r.metadata.uid: r for r in unwrap(await world.client.list(RESERVATIONS)).items}
    holding = {uid: r for uid, r in live.items() if r.status.phase == "Available"}
    pods = {p.metadata.uid: p for p in unwrap(await world.client.list(PODS)).items}
    bound = {uid: p.spec.node_name for uid, p in pods.items() if p.spec.node_name}
    assert not [p for p in state.pods() if state.is_assumed(p.uid)], "nothing stays assumed"
    expected = bound | {uid: r.status.node_name for uid, r in holding.items()}
    assert {p.uid: p.node_name for p in state.pods()} == expected
    waiting = {uid for uid, p in pods.items() if not p.spec.node_name}
    waiting |= {uid for uid, r in live.items() if r.status.phase in ("", "Pending")}
    assert {q.uid for q in world.scheduler.queue.pods()} == waiting
    assert set(book.register.usages) == set(holding)
    for node in state.nodes():
        used: dict[str, int] = {}
        for uid in (uid for uid, name in bound.items() if name == node.name):
            add(used, requests(world, uid))
        for uid, reservation in holding.items():
            if reservation.status.node_name == node.name:
                left = resource_amounts(reservation.status.allocatable)
                for pod in pods.values():
                    if pod.spec.node_name == node.name and owner_of(pod) == uid:
                        add(left, requests(world, pod.metadata.uid), -1)
                add(used, {name: max(0, amount) for name, amount in left.items()})
        assert {n: v for n, v in node.requested.items() if v} == {n: v for n, v in used.items() if v}, (
            "R30: free = allocatable - used - unconsumed reservations"
        )


def requests(world: FaultyCluster, uid: str) -> dict[str, int]:
    placed = world.scheduler.state.placed_pod(uid)
    assert placed is not None
    return placed.requests


def add(total: dict[str, int], more: dict[str, int], sign: int = 1) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + sign * amount


def owner_of(pod: Any) -> str:
    text = pod.metadata.annotations.get(ALLOCATED)
    return json.loads(text)["uid"] if text else ""


async def reserve(world: FaultyCluster, name: str, cpu: str = "2", **spec: Any) -> None:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    meta = spec.pop("metadata", {})
    template = spec.pop("template", {})
    body = {
        "metadata": {"name": name, **meta},
        "spec": {"template": {"spec": {"containers": [container], **template}}, "owners": OWNER, "ttl": "24h", **spec},
    }
    unwrap(await world.client.create(RESERVATIONS, body))


async def reservation(world: FaultyCluster, name: str) -> Reservation:
    return unwrap(await world.client.get(RESERVATIONS, name))


async def phase(world: FaultyCluster, name: str) -> str:
    return (await reservation(world, name)).status.phase


async def owner(world: FaultyCluster, name: str, cpu: str = "1", affinity: Any = None, **labels: str) -> None:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": cpu}}}
    annotations = {AFFINITY: json.dumps(affinity)} if affinity is not None else {}
    body = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"app": "owner", **labels},
            "annotations": annotations,
        },
        "spec": {"containers": [container]},
    }
    unwrap(await world.client.create(PODS, body))


async def allocated(world: FaultyCluster, name: str) -> str:
    text = (await world.pod(name)).metadata.annotations.get(ALLOCATED)
    return json.loads(text)["name"] if text else ""


async def told(world: FaultyCluster, name: str) -> str:
    return next(c.message for c in (await world.pod(name)).status.conditions if c.type == "PodScheduled")


def test_a_reservation_keeps_its_room_from_strangers_and_gives_it_to_its_owner() -> None:
    async def story(world: FaultyCluster) -> None:
        await reserve(world, "r", cpu="3")
        await world.clock.sleep(1)
        there = await reservation(world, "r")
        assert (there.status.phase, there.status.node_name) == ("Available", "n0")
        assert resource_amounts(there.status.allocatable) == {"cpu": 3000}
        assert {(c.type, c.status, c.reason) for c in there.status.conditions} == {
            ("Scheduled", "True", "Scheduled"),
            ("Ready", "True", "Available"),
        }
        await world.add_pod("stranger", cpu="2")
        await world.add_pod("small", cpu="1")
        await world.clock.sleep(1)
        assert await world.node_of("stranger") == ""
        assert await world.node_of("small") == "n0"
        await owner(world, "mine", cpu="3")
        await world.clock.sleep(2)
        assert await world.node_of("mine") == "n0"
        assert await allocated(world, "mine") == "r"
        done = await reservation(world, "r")
        assert done.status.phase == "Succeeded"
        assert [o.name for o in done.status.current_owners] == ["mine"]

    run(story)


def test_a_shared_reservation_serves_owners_until_it_is_used_up_and_takes_back_what_they_leave() -> None:
    async def story(world: FaultyCluster) -> None:
        await reserve(world, "r", cpu="2", allocateOnce=False)
        await world.clock.sleep(1)
        for name in ("a", "b", "c"):
            await owner(world, name)
            await world.clock.sleep(1)
        assert [await allocated(world, name) for name in ("a", "b", "c")] == ["r", "r", "r"]
        there = await reservation(world, "r")
        assert resource_amounts(there.status.allocated) == {"cpu": 3000}, (
            "more than reserved: the rest came from the node"
        )
        await world.add_pod("stranger", cpu="1")
        await world.clock.sleep(1)
        assert await world.node_of("stranger") == "n0"
        await world.remove_pod("a")
        await world.remove_pod("b")
        await world.add_pod("late", cpu="1")
        await world.clock.sleep(1)
        assert await world.node_of("late") == "n0", "one of the two gave back what it had of the node"
        await world.add_pod("later", cpu="1")
        await world.clock.sleep(60)
        assert await world.node_of("later") == "", "the other gave back what it had of the reservation"
        await owner(world, "d")
        await world.clock.sleep(1)
        assert await allocated(world, "d") == "r"

    run(story)


def test_a_pod_that_requests_nothing_reserved_does_not_use_a_reservation_up() -> None:
    async def story(world: FaultyCluster) -> None:
        await reserve(world, "r", cpu="3")
        await world.clock.sleep(1)
        meta = {"name": "best-effort", "namespace": "default", "labels": {"app": "owner"}}
        body = {"metadata": meta, "spec": {"containers": [{"name": "c", "image": "app"}]}}
        unwrap(await world.client.create(PODS, body))
        await world.clock.sleep(30)
        assert (await world.node_of("best-effort"), await allocated(world, "best-effort")) == ("n0", "")
        assert await phase(world, "r") == "Available"
        await owner(world, "mine", cpu="3")
        await world.clock.sleep(2)
        assert (await allocated(world, "mine"), await phase(world, "r")) == ("r", "Succeeded")

    run(story)


def test_an_owner_that_waits_wakes_when_a_reservation_for_it_comes() -> None:
    """R25: whoever could be admitted now is woken."""

    async def story(world: FaultyCluster) -> None:
        await owner(world, "mine", cpu="1", affinity={"name": "r"})
        await world.clock.sleep(1)
        assert "node(s) no reservations match reservation affinity" in await told(world, "mine")
        await reserve(world, "r", cpu="1")
        await world.clock.sleep(15)
        assert await allocated(world, "mine") == "r"

    run(story)


def test_a_pod_that_waits_for_room_wakes_when_a_reservation_expires() -> None:
    """R25: a release wakes whom it could admit."""

    async def story(world: FaultyCluster) -> None:
        await reserve(world, "r", cpu="4", ttl="1m")
        await world.clock.sleep(1)
        await world.add_pod("stranger", cpu="2")
        await world.clock.sleep(30)
        assert await world.node_of("stranger") == ""
        await world.clock.sleep(60)
        there = await reservation(world, "r")
        assert there.status.phase == "Failed"
        assert {c.type: c.reason for c in there.status.conditions}["Ready"] == "Expired"
        assert await world.node_of("stranger") == "n0"
        await world.clock.sleep(24 * 3600)
        assert isinstance(await world.client.get(RESERVATIONS, "r"), ApiError), "collected after a day"

    run(story)


def test_a_reservation_without_room_says_so_on_itself_and_comes_when_there_is_room() -> None:
    """R17: what fits after room came is placed."""

    async def story(world: FaultyCluster) -> None:
        await world.add_pod("big", cpu="4")
        await world.clock.sleep(1)
        await reserve(world, "r", cpu="2")
        await world.clock.sleep(5)
        there = await reservation(world, "r")
        assert there.status.phase == "Pending"
        (said,) = there.status.conditions
        assert (said.type, said.status, said.reason) == ("Scheduled", "False", "Unschedulable")
        assert said.message == "0/1 nodes are available: 1 Insufficient cpu."
        revision = there.metadata.resource_version
        await world.clock.sleep(600)
        assert (await reservation(world, "r")).metadata.resource_version == revision, "written when it changes"
        await world.remove_pod("big")
        await world.clock.sleep(60)
        assert await phase(world, "r") == "Available"

    run(story)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param(
            "",
            "spec.template.spec.schedulerName is not set, which means default-scheduler: it schedules no Reservations; "
            "set it to koord-scheduler",
            id="not-set",
        ),
        pytest.param(
            "koord-schedular",
            "no scheduler named koord-schedular (spec.template.spec.schedulerName) has taken this Reservation; "
            "this one serves koord-scheduler",
            id="misspelt",
        ),
    ],
)
def test_a_reservation_that_no_scheduler_serves_says_so_on_itself_once(name: str, said: str) -> None:
    async def story(world: FaultyCluster) -> None:
        template = {"schedulerName": name} if name else {}
        await reserve(world, "r", cpu="2", template=template)
        await world.clock.sleep(30)
        there = await reservation(world, "r")
        assert (there.status.phase, there.status.node_name) == ("Pending", "")
        (condition,) = there.status.conditions
        assert (condition.type, condition.status, condition.reason) == ("Scheduled", "False", "Unschedulable")
        assert condition.message == said
        revision = there.metadata.resource_version
        await world.clock.sleep(900)
        assert (await reservation(world, "r")).metadata.resource_version == revision, "written once"
        events = unwrap(await world.client.list(EVENTS_EVENTS, "default")).items
        assert [e.note for e in events if e.regarding.name == "r" and e.reason == "FailedScheduling"] == [said]
        reports = reservation_reports([there], [])
        assert (reports[0].phase, reports[0].message) == ("Pending", said)
        patch = {"spec": {"template": {"spec": {"schedulerName": "koord-scheduler"}}}}
        unwrap(await world.client.patch(RESERVATIONS, "r", patch, kind="merge"))
        await world.clock.sleep(5)
        assert await phase(world, "r") == "Available"

    async def main(clock: LoopClock) -> None:
        async with faulty_cluster(clock, shipped_with_kubernetes_profile()) as world:
            await world.add_node("n0")
            await story(world)

    run_virtual(main)


def test_a_reservation_that_another_scheduler_serves_is_left_to_it() -> None:
    async def story(world: FaultyCluster) -> None:
        await reserve(world, "r", cpu="2", template={"schedulerName": "another"})
        await world.clock.sleep(2)
        status = {
            "phase": "Pending",
            "conditions": [
                {"type": "Scheduled", "status": "False", "reason": "Unschedulable", "message": "another says why"}
            ],
        }
        unwrap(await world.client.patch(RESERVATIONS, "r", {"status": status}, kind="merge", subresource="status"))
        await world.clock.sleep(120)
        (condition,) = (await reservation(world, "r")).status.conditions
        assert condition.message == "another says why"
        unwrap(await world.client.delete(RESERVATIONS, "r"))

    run(story)


def shipped_with_kubernetes_profile() -> CompletedConfig:
    """Return the shipped profile, and one named default-scheduler without koord's plugins."""
    given = configuration.configuration()
    same_queue = SchedulerPlugins(queue_sort=configuration.plugins().queue_sort)  # all profiles must say the same of it
    kubernetes = KubeSchedulerProfile(scheduler_name="default-scheduler", plugins=same_queue)
    both = msgspec.structs.replace(given, profiles=(*given.profiles, kubernetes))
    config, _ = without_unsupported_plugins(both, REGISTRY)
    made = CompletedConfig.complete(config, REGISTRY)
    assert isinstance(made, CompletedConfig), made
    return made


@pytest.mark.parametrize("fate", ["lost", "lost-after", "409", "429", "500", "500-after", "503"])
def test_no_trouble_on_the_wire_leaves_anything_behind(fate: RequestFate) -> None:
    """Bind failure: of the Reservation's status and of the owner's binding."""

    async def story(world: FaultyCluster) -> None:
        struck: dict[str, int] = {}

        def strike(request: ApiRequest) -> RequestFate:
            path = request.path
            if request.method in ("PATCH", "POST") and ("/reservations/" in path or path.endswith("/binding")):
                struck[path] = struck.get(path, 0) + 1
                return fate if struck[path] <= 2 else "well"
            return "well"

        world.wire.fate = strike
        await reserve(world, "r", cpu="3")
        await world.settle()
        assert await phase(world, "r") == "Available"
        await owner(world, "mine", cpu="3")
        await world.settle()
        assert await allocated(world, "mine") == "r"
        assert await phase(world, "r") == "Succeeded"
        assert struck

    run(story)


def test_deletion_at_any_moment_gives_the_room_back() -> None:
    async def story(world: FaultyCluster) -> None:
        for pause in (0.0, 0.001, 0.01, 0.1, 1.0):
            await reserve(world, "r", cpu="4")
            await world.clock.sleep(pause)
            await owner(world, "mine", cpu="2")
            await world.clock.sleep(pause)
            unwrap(await world.client.delete(RESERVATIONS, "r"))
            await world.add_pod("stranger", cpu="2")
            await world.clock.sleep(60)
            assert await world.node_of("mine") == "n0"
            assert await world.node_of("stranger") == "n0"
            await check(world)
            await world.remove_pod("mine")
            await world.remove_pod("stranger")
            await world.clock.sleep(5)

    run(story)


def test_a_new_leader_sees_the_same() -> None:
    """Failover: everything is read from live objects, owners by their annotation."""

    async def story(world: FaultyCluster) -> None:
        await reserve(world, "r", cpu="3", allocateOnce=False)
        await world.clock.sleep(1)
        await owner(world, "mine", cpu="1")
        await world.clock.sleep(1)
        before = {n.name: dict(n.requested) for n in world.scheduler.state.nodes()}
        async with standby(world) as again:
            after = {n.name: dict(n.requested) for n in again.state.nodes()}
            assert after == before
            assert (
                again.state.derived(ReservationCache).register.usages
                == world.scheduler.state.derived(ReservationCache).register.usages
            )

    run(story)


@asynccontextmanager
async def standby(world: FaultyCluster) -> AsyncIterator[Scheduler]:
    """Run another scheduler that sees the same objects."""
    informers = InformerFactory(world.client, world.clock, seed=2)
    scheduler = Scheduler(world.client, informers, world.clock, assembled(), seed=2)
    await scheduler.start()
    informers.start()
    await scheduler.wait_synced()
    try:
        yield scheduler
    finally:
        await scheduler.stop()
        await informers.stop()


def test_nothing_is_written_before_the_first_lists_are_complete_R4() -> None:
    """A new leader that knows no pods yet must not conclude that a reservation has no owners, or is done."""

    async def story(world: FaultyCluster) -> None:
        for name, once in (("shared", False), ("once", True)):
            await reserve(world, name, cpu="1", allocateOnce=once)
        await world.clock.sleep(1)
        await owner(world, "mine", affinity={"name": "shared"})
        await world.clock.sleep(5)
        before = {name: await reservation(world, name) for name in ("shared", "once")}
        assert [o.name for o in before["shared"].status.current_owners] == ["mine"]
        await world.leading.stop()
        assert world.cluster.server is not None
        wire = FaultyTransport(InProcessTransport(world.cluster.server, "system:kube-scheduler"))
        wire.fate = lambda request: "lost" if request.method == "GET" and request.path.endswith("/pods") else "well"
        client = Client(wire, clock=world.clock, qps=0, burst=0)
        informers = InformerFactory(client, world.clock, seed=2)
        world.leading = StandaloneScheduler(Scheduler(client, informers, world.clock, assembled(), seed=2))
        await world.leading.start()
        informers.start()
        await world.clock.sleep(120)
        for name, was in before.items():
            assert (await reservation(world, name)).metadata.resource_version == was.metadata.resource_version
        wire.fate = lambda _: "well"
        await world.clock.sleep(60)
        for name, was in before.items():
            assert (await reservation(world, name)).status == was.status
        await check(world)
        await world.leading.stop()
        await informers.stop()
        await world.leading.start()

    run(story)


def test_an_owner_that_ended_and_is_then_deleted_gives_its_part_back_once_R8() -> None:
    async def story(world: FaultyCluster) -> None:
        await reserve(world, "r", cpu="2", allocateOnce=False, allocatePolicy="Restricted")
        await world.clock.sleep(1)
        await owner(world, "mine", cpu="2")
        await world.clock.sleep(2)
        await owner(world, "next", cpu="2", affinity={"name": "r"})
        await world.clock.sleep(5)
        assert await world.node_of("next") == ""
        status = {"status": {"phase": "Succeeded"}}
        unwrap(await world.client.patch(PODS, "mine", status, "default", kind="merge", subresource="status"))
        await world.clock.sleep(15)
        assert await allocated(world, "next") == "r"
        await world.remove_pod("mine")
        await world.add_pod("stranger", cpu="3")
        await world.clock.sleep(15)
        assert await world.node_of("stranger") == "", "two are in use, and two are free"
        assert [o.name for o in (await reservation(world, "r")).status.current_owners] == ["next"]

    run(story)


def test_a_node_that_goes_ends_its_reservations() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_node("n1", cpu="8")
        await reserve(world, "r", cpu="6")
        await world.clock.sleep(1)
        assert (await reservation(world, "r")).status.node_name == "n1"
        unwrap(await world.client.delete(NODES, "n1"))
        await world.clock.sleep(40)
        gone = await world.client.get(RESERVATIONS, "r")
        assert isinstance(gone, ApiError), "it failed, and without its node it is not kept"

    run(story)


def test_a_stated_moment_ends_a_reservation() -> None:
    """R20: times hold as they are written."""

    async def story(world: FaultyCluster) -> None:
        soon = datetime.fromtimestamp(world.clock.time(), UTC) + timedelta(seconds=20)
        await reserve(world, "r", cpu="2", expires=soon.strftime("%Y-%m-%dT%H:%M:%SZ"))
        await world.clock.sleep(10)
        assert await phase(world, "r") == "Available"
        await world.clock.sleep(15)
        assert await phase(world, "r") == "Failed"

    run(story)


def test_nobody_is_evicted_for_a_reservation_unless_that_is_allowed() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_pod("low", cpu="3")
        await world.clock.sleep(1)
        await reserve(world, "r", cpu="2")
        await world.clock.sleep(30)
        assert await world.node_of("low") == "n0"
        assert await phase(world, "r") == "Pending"

    run(story)


def test_a_reservation_may_evict_where_that_is_allowed() -> None:
    async def story(world: FaultyCluster) -> None:
        await world.add_pod("low", cpu="3")
        await world.clock.sleep(1)
        await reserve(world, "r", cpu="2")
        await world.clock.sleep(60)
        gone = await world.client.get(PODS, "low", "default")
        assert isinstance(gone, ApiError) or gone.metadata.deletion_timestamp is not None
        await world.remove_pod("low")
        await world.clock.sleep(30)
        assert await phase(world, "r") == "Available"

    run(story, enablePreemption=True)


def test_pods_are_not_evicted_for_room_that_goes_back_to_a_reservation() -> None:
    """R21: whoever is evicted leaves room for the one it was done for. An owner's room is its reservation's."""

    async def story(world: FaultyCluster) -> None:
        await reserve(world, "r", cpu="4", allocateOnce=False)
        await world.clock.sleep(1)
        await owner(world, "mine", cpu="4")
        await world.clock.sleep(1)
        await world.add_pod("high", cpu="2", priority=None, priorityClassName="system-node-critical")
        await world.clock.sleep(30)
        assert await world.node_of("mine") == "n0"
        assert (await world.pod("mine")).metadata.deletion_timestamp is None
        assert await world.node_of("high") == ""

    run(story)


@pytest.mark.parametrize("fate", ["well", "lost", "500-after"])
def test_a_reservation_comes_over_a_pod_that_runs(fate: RequestFate) -> None:
    async def story(world: FaultyCluster) -> None:
        struck: dict[str, int] = {}

        def strike(request: ApiRequest) -> RequestFate:
            if request.method == "PATCH" and ("/reservations/" in request.path or "/pods/there" in request.path):
                struck[request.path] = struck.get(request.path, 0) + 1
                return fate if struck[request.path] == 1 else "well"
            return "well"

        await owner(world, "there", cpu="3")
        await world.clock.sleep(1)
        world.wire.fate = strike
        await reserve(world, "r", cpu="4", preAllocation=True, allocatePolicy="Restricted", allocateOnce=False)
        await world.settle()
        there = await reservation(world, "r")
        assert there.status.phase == "Available"
        assert [o.name for o in there.status.current_owners] == ["there"]
        assert await allocated(world, "there") == "r"

    run(story)


@pytest.mark.parametrize("hours", [-48, -1, 1, 48])
def test_a_clock_that_jumps_ends_what_is_over_and_nothing_else(hours: int) -> None:
    async def story(world: FaultyCluster) -> None:
        await reserve(world, "r", cpu="2", ttl="24h", allocateOnce=False)
        await world.clock.sleep(1)
        await owner(world, "mine", cpu="1")
        await world.clock.sleep(30)
        world.clock._epoch += hours * 3600
        await world.clock.sleep(60)
        gone = await world.client.get(RESERVATIONS, "r")
        assert (isinstance(gone, Reservation) and gone.status.phase) == ("Failed" if hours == 48 else "Available")
        await check(world)
        await owner(world, "more", cpu="1")
        await world.clock.sleep(5)
        assert await world.node_of("more") == "n0"

    run(story)


@pytest.mark.parametrize("clean", [False, True])
def test_owners_forget_a_deleted_reservation_where_the_gate_says_so(clean: bool) -> None:
    async def story(world: FaultyCluster) -> None:
        await reserve(world, "r", cpu="2", allocateOnce=False)
        await world.clock.sleep(1)
        await owner(world, "mine", cpu="1")
        await world.clock.sleep(1)
        unwrap(await world.client.delete(RESERVATIONS, "r"))
        await world.clock.sleep(5)
        assert await allocated(world, "mine") == ("" if clean else "r")

    run(story, gates={"CleanExpiredReservationAllocated": clean})


def test_events_are_told_of_the_reservation_and_of_the_pod_that_asked_for_it() -> None:
    async def story(world: FaultyCluster) -> None:
        await reserve(world, "huge", cpu="100")
        await reserve(world, "r", cpu="2", allocatePolicy="Restricted", allocateOnce=False)
        await world.clock.sleep(2)
        await owner(world, "big", cpu="3", affinity={})
        await world.clock.sleep(20)
        found = {
            (e.regarding.kind, e.regarding.name, e.reason): e.note
            for e in unwrap(await world.client.list(EVENTS_EVENTS)).items
        }
        assert found["Reservation", "r", "Scheduled"] == "Successfully assigned r to n0"
        assert found["Reservation", "huge", "FailedScheduling"] == "0/1 nodes are available: 1 Insufficient cpu."
        assert found["Pod", "big", "FailedScheduling-Reservation"] == (
            "0/1 reservations are available: 1 Reservation(s) Insufficient cpu."
        )

    run(story)


def test_metrics_are_of_what_is_there() -> None:
    """R29: object gone, series gone."""

    async def story(world: FaultyCluster) -> None:
        registry = MetricRegistry()
        register_reservation_metrics(registry, world.scheduler.handle, lambda: True)
        await reserve(world, "r", cpu="2", allocateOnce=False)
        await world.clock.sleep(1)
        await owner(world, "mine", cpu="1")
        await world.clock.sleep(1)
        told = {reading.name: dict(reading.values) for reading in registry.readings()}
        phases = told["scheduler_reservation_status_phase"]
        assert {phase for (_, phase), value in phases.items() if value} == {"Available"}
        amounts = told["scheduler_reservation_resource"]
        assert amounts["allocatable", "r", "cpu", "core"] == 2.0
        assert amounts["utilization", "r", "cpu", "ratio"] == 0.5
        unwrap(await world.client.delete(RESERVATIONS, "r"))
        await world.clock.sleep(1)
        assert [reading.values for reading in registry.readings()] == [[], []]

    run(story)
