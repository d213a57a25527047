"""Report the hardware of simulated nodes as koordlet does on real ones: a NodeResourceTopology for every node, and a
Device for nodes with GPUs or RDMA cards.

koordlet's own builders make the content. An object that the Node does not own was written by somebody else, by hand
for example, and is left as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from koord.api.annotations.cpu_codecs import CPUBasicInfo
from koord.api.koordinator.custom_kinds import DEVICES, NODE_RESOURCE_TOPOLOGIES
from koord.api.koordinator.scheduling import Device
from koord.api.kubernetes.builtin_kinds import NODES
from koord.api.kubernetes.meta import Object
from koord.api.kubernetes.node import Node
from koord.api.kubernetes.pod_resources import resource_amounts
from koord.api.kubernetes.resource import Resource
from koord.embedded.kubelet.node_profile import NodeHardware, SimulatedPool
from koord.embedded.kubelet.pod_behaviour import seeded_uniform
from koord.embedded.kubelet.simulated_host import SimulatedHost
from koord.host.hardware import GpuCard, GpuInventory, MachineCpu, PciLocation, RdmaCard
from koord.koordlet.inputs.pod_meta import PodMeta
from koord.koordlet.reporters.builders.device import DeviceReport, build_device_report
from koord.koordlet.reporters.builders.node_metric import ReportWithheld
from koord.koordlet.reporters.builders.topology import (
    KubeletResourcePolicy,
    NumaMemory,
    TopologyReport,
    TopologyView,
    build_topology,
)
from koord.koordlet.reporters.object_reporter import device_patch, new_device, new_topology, topology_patch
from koord.kube.client.typed_client import Client
from koord.kube.controller.controller import Controller, Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
from koord.kube.transport.api_error import ApiError
from koord.telemetry.clock import Clock

_LOG = logging.getLogger(__name__)

REPORTS_PER_S = 50  # of new nodes at most, spread at random: a large fleet has other things to do when it starts
RETRY_S = 10.0
WORKERS = 2
CPU_MODEL, CPU_VENDOR, GPU_DRIVER = "Simulated CPU", "GenuineIntel", "570.0"

O = TypeVar("O", bound=Object)  # noqa: E741  an object


def machine_cpus(hardware: NodeHardware) -> tuple[MachineCpu, ...]:
    return tuple(
        MachineCpu(cpu=one.cpu, core=one.core, socket=one.socket, node=one.numa) for one in hardware.logical_cpus()
    )


def topology_of(pool: SimulatedPool, hardware: NodeHardware, node: Node, pods: tuple[PodMeta, ...]) -> TopologyReport:
    """Build what koordlet would report of the CPUs and NUMA nodes of this machine."""
    each, rest = divmod(hardware.memory_bytes, hardware.numa_nodes)
    report = build_topology(
        TopologyView(
            labels=node.metadata.labels,
            annotations=node.metadata.annotations or None,
            allocatable=resource_amounts(node.status.allocatable),
            processors=machine_cpus(hardware),
            basic=CPUBasicInfo(
                cpu_model=CPU_MODEL, vendor_id=CPU_VENDOR, hyper_thread_enabled=hardware.threads_per_core > 1
            ),
            numa=tuple(
                NumaMemory(number=number, memory_bytes=each + (rest if number == 0 else 0))
                for number in range(hardware.numa_nodes)
            ),
            kubelet=KubeletResourcePolicy(
                reserved=({"cpu": str(pool.reserved.cpu), "memory": str(pool.reserved.memory)},)
            ),
            pods=pods,
        )
    )
    assert not isinstance(report, ReportWithheld), f"the hardware of a simulated node is known: {report}"
    return report


def gpu_cards(hardware: NodeHardware) -> tuple[GpuCard, ...]:
    return tuple(
        GpuCard(uuid=one.uuid, minor=one.minor, total_bytes=one.memory_bytes, address=one.bus_id, model=one.model)
        for one in hardware.gpus
    )


def device_of(hardware: NodeHardware, before: Device | None, now_s: float) -> DeviceReport | None:
    """Build what koordlet would report of the GPUs and RDMA cards of this machine; None without any."""
    if not hardware.gpus and not hardware.nics:
        return None
    gpus = gpu_cards(hardware)
    places = {one.uuid: PciLocation(one.numa, one.pcie) for one in hardware.gpus}
    cards = [
        RdmaCard(
            address=one.bus_id,
            minor=one.minor,
            healthy=True,
            location=PciLocation(one.numa, one.pcie),
            virtual_functions=one.virtual_function_addresses(),
        )
        for one in hardware.nics
    ]
    known = () if before is None else before.spec.devices
    inventory = GpuInventory(cards=gpus, driver=GPU_DRIVER if gpus else "")
    return build_device_report([], cards, known, now_s, inventory, places)


class SimulatedHardwareReporter:
    """Keeps the NodeResourceTopology and the Device of every node of a fleet. Run it in a task. `pods_of` returns the
    pods of a node where they are followed: CPUs that they hold are left out of the shared pools.
    """

    def __init__(
        self,
        client: Client,
        informers: InformerFactory,
        clock: Clock,
        seed: int,
        hosts: Mapping[str, SimulatedHost],
        pods_of: Callable[[str], tuple[PodMeta, ...]] = lambda _: (),
    ) -> None:
        self._client = client
        self._clock = clock
        self._seed = seed
        self._hosts = hosts
        self._pods_of = pods_of
        self._nodes = informers.for_resource(NODES)
        self._topologies = informers.for_resource(NODE_RESOURCE_TOPOLOGIES)
        self._devices = informers.for_resource(DEVICES)
        self._queue: WorkQueue[str] = WorkQueue(clock, name="simulated-hardware")
        self._controller = Controller("simulated-hardware", self._queue, self._report, workers=WORKERS)
        self._task: asyncio.Task[None] | None = None

    def report_soon(self, node: str) -> None:
        """Look at a node again: its pods changed."""
        if node in self._hosts:
            self._queue.add(node)

    def start(self) -> None:
        self._task = asyncio.create_task(self.run(), name="simulated-hardware")
        self._task.add_done_callback(_log_if_died)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def run(self) -> None:
        """Report until cancelled."""
        for informer in (self._nodes, self._topologies, self._devices):
            await informer.wait_for_sync()
        nodes = self._nodes.add_event_handler(self._on_node)
        topologies = self._topologies.add_event_handler(self._on_report)
        devices = self._devices.add_event_handler(self._on_report)
        try:
            await self._controller.run()
        finally:
            self._queue.shutdown(drain=False)
            self._nodes.remove_event_handler(nodes)
            self._topologies.remove_event_handler(topologies)
            self._devices.remove_event_handler(devices)

    def _on_node(self, change: ObjectChange[Node]) -> None:
        node, old = change.object, change.old
        name = node.metadata.name
        if name not in self._hosts or change.kind == "deleted":
            return
        if old is None:
            within_s = len(self._hosts) / REPORTS_PER_S
            self._queue.add_after(name, within_s * seeded_uniform(self._seed, f"{name}/hardware"))
        elif (
            old.metadata.labels != node.metadata.labels
            or old.metadata.annotations != node.metadata.annotations
            or old.status.allocatable != node.status.allocatable
        ):
            self._queue.add(name)

    def _on_report(self, change: ObjectChange[Any]) -> None:
        if change.kind != "added" and change.object.metadata.name in self._hosts:
            self._queue.add(change.object.metadata.name)

    async def _report(self, name: str) -> ReconcileResult:
        host, node = self._hosts.get(name), self._nodes.get("", name)
        if host is None or node is None:
            return Done()
        if host.failure in ("machine", "partition"):
            return RequeueAfter(RETRY_S)
        machine = host.machine
        topology = topology_of(machine.pool, machine.hardware, node, self._pods_of(name))
        refused = await self._write(
            node,
            NODE_RESOURCE_TOPOLOGIES,
            self._topologies.get("", name),
            lambda: new_topology(node, topology),
            lambda there: topology_patch(topology, there),
        )
        before = self._devices.get("", name)
        device = device_of(machine.hardware, before, self._clock.time())
        if refused is None and device is not None:
            refused = await self._write(
                node, DEVICES, before, lambda: new_device(node, device), lambda there: device_patch(device, there)
            )
        return Done() if refused is None else Requeue(refused)

    async def _write(
        self,
        node: Node,
        resource: Resource[O],
        there: O | None,
        new: Callable[[], dict[str, Any]],
        patch: Callable[[O], dict[str, Any]],
    ) -> str | None:
        """Create or patch an object of the node; return why it must be tried again, if it must."""
        if there is None:
            answer = await self._client.create(resource, new())
        elif not any(owner.uid == node.metadata.uid for owner in there.metadata.owner_references):
            return None
        elif changes := patch(there):
            answer = await self._client.patch(
                resource, node.metadata.name, changes, kind="merge", uid=there.metadata.uid
            )
        else:
            return None
        # What already exists is on its way here, and changes made meanwhile are too: the next look knows them.
        return str(answer) if isinstance(answer, ApiError) and not answer.already_exists else None


def _log_if_died(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _LOG.critical("%s died: the hardware of simulated nodes is no longer reported", task.get_name(), exc_info=error)
