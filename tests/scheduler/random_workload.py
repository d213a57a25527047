"""A cluster in which everything of Koordinator's scheduler is used at once, by chance, and what must then be true.

Machines have 16 CPUs in two NUMA nodes and eight GPUs. Pods want CPUs or GPUs of their own, come in gangs, draw on
quotas and own reservations; whatever they depend on may vanish at any moment, and the scheduler may die.
"""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec

from koord.api.koordinator import custom_kinds
from koord.api.koordinator.protocol import (
    A_DEVICE_ALLOCATED,
    A_RESERVATION_ALLOCATED,
    A_RESOURCE_STATUS,
    L_POD_GROUP,
    L_QUOTA_NAME,
)
from koord.api.kubernetes.builtin_kinds import NAMESPACES, NODES, PODS, PRIORITY_CLASSES
from koord.cli import scheduler_setup
from koord.embedded.cluster import InProcessTransport
from koord.kube.client.typed_client import Client
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError, unwrap
from koord.kube.transport.interface import ApiRequest
from koord.scheduler.plugins.coscheduling.gang_cache import GangCache
from koord.scheduler.plugins.coscheduling.gang_manager import GangManager
from koord.scheduler.plugins.device_share.cache import NodeDeviceCache as Devices
from koord.scheduler.plugins.elastic_quota.plugin import ElasticQuotaPlugin
from koord.scheduler.plugins.node_numa_resource.cache import NodeAllocationCache
from koord.scheduler.plugins.reservation.cache import ReservationCache as Reservations
from koord.scheduler.scheduler import Scheduler, StandaloneScheduler
from koord.values.cpuset import CPUSet
from tests.scheduler.faulty_cluster import WRITES, FaultyCluster, FaultyTransport, RequestFate
from tests.scheduler.plugins.device_share.device_builders import REFERENCE_GPUS
from tests.scheduler.plugins.elastic_quota.test_quota_manager_event_order import numbers_of
from tests.scheduler.plugins.node_numa_resource.numa_cluster import topology

GPU = "koordinator.sh/gpu"
ROOM = {"cpu": "16", "memory": "64Gi", "pods": "110", GPU: "800"}
LSR = {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}
FATES: tuple[RequestFate, ...] = ("lost", "lost-after", "409", "429", "500", "500-after", "503")
MACHINES, PODS_THERE, GANGS, QUOTAS, RESERVATIONS = 3, 16, 3, 2, 4


