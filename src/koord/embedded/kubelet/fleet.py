"""All simulated nodes of a cluster: they register, send heartbeats, run the pods that are bound to them,
and fail on command.

Decisions are in `pod_lifecycle`, `pod_status`, `pod_worker` and `usage_model`; this is their shell. One
informer shows the pods of all nodes, one queue holds the next step of every pod, and one task sends all
heartbeats: the cost of a fleet is the number of things that happen in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from koord.api.builtin import LEASES
from koord.api.builtin import NODES as FULL_NODES
from koord.api.pod_resources import amounts
from koord.embedded.kubelet import machine as objects
from koord.embedded.kubelet import view
from koord.embedded.kubelet.address import Addresses, PodBlock
from koord.embedded.kubelet.heartbeat import LEASE_PERIOD_S, STATUS_PERIOD_S, TICK_S, Heartbeats
from koord.embedded.kubelet.host import Failure, Host, NodeUsage, Tenant
from koord.embedded.kubelet.machine import PRESSURES, Machine
from koord.embedded.kubelet.podlife import delayed, killed, rebooted
from koord.embedded.kubelet.profile import Pool
from koord.embedded.kubelet.reporter import Reporter
from koord.embedded.kubelet.tenancy import Tenancy
from koord.embedded.kubelet.usage import NOTHING, Points, Usage
from koord.embedded.kubelet.view import NodeView, PodView
from koord.kube.cache import Change
from koord.kube.client import Client
from koord.kube.controller import Controller, Done, Outcome
from koord.kube.informers import Informers
from koord.kube.recorder import Recorder
from koord.kube.refused import Refused
from koord.kube.subscription import Subscription
from koord.kube.workqueue import WorkQueue
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

WORKERS = 8
REGISTRATIONS = 8  # under way at once


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    lease_period_s: float = LEASE_PERIOD_S
    status_period_s: float = STATUS_PERIOD_S
    tick_s: float = TICK_S  # nodes take turns; fewer turns cost less where time is virtual
    reports: bool = False  # nodes write the status of their NodeMetric, where there is one


class CannotRegister(Exception):
    """Raised when the API server does not accept a node: nothing can be simulated."""


class Fleet:
    """Runs simulated nodes. `start` returns when every node is registered; pods follow as soon as the
    informers run.
    """

    def __init__(
        self,
        client: Client,
        informers: Informers,
        clock: Clock,
        seed: int,
        pools: Iterable[Pool],
        settings: Settings = Settings(),  # noqa: B008 - a frozen value
        traces: Mapping[str, Points] = MappingProxyType({}),
    ) -> None:
        """Make a fleet. `seed` decides all that is random; `traces` are those that usage models of the kind
        "trace" name.
        """
        self._seed = seed
        self._client = client
        self._clock = clock
        self._pools = tuple(pools)
        self._addresses = Addresses()
        self._counts: dict[str, int] = {}  # pool name -> number of the next node
        self._hosts: dict[str, Host] = {}
        self._tenants: dict[str, Tenant] = {}
        self._pods = informers.of(view.PODS, transform=view.slim)
        self._nodes = informers.of(view.NODES)
        self._heart = Heartbeats(
            client,
            clock,
            lease_period_s=settings.lease_period_s,
            status_period_s=settings.status_period_s,
            tick_s=settings.tick_s,
        )
        self._queue: WorkQueue[str] = WorkQueue(clock, name="simulated-pods")
        self._recorder = Recorder(client, clock, controller="kubelet", instance="simulated-kubelet")
        self._tenancy = Tenancy(client, clock, seed, self._recorder, traces)
        self._controller = Controller("simulated-kubelet", self._queue, self._sync, workers=WORKERS)
        self._reporter = Reporter(client, informers, clock, seed, self._hosts) if settings.reports else None
        self._tasks: list[asyncio.Task[None]] = []
        self._pod_news: Subscription[PodView] | None = None
        self._node_news: Subscription[NodeView] | None = None

    # Life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        for pool in self._pools:
            await self.add(pool)
        self._node_news = self._nodes.on(self._on_node)
        self._pod_news = self._pods.on(self._on_pod)
        self._recorder.start()
        self._tasks = [
            asyncio.create_task(self._controller.run(), name="simulated-kubelet"),
            asyncio.create_task(self._heart.run(), name="simulated-heartbeats"),
        ]
        if self._reporter is not None:
            self._reporter.listen()
            self._tasks.append(asyncio.create_task(self._reporter.run(), name="simulated-reports"))
        for task in self._tasks:
            task.add_done_callback(_say_if_died)

    async def stop(self) -> None:
        """Stop all kubelets. Nodes and pods stay on the server as they are; a later fleet recovers them."""
        if self._pod_news is not None:
            self._pods.off(self._pod_news)
        if self._node_news is not None:
            self._nodes.off(self._node_news)
        if self._reporter is not None:
            self._reporter.ignore()
        self._queue.shutdown(drain=False)
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._recorder.stop()

    # Nodes -------------------------------------------------------------------------------------------------------

    @property
    def seed(self) -> int:
        return self._seed

    @property
    def hosts(self) -> Mapping[str, Host]:
        return self._hosts

    async def add(self, pool: Pool) -> list[str]:
        """Register `pool.count` more nodes of this pool and return their names."""
        first = self._counts.get(pool.name, 0)
        numbers = range(first, first + pool.count)
        self._counts[pool.name] = first + pool.count
        hosts = [self._host(pool, number) for number in numbers]

        async def lane(offset: int) -> None:
            for host in hosts[offset::REGISTRATIONS]:
                await self._register(host)

        await asyncio.gather(*(lane(offset) for offset in range(REGISTRATIONS)))
        for host in hosts:
            self._hosts[host.name] = host
            self._heart.add(host)
        if self._pod_news is not None:  # pods may have been bound to a name before there was a node
            for pod in self._pods.list():
                if pod.spec.node_name in self._hosts and pod.metadata.uid not in self._tenants:
                    self._on_pod(Change(kind="added", object=pod))
        return [host.name for host in hosts]

    async def remove(self, node: str) -> None:
        """Remove a node from the cluster: its Node and Lease are deleted, its pods stop at once."""
        host = self._hosts.pop(node)
        self._heart.remove(host)
        for uid in host.tenants:
            self._tenants.pop(uid, None)
        for resource, namespace in ((LEASES, objects.LEASE_NAMESPACE), (FULL_NODES, None)):
            answer = await self._client.plain.delete(resource, node, namespace)
            if isinstance(answer, Refused) and not answer.not_found:
                raise CannotRegister(f"node {node} cannot be removed: {answer}")

    def fail(self, node: str, how: Failure = "machine") -> None:
        """Make a node send no heartbeat and no pod status until `heal_node`."""
        host = self._hosts[node]
        if host.failure is None:
            host.failed_at = self._clock.time()
        host.failure = how

    def heal(self, node: str) -> None:
        """End the failure of a node. After a "machine" failure it has rebooted: its containers died and are
        restarted as their pods say.
        """
        host = self._hosts[node]
        if host.failure is None:
            return
        now = self._clock.time()
        crashed, host.failure, host.since = host.failure == "machine", None, now
        for uid, tenant in host.tenants.items():
            if crashed and tenant.run is not None and tenant.plan is not None:
                orders = self._tenancy.orders(tenant, tenant.plan)
                tenant.run = rebooted(tenant.run, orders, host.failed_at, now)
            self._queue.add(uid)
        self._heart.say(host)

    async def restart_kubelet(self, node: str, after_s: float = 5.0) -> None:
        """Stop the kubelet of a node for a moment; its containers run on."""
        self.fail(node, "kubelet")
        await self._clock.sleep(after_s)
        self.heal(node)

    def kill(self, uid: str, container: str, reason: str = "OOMKilled") -> None:
        """Kill a container of a pod now; its kubelet restarts it as the pod says."""
        tenant = self._tenants.get(uid)
        if tenant is None or tenant.run is None or tenant.plan is None:
            return
        names = [one.name for one in tenant.template.containers]
        if container in names:
            orders = self._tenancy.orders(tenant, tenant.plan)
            tenant.run = killed(tenant.run, orders, names.index(container), self._clock.time(), reason)
            self._queue.add(uid)

    def delay(self, uid: str, seconds: float) -> None:
        """Delay a pod that did not get the CPU that it wanted: containers that end by themselves end later."""
        tenant = self._tenants.get(uid)
        if tenant is not None and tenant.run is not None:
            tenant.run = delayed(tenant.run, seconds)

    def press(self, node: str, condition: str, on: bool = True) -> None:
        """Put a node under MemoryPressure, DiskPressure or PIDPressure, or relieve it."""
        if condition not in PRESSURES:
            raise ValueError(f"there is no condition {condition!r}; there are {', '.join(PRESSURES)}")
        host = self._hosts[node]
        host.pressures[condition] = (on, self._clock.time())
        self._heart.say(host)

    def _host(self, pool: Pool, number: int) -> Host:
        name = pool.node_name(number)
        if name in self._hosts:
            raise ValueError(f"there is a node {name} already")
        address, cidr = self._addresses.node(), self._addresses.block(pool.pods)
        shape = pool.shape(name)
        machine = Machine(name=name, pool=pool, number=number, address=address, pod_cidr=cidr, shape=shape)
        return Host(machine, self._clock.time())

    async def _register(self, host: Host) -> None:
        now = self._clock.time()
        created = await self._client.create(view.NODES, objects.node_object(host.machine, now))
        if isinstance(created, Refused) and created.already_exists:
            status = objects.node_status(host.machine, now)
            created = await self._client.patch(
                view.NODES, host.name, {"status": status}, kind="strategic", subresource="status"
            )
        if isinstance(created, Refused):
            raise CannotRegister(f"node {host.name}: {created}")
        host.uid = created.metadata.uid
        if created.spec.pod_cidr and created.spec.pod_cidr != host.block.cidr:
            host.block = PodBlock(created.spec.pod_cidr)
        lease = await self._client.create(LEASES, objects.lease_object(host.name, host.uid, now))
        if isinstance(lease, Refused) and not lease.already_exists:
            raise CannotRegister(f"lease of node {host.name}: {lease}")

    def _on_node(self, change: Change[NodeView]) -> None:
        host = self._hosts.get(change.object.metadata.name)
        if host is None:
            return
        if change.kind == "deleted":
            if change.object.metadata.uid == host.uid:
                host.uid = ""  # like a real kubelet, it does not come back by itself
            return
        listed = change.object.status.allocatable
        if change.old is None or listed != change.old.status.allocatable:
            host.allocatable = amounts(listed)

    # Usage -------------------------------------------------------------------------------------------------------

    def usage(self, node: str, t: float) -> NodeUsage:
        """Return what a node and each of its present pods use at `t`."""
        return self._hosts[node].usage(t, self._seed)

    def pod_usage(self, uid: str, t: float) -> Usage | None:
        """Return what a pod gets at `t` beside its neighbours; None for pods that are not on these nodes."""
        tenant = self._tenants.get(uid)
        return None if tenant is None else tenant.host.usage(t, self._seed).pods.get(uid, NOTHING)

    # Pods --------------------------------------------------------------------------------------------------------

    def _on_pod(self, change: Change[PodView]) -> None:
        pod = change.object
        uid = pod.metadata.uid
        tenant = self._tenants.get(uid)
        if change.kind == "deleted":
            if tenant is not None:
                tenant.gone = True
                self._queue.add(uid)
            return
        if tenant is None:
            host = self._hosts.get(pod.spec.node_name)
            if host is None:
                return
            tenant = self._tenants[uid] = host.tenants[uid] = Tenant(pod, host)
            self._queue.add(uid)
            return
        old, tenant.view = tenant.view, pod
        if old.metadata.annotations != pod.metadata.annotations and tenant.load is not None:
            self._tenancy.note_usage(tenant)
        if _matters(tenant, old, pod):
            self._queue.add(uid)

    async def _sync(self, uid: str) -> Outcome:
        tenant = self._tenants.get(uid)
        if tenant is None or tenant.host.failure is not None:
            return Done()  # `heal` looks at every pod again
        if tenant.gone:
            tenant.host.let_go(tenant)
            del self._tenants[uid]
            del tenant.host.tenants[uid]
            return Done()
        return await self._tenancy.sync(tenant)


def _matters(tenant: Tenant, old: PodView, new: PodView) -> bool:
    """Return whether a pod change needs a sync: most changes are echoes of the kubelet's own writes."""
    return (
        old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        or old.template is not new.template
        or old.spec != new.spec
        or (old.status != new.status and (tenant.contradicted() or bool(tenant.template.gates)))
    )


def _say_if_died(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.critical("%s died: simulated nodes no longer act", task.get_name(), exc_info=error)
