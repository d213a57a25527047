"""All simulated nodes of a cluster: they register, send heartbeats, run the pods that are bound to them,
and fail on command.

Decisions are in `pod_lifecycle`, `pod_status`, `pod_worker` and `usage_model`; this is their shell. One
informer shows the pods of all nodes, one queue holds the next step of every pod, and one task sends all
heartbeats: the cost of a fleet is the number of things that happen in it.

The driver of dynamic resource allocation publishes the GPUs of a simulated node as a ResourceSlice. Only pools whose
`gpus` name a driver have one. A slice that somebody deletes or changes is written again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from koord.api.kubernetes.builtin_kinds import LEASES, RESOURCE_SLICES
from koord.api.kubernetes.builtin_kinds import NODES as FULL_NODES
from koord.api.kubernetes.dynamic_resources import ResourceSlice
from koord.embedded.kubelet import node_objects as objects
from koord.embedded.kubelet import simulated_host, slim_views
from koord.embedded.kubelet.node_objects import PRESSURES, SimulatedNodeSpec
from koord.embedded.kubelet.node_profile import SimulatedPool
from koord.embedded.kubelet.node_reporter import (
    HEARTBEAT_TICK_S,
    LEASE_PERIOD_S,
    STATUS_PERIOD_S,
    HeartbeatLoop,
    SimulatedNodeMetricReporter,
)
from koord.embedded.kubelet.pod_lifecycle import after_delay, after_kill, after_reboot
from koord.embedded.kubelet.pod_worker import PodWorker
from koord.embedded.kubelet.simulated_host import SimulatedHost
from koord.embedded.kubelet.slim_views import SlimNode, SlimPod
from koord.embedded.kubelet.usage_model import ZERO_USAGE, SimulatedUsage, UsageTrace
from koord.kube.client.typed_client import Client
from koord.kube.controller.controller import Controller, Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.events.recorder import EventRecorder
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.informer.informer import HandlerRegistration
from koord.kube.transport.api_error import ApiError
from koord.telemetry.clock import Clock
from koord.values.quantity import Format, Quantity

_LOG = logging.getLogger(__name__)

FIELD_MANAGER = "simulated-device-driver"
RETRY_S = 10.0


def slice_name(machine: SimulatedNodeSpec) -> str:
    assert machine.pool.gpus is not None, "only nodes with GPUs have a driver"
    return f"{machine.name}-{machine.pool.gpus.driver}"


def resource_slice(machine: SimulatedNodeSpec, node_uid: str) -> dict[str, Any]:
    """Return the ResourceSlice of a node's GPUs, owned by its Node so that it is deleted with it."""
    assert machine.pool.gpus is not None, "only nodes with GPUs have a driver"
    owner = {"apiVersion": "v1", "kind": "Node", "name": machine.name, "uid": node_uid}
    devices = [
        {
            "name": f"gpu-{gpu.minor}",
            "attributes": {
                "index": {"int": gpu.minor},
                "model": {"string": gpu.model},
                "numaNode": {"int": gpu.numa},
                "uuid": {"string": gpu.uuid},
                "resource.kubernetes.io/pciBusID": {"string": gpu.bus_id},
                "resource.kubernetes.io/pcieRoot": {"string": gpu.pcie},
            },
            "capacity": {"memory": {"value": str(Quantity.from_value(gpu.memory_bytes, Format.BINARY_SI))}},
        }
        for gpu in machine.hardware.gpus
    ]
    return {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": RESOURCE_SLICES.kind,
        "metadata": {"name": slice_name(machine), "ownerReferences": [owner]},
        "spec": {
            "driver": machine.pool.gpus.driver,
            "nodeName": machine.name,
            "pool": {"name": machine.name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


class SimulatedDeviceDriver:
    """Keeps the ResourceSlices of a fleet's nodes. Run it in a task."""

    def __init__(
        self, client: Client, informers: InformerFactory, clock: Clock, hosts: Mapping[str, SimulatedHost]
    ) -> None:
        self._client = client
        self._hosts = hosts
        self._nodes: dict[str, str] = {}  # slice name -> node name
        self._slices = informers.for_resource(RESOURCE_SLICES)
        self._queue: WorkQueue[str] = WorkQueue(clock, name="simulated-device-driver")
        self._controller = Controller("simulated-device-driver", self._queue, self._publish, workers=1)

    def publish_soon(self, host: SimulatedHost) -> None:
        self._nodes[slice_name(host.machine)] = host.name
        self._queue.add(host.name)

    async def run(self) -> None:
        """Publish until cancelled."""
        await self._slices.wait_for_sync()
        subscription = self._slices.add_event_handler(self._on_slice)
        try:
            await self._controller.run()
        finally:
            self._queue.shutdown(drain=False)
            self._slices.remove_event_handler(subscription)

    def _on_slice(self, change: ObjectChange[ResourceSlice]) -> None:
        node = self._nodes.get(change.object.metadata.name)
        if node is not None and change.kind != "added":
            self._queue.add(node)

    async def _publish(self, node: str) -> ReconcileResult:
        host = self._hosts.get(node)
        if host is None or not host.uid:  # its slice is deleted with its Node
            return Done()
        if host.failure in ("machine", "partition"):
            return RequeueAfter(RETRY_S)
        wanted = resource_slice(host.machine, host.uid)
        answer = await self._client.apply(RESOURCE_SLICES, wanted, field_manager=FIELD_MANAGER, force=True)
        if isinstance(answer, ApiError):
            _LOG.warning("the ResourceSlice of node %s: %s", node, answer)
            return Requeue(answer.message)
        return Done()


def has_driver(machine: SimulatedNodeSpec) -> bool:
    return machine.pool.gpus is not None and bool(machine.pool.gpus.driver)


WORKERS = 8
CONCURRENT_REGISTRATIONS = 8  # under way at once


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    lease_period_s: float = LEASE_PERIOD_S
    status_period_s: float = STATUS_PERIOD_S
    tick_s: float = HEARTBEAT_TICK_S  # nodes take turns; fewer turns cost less where time is virtual
    reports_node_metrics: bool = False  # nodes write the status of their NodeMetric, where there is one


class NodeRegistrationError(Exception):
    """Raised when the API server does not accept a node: nothing can be simulated."""


class SimulatedFleet:
    """Runs simulated nodes. `start` returns when every node is registered; pods follow as soon as the informers run."""

    def __init__(
        self,
        client: Client,
        informers: InformerFactory,
        clock: Clock,
        seed: int,
        pools: Iterable[SimulatedPool],
        settings: FleetSettings = FleetSettings(),  # noqa: B008 - a frozen value
        traces: Mapping[str, UsageTrace] = MappingProxyType({}),
    ) -> None:
        """Make a fleet. `seed` decides all that is random; `traces` are those that "trace" usage models name."""
        self._seed = seed
        self._client = client
        self._clock = clock
        self._pools = tuple(pools)
        self._ipam = simulated_host.NodeIpam()
        self._next_number: dict[str, int] = {}  # pool name -> number of the next node
        self._hosts: dict[str, simulated_host.SimulatedHost] = {}
        self._sim_pods: dict[str, simulated_host.SimulatedPod] = {}
        self._pods = informers.for_resource(slim_views.PODS, transform=slim_views.slim_pod)
        self._nodes = informers.for_resource(slim_views.NODES)
        self._heartbeats = HeartbeatLoop(
            client,
            clock,
            lease_period_s=settings.lease_period_s,
            status_period_s=settings.status_period_s,
            tick_s=settings.tick_s,
        )
        self._queue: WorkQueue[str] = WorkQueue(clock, name="simulated-pods")
        self._recorder = EventRecorder(
            client, clock, controller="kubelet", instance="simulated-kubelet", rng=random.Random(seed)
        )
        self._pod_worker = PodWorker(client, clock, seed, self._recorder, traces)
        self._controller = Controller("simulated-kubelet", self._queue, self._sync, workers=WORKERS)
        self._reporter = (
            SimulatedNodeMetricReporter(client, informers, clock, seed, self._hosts)
            if settings.reports_node_metrics
            else None
        )
        with_driver = any(pool.gpus is not None and pool.gpus.driver for pool in self._pools)
        self._driver = SimulatedDeviceDriver(client, informers, clock, self._hosts) if with_driver else None
        self._tasks: list[asyncio.Task[None]] = []
        self._pod_subscription: HandlerRegistration[SlimPod] | None = None
        self._node_subscription: HandlerRegistration[SlimNode] | None = None

    # Life --------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        for pool in self._pools:
            await self.add_pool(pool)
        self._node_subscription = self._nodes.add_event_handler(self._on_node)
        self._pod_subscription = self._pods.add_event_handler(self._on_pod)
        self._recorder.start()
        self._tasks = [
            asyncio.create_task(self._controller.run(), name="simulated-kubelet"),
            asyncio.create_task(self._heartbeats.run(), name="simulated-heartbeats"),
        ]
        if self._reporter is not None:
            self._reporter.subscribe()
            self._tasks.append(asyncio.create_task(self._reporter.run(), name="simulated-reports"))
        if self._driver is not None:
            self._tasks.append(asyncio.create_task(self._driver.run(), name="simulated-device-driver"))
        for task in self._tasks:
            task.add_done_callback(_log_if_died)

    async def stop(self) -> None:
        """Stop all kubelets. Nodes and pods stay on the server as they are; a later fleet recovers them."""
        if self._pod_subscription is not None:
            self._pods.remove_event_handler(self._pod_subscription)
        if self._node_subscription is not None:
            self._nodes.remove_event_handler(self._node_subscription)
        if self._reporter is not None:
            self._reporter.stop()
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
    def hosts(self) -> Mapping[str, simulated_host.SimulatedHost]:
        return self._hosts

    async def add_pool(self, pool: SimulatedPool) -> list[str]:
        """Register `pool.count` more nodes of this pool and return their names.

        A pool with a device driver must be like one that the fleet was made with: others have no driver's process.
        """
        if pool.gpus is not None and pool.gpus.driver and self._driver is None:
            raise ValueError(f"pool {pool.name}: the fleet was made without device drivers")
        first = self._next_number.get(pool.name, 0)
        numbers = range(first, first + pool.count)
        self._next_number[pool.name] = first + pool.count
        hosts = [self._make_host(pool, number) for number in numbers]

        async def lane(offset: int) -> None:
            for host in hosts[offset::CONCURRENT_REGISTRATIONS]:
                await self._register(host)

        await asyncio.gather(*(lane(offset) for offset in range(CONCURRENT_REGISTRATIONS)))
        for host in hosts:
            self._hosts[host.name] = host
            self._heartbeats.add(host)
            if self._driver is not None and has_driver(host.machine):
                self._driver.publish_soon(host)
        if self._pod_subscription is not None:  # pods may have been bound to a name before there was a node
            for pod in self._pods.list():
                if pod.spec.node_name in self._hosts and pod.metadata.uid not in self._sim_pods:
                    self._on_pod(ObjectChange(kind="added", object=pod))
        return [host.name for host in hosts]

    async def remove_node(self, node: str) -> None:
        """Remove a node from the cluster: its Node and Lease are deleted, its pods stop at once."""
        host = self._hosts.pop(node)
        self._heartbeats.remove(host)
        for uid in host.sim_pods:
            self._sim_pods.pop(uid, None)
        for resource, namespace in ((LEASES, objects.LEASE_NAMESPACE), (FULL_NODES, None)):
            answer = await self._client.dynamic.delete(resource, node, namespace)
            if isinstance(answer, ApiError) and not answer.not_found:
                raise NodeRegistrationError(f"node {node} cannot be removed: {answer}")

    def fail_node(self, node: str, how: simulated_host.Failure = "machine") -> None:
        """Make a node send no heartbeat and no pod status until `heal_node`."""
        host = self._hosts[node]
        if host.failure is None:
            host.failed_at = self._clock.time()
        host.failure = how

    def heal_node(self, node: str) -> None:
        """End the failure of a node. After a "machine" failure it has rebooted, and containers restart as pods say."""
        host = self._hosts[node]
        if host.failure is None:
            return
        now = self._clock.time()
        crashed, host.failure, host.kubelet_started_at = host.failure == "machine", None, now
        for uid, sim_pod in host.sim_pods.items():
            if crashed and sim_pod.run is not None and sim_pod.plan is not None:
                run_spec = self._pod_worker.run_spec(sim_pod, sim_pod.plan)
                sim_pod.run = after_reboot(sim_pod.run, run_spec, host.failed_at, now)
            self._queue.add(uid)
        self._heartbeats.report_soon(host)

    async def restart_kubelet(self, node: str, after_s: float = 5.0) -> None:
        """Stop the kubelet of a node for a moment; its containers run on."""
        self.fail_node(node, "kubelet")
        await self._clock.sleep(after_s)
        self.heal_node(node)

    def kill_container(self, uid: str, container: str, reason: str = "OOMKilled") -> None:
        """Kill a container of a pod now; its kubelet restarts it as the pod says."""
        sim_pod = self._sim_pods.get(uid)
        if sim_pod is None or sim_pod.run is None or sim_pod.plan is None:
            return
        names = [one.name for one in sim_pod.template.containers]
        if container in names:
            run_spec = self._pod_worker.run_spec(sim_pod, sim_pod.plan)
            sim_pod.run = after_kill(sim_pod.run, run_spec, names.index(container), self._clock.time(), reason)
            self._queue.add(uid)

    def delay_pod(self, uid: str, seconds: float) -> None:
        """Delay a pod that did not get the CPU that it wanted: containers that end by themselves end later."""
        sim_pod = self._sim_pods.get(uid)
        if sim_pod is not None and sim_pod.run is not None:
            sim_pod.run = after_delay(sim_pod.run, seconds)

    def set_pressure(self, node: str, condition: str, on: bool = True) -> None:
        """Put a node under MemoryPressure, DiskPressure or PIDPressure, or relieve it."""
        if condition not in PRESSURES:
            raise ValueError(f"there is no condition {condition!r}; there are {', '.join(PRESSURES)}")
        host = self._hosts[node]
        host.pressures[condition] = (on, self._clock.time())
        self._heartbeats.report_soon(host)

    def _make_host(self, pool: SimulatedPool, number: int) -> simulated_host.SimulatedHost:
        name = pool.node_name(number)
        if name in self._hosts:
            raise ValueError(f"there is a node {name} already")
        address, cidr = self._ipam.allocate_node_ip(), self._ipam.allocate_pod_cidr(pool.pods)
        shape = pool.hardware(name)
        machine = SimulatedNodeSpec(name=name, pool=pool, number=number, address=address, pod_cidr=cidr, hardware=shape)
        return simulated_host.SimulatedHost(machine, self._clock.time())

    async def _register(self, host: simulated_host.SimulatedHost) -> None:
        now = self._clock.time()
        created = await self._client.create(slim_views.NODES, objects.node_object(host.machine, now))
        if isinstance(created, ApiError) and created.already_exists:
            status = objects.node_status(host.machine, now)
            created = await self._client.patch(
                slim_views.NODES, host.name, {"status": status}, kind="strategic", subresource="status"
            )
        if isinstance(created, ApiError):
            raise NodeRegistrationError(f"node {host.name}: {created}")
        host.uid = created.metadata.uid
        if created.spec.pod_cidr and created.spec.pod_cidr != host.pod_cidr.cidr:
            host.pod_cidr = simulated_host.PodCidrAllocator(created.spec.pod_cidr)
        lease = await self._client.create(LEASES, objects.lease_object(host.name, host.uid, now))
        if isinstance(lease, ApiError) and not lease.already_exists:
            raise NodeRegistrationError(f"lease of node {host.name}: {lease}")

    def _on_node(self, change: ObjectChange[SlimNode]) -> None:
        host = self._hosts.get(change.object.metadata.name)
        if host is None:
            return
        if change.kind == "deleted":
            if change.object.metadata.uid == host.uid:
                host.uid = ""  # like a real kubelet, it does not come back by itself
            return
        old, new = change.old, change.object
        if old is None or old.status != new.status or old.metadata.labels != new.metadata.labels:
            host.observe_node(new)
            if host.extended_changes:
                self._heartbeats.report_soon(host)

    # Usage -------------------------------------------------------------------------------------------------------

    def node_usage(self, node: str, t: float) -> simulated_host.HostUsage:
        """Return what a node and each of its present pods use at `t`."""
        return self._hosts[node].usage(t, self._seed)

    def pod_usage(self, uid: str, t: float) -> SimulatedUsage | None:
        """Return what a pod gets at `t` beside its neighbours; None for pods that are not on these nodes."""
        sim_pod = self._sim_pods.get(uid)
        return None if sim_pod is None else sim_pod.host.usage(t, self._seed).pods.get(uid, ZERO_USAGE)

    # Pods --------------------------------------------------------------------------------------------------------

    def _on_pod(self, change: ObjectChange[SlimPod]) -> None:
        pod = change.object
        uid = pod.metadata.uid
        sim_pod = self._sim_pods.get(uid)
        if change.kind == "deleted":
            if sim_pod is not None:
                sim_pod.is_deleted = True
                self._queue.add(uid)
            return
        if sim_pod is None:
            host = self._hosts.get(pod.spec.node_name)
            if host is None:
                return
            sim_pod = self._sim_pods[uid] = host.sim_pods[uid] = simulated_host.SimulatedPod(pod, host)
            self._queue.add(uid)
            return
        old, sim_pod.view = sim_pod.view, pod
        if old.metadata.annotations != pod.metadata.annotations and sim_pod.load is not None:
            self._pod_worker.update_load(sim_pod)
        if _needs_sync(sim_pod, old, pod):
            self._queue.add(uid)

    async def _sync(self, uid: str) -> ReconcileResult:
        sim_pod = self._sim_pods.get(uid)
        if sim_pod is None or sim_pod.host.failure is not None:
            return Done()  # `heal` looks at every pod again
        if sim_pod.is_deleted:
            sim_pod.host.release(sim_pod)
            del self._sim_pods[uid]
            del sim_pod.host.sim_pods[uid]
            return Done()
        return await self._pod_worker.sync(sim_pod)


def _needs_sync(sim_pod: simulated_host.SimulatedPod, old: SlimPod, new: SlimPod) -> bool:
    """Return whether a pod change needs a sync: most changes are echoes of the kubelet's own writes."""
    return (
        old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        or old.template is not new.template
        or old.spec != new.spec
        or old.claims != new.claims
        or (old.status != new.status and (sim_pod.is_overwritten() or bool(sim_pod.template.gates)))
    )


def _log_if_died(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.critical("%s died: simulated nodes no longer act", task.get_name(), exc_info=error)