class RandomWorkload:
    """Run one random history, decided by `chance`."""

    def __init__(self, world: FaultyCluster, chance: random.Random) -> None:
        self.world = world
        self.client = world.client
        self.chance = chance
        self.told: list[str] = []  # what was done, for whoever looks at a failure
        self.wounded: set[str] = set()  # gangs that lost something after they may have started

    async def begin(self) -> None:
        unwrap(await self.client.create(NAMESPACES, {"metadata": {"name": "koordinator-system"}}))
        for name, value in (("low", 1), ("high", 1000)):
            unwrap(await self.client.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value}))
        for number in range(MACHINES):
            await self.machine(number)
        for number in range(GANGS):
            await self.gang(number)
        for number in range(QUOTAS):
            await self.quota(number)

    async def step(self) -> None:
        """Make one random change."""
        deeds = {
            self.pod: 12,
            self.unpod: 5,
            self.reserve: 4,
            self.unreserve: 1,
            self.unmachine: 1,
            self.machine: 2,
            self.unknown_devices: 1,
            self.unknown_topology: 1,
            self.gang: 2,
            self.ungang: 1,
            self.quota: 2,
            self.unquota: 1,
            self.fate: 3,
            self.watches_break: 1,
            self.fail_over: 1,
            self.time_passes: 10,
        }
        (deed,) = self.chance.choices(list(deeds), list(deeds.values()))
        self.told.append(deed.__name__)
        await deed()

    async def end(self) -> None:
        """End the faults, and restore everything that pods may depend on."""
        self.world.wire.fate = lambda _: "well"
        for number in range(MACHINES):
            await self.machine(number)
        for number in range(GANGS):
            await self.gang(number)
        for number in range(QUOTAS):
            await self.quota(number)
        await self.world.settle(900)

    # What there is -----------------------------------------------------------------------------------------------

    def some(self, among: int) -> int:
        return self.chance.randrange(among)

    async def machine(self, number: int | None = None) -> None:
        name = f"n{self.some(MACHINES) if number is None else number}"
        await self.client.create(NODES, {"metadata": {"name": name}, "status": {"allocatable": ROOM, "capacity": ROOM}})
        await self.client.create(
            custom_kinds.DEVICES, {"metadata": {"name": name}, "spec": {"devices": REFERENCE_GPUS}}
        )
        body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(topology(name)))
        kind = {"apiVersion": "topology.node.k8s.io/v1alpha1", "kind": "NodeResourceTopology"}
        await self.client.create(custom_kinds.NODE_RESOURCE_TOPOLOGIES, {**body, **kind})

    async def unmachine(self) -> None:
        self.wounded.update(f"g{n}" for n in range(GANGS))
        await self.client.delete(NODES, f"n{self.some(MACHINES)}")

    async def unknown_devices(self) -> None:
        await self.client.delete(custom_kinds.DEVICES, f"n{self.some(MACHINES)}")

    async def unknown_topology(self) -> None:
        await self.client.delete(custom_kinds.NODE_RESOURCE_TOPOLOGIES, f"n{self.some(MACHINES)}")

    async def gang(self, number: int | None = None) -> None:
        number = self.some(GANGS) if number is None else number
        meta = {"name": f"g{number}", "namespace": "default"}
        await self.client.create(custom_kinds.POD_GROUPS, {"metadata": meta, "spec": {"minMember": number + 1}})

    async def ungang(self) -> None:
        name = f"g{self.some(GANGS)}"
        self.wounded.add(name)
        await self.client.delete(custom_kinds.POD_GROUPS, name, "default")

    async def quota(self, number: int | None = None) -> None:
        number = self.some(QUOTAS) if number is None else number
        most = {"cpu": str(8 + 4 * number), GPU: "400"}
        meta = {"name": f"q{number}", "namespace": "default"}
        await self.client.create(custom_kinds.ELASTIC_QUOTAS, {"metadata": meta, "spec": {"min": most, "max": most}})

    async def unquota(self) -> None:
        await self.client.delete(custom_kinds.ELASTIC_QUOTAS, f"q{self.some(QUOTAS)}", "default")

    # Pods and reservations ---------------------------------------------------------------------------------------

    def _wants(self) -> tuple[dict[str, str], dict[str, str]]:
        """Draw labels and requests: plain, exclusive CPUs, GPUs, or both."""
        kind = self.chance.choice(("plain", "cpus", "gpus", "both"))
        cpus = str(self.chance.choice((1, 2, 4)))
        labels = LSR if kind in ("cpus", "both") else {}
        requests = {"cpu": cpus, "memory": "1Gi"}
        if kind in ("gpus", "both"):
            requests[GPU] = str(self.chance.choice((25, 50, 100, 200)))
        return labels, requests

    async def pod(self) -> None:
        labels, requests = self._wants()
        labels = dict(labels)
        if self.chance.random() < 0.4:
            labels[L_POD_GROUP] = f"g{self.some(GANGS)}"
        if self.chance.random() < 0.5:
            labels[L_QUOTA_NAME] = f"q{self.some(QUOTAS)}"
        if self.chance.random() < 0.4:
            labels["app"] = f"r{self.some(RESERVATIONS)}"
        limits = {GPU: requests[GPU]} if GPU in requests else {}
        container = {"name": "c", "image": "app", "resources": {"requests": requests, "limits": limits}}
        spec = {
            "schedulerName": "koord-scheduler",
            "containers": [container],
            "terminationGracePeriodSeconds": 0,
            "priorityClassName": self.chance.choice(("low", "low", "high")),
        }
        meta = {"name": f"p{self.some(PODS_THERE)}", "namespace": "default", "labels": labels}
        await self.client.create(PODS, {"metadata": meta, "spec": spec})

    async def unpod(self) -> None:
        name = f"p{self.some(PODS_THERE)}"
        found = await self.client.get(PODS, name, "default")
        if not isinstance(found, ApiError):
            self.wounded.add(found.metadata.labels.get(L_POD_GROUP, ""))
            await self.world.remove_pod(name)

    async def reserve(self) -> None:
        number = self.some(RESERVATIONS)
        labels, requests = self._wants()
        limits = {GPU: requests[GPU]} if GPU in requests else {}
        container = {"name": "c", "image": "app", "resources": {"requests": requests, "limits": limits}}
        template = {
            "metadata": {"labels": labels},
            "spec": {"schedulerName": "koord-scheduler", "containers": [container]},
        }
        spec = {
            "template": template,
            "owners": [{"labelSelector": {"matchLabels": {"app": f"r{number}"}}}],
            "ttl": self.chance.choice(("20s", "1h", "24h")),
            "allocateOnce": self.chance.random() < 0.5,
            "allocatePolicy": self.chance.choice(("Aligned", "Restricted")),
        }
        await self.client.create(custom_kinds.RESERVATIONS, {"metadata": {"name": f"r{number}"}, "spec": spec})

    async def unreserve(self) -> None:
        await self.client.delete(custom_kinds.RESERVATIONS, f"r{self.some(RESERVATIONS)}")

    # Trouble -----------------------------------------------------------------------------------------------------

    async def fate(self) -> None:
        kind, left = self.chance.choice(FATES), self.chance.randrange(1, 6)

        def fail(request: ApiRequest) -> RequestFate:
            nonlocal left
            if request.method in WRITES and left:
                left -= 1
                return kind
            return "well"

        self.world.wire.fate = fail

    async def watches_break(self) -> None:
        await self.world.wire.break_watches()

    async def fail_over(self) -> None:
        """Kill the leader as it is; another one knows only what the server has."""
        world = self.world
        await world.leading.stop()
        await world.informers.stop()
        wire, informers, scheduler = second_scheduler(world, self.some(1 << 16))
        world.wire, world.informers, world.leading = wire, informers, StandaloneScheduler(scheduler)
        await world.leading.start()
        informers.start()
        await scheduler.wait_synced()

    async def time_passes(self) -> None:
        await self.world.clock.sleep(self.chance.choice((0.0, 0.01, 0.3, 2.0, 30.0)))


