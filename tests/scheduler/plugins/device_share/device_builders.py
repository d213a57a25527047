"""Builders of machines with devices, and of requests for them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from koord.api.config.scheduler.koordinator_args import DEVICE_SHARE_STRATEGY
from koord.api.koordinator.protocol import A_DEVICE_ALLOCATE_HINT, A_DEVICE_JOINT_ALLOCATE, A_GPU_PARTITION_SPEC
from koord.api.koordinator.resource_name import GPU, GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA
from koord.api.koordinator.scheduling import Device
from koord.api.model import convert
from koord.scheduler.plugins.device_share.allocator import AllocatedDevices
from koord.scheduler.plugins.device_share.device_amounts import DeviceScorer, build_scorer
from koord.scheduler.plugins.device_share.inventory import DeviceInventory, build_inventory
from koord.scheduler.plugins.device_share.node_devices import DeviceLedger
from koord.scheduler.plugins.device_share.refusal import DeviceRefusal
from koord.scheduler.plugins.device_share.request import DeviceDemand, GpuTemplates, parse_demand

GI = 1 << 30
LEAST: DeviceScorer = build_scorer(DEVICE_SHARE_STRATEGY)
MOST: DeviceScorer = DeviceScorer(True, LEAST.weights)
ANY_VF: dict[str, Any] = {"rdma": {"vfSelector": {}}}

Json = dict[str, Any]


def place(numa: int, pcie: str) -> Json:
    return {"socketID": max(numa, 0), "nodeID": numa, "pcieID": pcie}


def gpu(minor: int, topology: Json | None = None, *, memory: str = "16Gi", health: bool = True, **more: Any) -> Json:
    resources = {GPU_CORE: "100", GPU_MEMORY_RATIO: "100", GPU_MEMORY: memory}
    info = {"type": "gpu", "id": f"GPU-{minor}", "minor": minor, "health": health, "resources": resources, **more}
    return info if topology is None else info | {"topology": topology}


def rdma(minor: int, topology: Json | None = None, *, bus: str = "", vfs: int = 0, **more: Any) -> Json:
    bus = bus or f"0000:1{minor}:00"
    info = {"type": "rdma", "id": f"{bus}.0", "minor": minor, "health": True, "resources": {RDMA: "100"}, **more}
    if vfs:
        functions = [{"minor": n, "busID": f"{bus}.{n + 2}"} for n in range(vfs)]
        info["vfGroups"] = [{"labels": {"type": "general"}, "vfs": functions}]
    return info if topology is None else info | {"topology": topology}


def device(
    *infos: Json, labels: Mapping[str, str] | None = None, annotations: Mapping[str, Any] | None = None
) -> Device:
    noted = {key: value if isinstance(value, str) else json.dumps(value) for key, value in (annotations or {}).items()}
    return convert(
        {
            "metadata": {"name": "n", "labels": dict(labels or {}), "annotations": noted},
            "spec": {"devices": list(infos)},
        },
        Device,
    )


def inventory(*infos: Json, **more: Any) -> DeviceInventory:
    return build_inventory(device(*infos, **more))


REFERENCE_GPUS = [gpu(m, place(m // 4, str(m // 2))) for m in range(8)]
REFERENCE_RDMA = [rdma(n + 1, place(n // 2, str(n)), bus=f"0000:{0x1F + n:02x}:00", vfs=4) for n in range(4)]


def reference(**more: Any) -> DeviceLedger:
    """Build two NUMA nodes with four PCIe switches, each with two GPUs (0 to 7) and one network card (1 to 4) with
    functions.
    """
    return DeviceLedger(inventory(*REFERENCE_GPUS, *REFERENCE_RDMA, **more))


def whole_gpus(*minors: int) -> dict[str, dict[int, dict[str, int]]]:
    return {"gpu": {m: {GPU_CORE: 100, GPU_MEMORY_RATIO: 100, GPU_MEMORY: 16 * GI} for m in minors}}


def busy(ledger: DeviceLedger, *minors: int) -> DeviceLedger:
    return ledger.with_allocation("busy-" + "-".join(map(str, minors)), whole_gpus(*minors)) if minors else ledger


def ask(
    requests: Mapping[str, int],
    *,
    hint: Json | None = None,
    joint: Sequence[str] = (),
    same_pcie: bool = False,
    partition: Json | None = None,
    labels: Mapping[str, str] | None = None,
    templates: GpuTemplates | None = None,
) -> DeviceDemand:
    annotations = {}
    if hint is not None:
        annotations[A_DEVICE_ALLOCATE_HINT] = json.dumps(hint)
    if joint:
        rule = {"deviceTypes": list(joint)} | ({"requiredScope": "SamePCIe"} if same_pcie else {})
        annotations[A_DEVICE_JOINT_ALLOCATE] = json.dumps(rule)
    if partition is not None:
        annotations[A_GPU_PARTITION_SPEC] = json.dumps(partition)
    demand = parse_demand(requests, annotations, labels or {}, templates or GpuTemplates())
    assert isinstance(demand, DeviceDemand), demand
    return demand


def gpus(count: int, **more: Any) -> DeviceDemand:
    return ask({GPU: 100 * count}, **more)


def minors(result: AllocatedDevices | DeviceRefusal) -> dict[str, tuple[int, ...]] | str:
    """Return which devices were allocated, or the refusal."""
    if isinstance(result, DeviceRefusal):
        return result.message
    return {kind: result.minors(kind) for kind in result.devices}
