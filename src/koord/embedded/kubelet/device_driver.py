"""The driver of dynamic resource allocation on simulated nodes: it publishes the GPUs of a node as a ResourceSlice.

Only pools whose `gpus` name a driver have one. A slice that somebody deletes or changes is written again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from koord.api.kubernetes.builtin_kinds import RESOURCE_SLICES
from koord.api.kubernetes.dynamic_resources import ResourceSlice
from koord.embedded.kubelet.node_objects import SimulatedNodeSpec
from koord.embedded.kubelet.simulated_host import SimulatedHost
from koord.kube.client.typed_client import Client
from koord.kube.controller.controller import Controller, Done, ReconcileResult, Requeue, RequeueAfter, WorkQueue
from koord.kube.informer.cache import ObjectChange
from koord.kube.informer.factory import InformerFactory
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