def second_scheduler(world: FaultyCluster, seed: int) -> tuple[FaultyTransport, InformerFactory, Scheduler]:
    """Make a scheduler that has seen nothing yet."""
    assert world.cluster.server is not None
    wire = FaultyTransport(InProcessTransport(world.cluster.server, "system:kube-scheduler"))
    client = Client(wire, clock=world.clock, qps=0, burst=0, chance=random.Random(seed))
    informers = InformerFactory(client, world.clock, seed=seed)
    made = scheduler_setup.scheduler_assembly()
    assert not isinstance(made, str), made
    return wire, informers, Scheduler(client, informers, world.clock, made, seed=seed)


# What must be true when nothing is under way -----------------------------------------------------------------------


async def check(life: RandomWorkload) -> None:
    world = life.world
    assert not {uid: n for uid, n in world.nodes_of.items() if len(n) > 1}, "no pod is ever bound twice"
    scheduler = world.scheduler
    state = scheduler.state
    await wait_until_quiet(world)
    assert state.derived(NodeAllocationCache).assumed == {}
    assert state.derived(Devices).assumed == {}
    assert state.derived(GangManager).round is None
    await _as_written(world)
    await _no_half_gang(life)
    _, informers, fresh = second_scheduler(world, 99)
    await fresh.start()
    informers.start()
    await fresh.wait_synced()
    await wait_until_quiet(world)
    try:
        mine, anew = scheduler_view(scheduler), scheduler_view(fresh)
        for part in anew:
            assert mine[part] == anew[part], f"{part}: what is kept is what a new scheduler makes of the live objects"
    finally:
        await fresh.stop()
        await informers.stop()


async def wait_until_quiet(world: FaultyCluster) -> None:
    """Wait until no gang holds resources: gangs that cannot start are retried now and then."""
    scheduler, state = world.scheduler, world.scheduler.state
    for _ in range(20):
        if not scheduler.binder.in_progress and not any(state.is_assumed(p.uid) for p in state.pods()):
            return
        await world.clock.sleep(0.7)
    raise AssertionError(f"stays assumed: {[p.key for p in state.pods() if state.is_assumed(p.uid)]}")


def scheduler_view(scheduler: Scheduler) -> dict[str, Any]:
    state = scheduler.state
    register = state.derived(Reservations).register
    gangs: GangCache = state.derived(GangManager).gangs
    quotas = next(
        p for profile in scheduler.profiles.values() for p in profile.plugins() if isinstance(p, ElasticQuotaPlugin)
    ).quota_cache.manager
    standings = register.usages
    return {
        "nodes": {
            n.name: (n.requested, n.nonzero_cpu, n.nonzero_memory, set(n.pods)) for n in state.table.index.values()
        },
        "cpus": state.derived(NodeAllocationCache).pod_allocations(),
        "devices": {(node, uid): held for node, uid, held in state.derived(Devices).iter_allocations()},
        "reservations": {uid: (s.allocated, s.owner_count, s.info.node) for uid, s in standings.items()},
        "owners": {uid: set(register.owner_pods(uid)) for uid in standings},
        "quotas": numbers_of(quotas),
        "gangs": {
            g.id: (set(g.members), set(g.pending), set(g.waiting), g.bound, g.spec) for g in gangs.gangs.values()
        },
    }


async def _as_written(world: FaultyCluster) -> None:
    """Check that what is allocated is what pods and reservations carry, and that nothing is carried twice."""
    state = world.scheduler.state
    pods = [p for p in unwrap(await world.client.list(PODS)).items if p.spec.node_name]
    held = [
        r for r in unwrap(await world.client.list(custom_kinds.RESERVATIONS)).items if r.status.phase == "Available"
    ]
    carried: dict[str, dict[str, int]] = {}
    for found, node in (*((p, p.spec.node_name) for p in pods), *((r, r.status.node_name) for r in held)):
        text = found.metadata.annotations.get(A_RESOURCE_STATUS)
        cpus = CPUSet.parse(json.loads(text).get("cpuset", "")).bits if text else 0
        if cpus:
            carried.setdefault(node, {})[found.metadata.uid] = cpus
    books = {
        node: {uid: e.allocation.cpus.bits for uid, e in entries.items() if e.allocation.cpus.bits}
        for node, entries in state.derived(NodeAllocationCache).pod_allocations().items()
    }
    assert {n: e for n, e in books.items() if e} == carried, "CPUs are held by who carries them"
    inside = {
        p.metadata.uid: json.loads(t)["uid"] for p in pods if (t := p.metadata.annotations.get(A_RESERVATION_ALLOCATED))
    }
    for node, by_uid in carried.items():
        taken, owned = 0, dict.fromkeys(by_uid, 0)
        for uid, cpus in by_uid.items():
            host = inside.get(uid, "")
            if host in by_uid:  # of what its reservation holds, each CPU is one owner's
                assert not owned[host] & cpus, f"a reserved CPU of {node} is given twice"
                owned[host] |= cpus
                cpus &= ~by_uid[host]
            assert not taken & cpus, f"a CPU of {node} is given twice"
            taken |= cpus
    devices = state.derived(Devices)
    with_cards = {f.metadata.uid for f in (*pods, *held) if f.metadata.annotations.get(A_DEVICE_ALLOCATED)}
    assert {uid for _, uid, _ in devices.iter_allocations()} == with_cards, "devices are held by who carries them"
    assert {(node, uid): h for node, uid, h in devices.iter_allocations()} == devices.rebuild_allocations()
    for site in devices.nodes.values():
        for excess in site.ledger.overcommits():  # owners and their reservation are both counted there
            cards = {
                uid: held.get(excess.device_type, {}).get(excess.minor, {}).get(excess.resource, 0)
                for uid, held in site.ledger.allocations.items()
            }
            twice = sum(
                min(n, cards[host])
                for uid, n in cards.items()
                if (host := site.reservation_of_owner.get(uid, "")) in cards
            )
            assert excess.held - twice <= excess.total, f"a card is given twice: {excess}"


async def _no_half_gang(life: RandomWorkload) -> None:
    for number in range(GANGS):
        name = f"g{number}"
        if name in life.wounded:
            continue
        pods = unwrap(await life.client.list(PODS, "default")).items
        bound = [p.metadata.name for p in pods if p.metadata.labels.get(L_POD_GROUP) == name and p.spec.node_name]
        assert not bound or len(bound) > number, f"{name} started with {bound} of {number + 1}"
