"""Allocations equal outcomes recorded from Koordinator's scheduler, pod after pod on one machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.api.annotations.codec import dump_json
from koord.api.koordinator.resource_name import (
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    NVIDIA_GPU,
    RDMA,
)
from koord.scheduler.plugins.device_share.allocator import AllocatedDevices, DeviceAllocateOptions, allocate_devices
from koord.scheduler.plugins.device_share.annotations import from_annotation, pod_device_amounts, to_annotation
from koord.scheduler.plugins.device_share.node_devices import DeviceLedger
from koord.scheduler.plugins.device_share.refusal import DeviceRefusal
from koord.scheduler.plugins.device_share.selection import score_node_devices
from koord.values.quantity import Quantity
from tests.scheduler.plugins.device_share.device_builders import GI, LEAST, ask, busy, gpu, gpus, inventory, place, rdma

CORE, RATIO, MEM = GPU_CORE, GPU_MEMORY_RATIO, GPU_MEMORY


def given(minor: int, percent: int, *, core: int | None = None, memory: int | None = None) -> dict[str, Any]:
    resources = {RATIO: percent, MEM: 16 * GI * percent // 100 if memory is None else memory}
    if core is not None:
        resources[CORE] = core
    return {"id": f"GPU-{minor}", "minor": minor, "resources": resources}


def net(minor: int, function: int) -> dict[str, Any]:
    vf: dict[str, Any] = {"busID": f"0000:1{minor}:00.{function + 2}"} | ({"minor": function} if function else {})
    entry: dict[str, Any] = {"id": f"0000:1{minor}:00.0", "minor": minor, "resources": {RDMA: 1}}
    return entry | {"extension": {"vfs": [vf]}}


def cards(count: int) -> list[dict[str, Any]]:
    return [gpu(m) for m in range(count)]


PAIRED = [gpu(m, place(m // 2, str(m // 2))) for m in range(4)]
UNEVEN = [gpu(0, place(0, "0")), gpu(1, place(0, "1")), gpu(2, place(1, "2")), gpu(3, place(1, "2"))]
TABLE = {
    "1": [{"minors": [m], "gpuLinkType": "NVLink", "allocationScore": 1} for m in range(4)],
    "2": [
        {"minors": [0, 1], "gpuLinkType": "NVLink", "ringBusBandwidth": "200Gi", "allocationScore": 1},
        {"minors": [2, 3], "gpuLinkType": "NVLink", "ringBusBandwidth": "400Gi", "allocationScore": 1},
    ],
    "4": [{"minors": [0, 1, 2, 3], "gpuLinkType": "NVLink", "ringBusBandwidth": "400Gi", "allocationScore": 1}],
}
NEW = {"gpu": {"selector": {"matchLabels": {"model": "new"}}}}
ALL_VFS = {"rdma": {"allocateStrategy": "ApplyForAll", "vfSelector": {"matchLabels": {"type": "general"}}}}

CASES = [
    pytest.param(
        inventory(*cards(2)),
        [
            (ask({CORE: 30, RATIO: 60}), {"gpu": [given(0, 60, core=30)]}),
            (ask({CORE: 60, RATIO: 50}), {"gpu": [given(1, 50, core=60)]}),
            (ask({RATIO: 20}), {"gpu": [given(1, 20)]}),
            (ask({CORE: 50, RATIO: 40}), {"gpu": [given(0, 40, core=50)]}),
        ],
        id="core-and-ratio",
    ),
    pytest.param(
        inventory(*cards(4)),
        [
            (ask({GPU_SHARED: 2, CORE: 100, RATIO: 100}), {"gpu": [given(0, 50, core=50), given(1, 50, core=50)]}),
            (ask({GPU_SHARED: 2, MEM: 8 * GI}), {"gpu": [given(2, 25), given(3, 25)]}),
        ],
        id="shares-of-two-cards",
    ),
    pytest.param(
        inventory(gpu(0, labels={"model": "old"}), gpu(1, labels={"model": "new"})),
        [
            (gpus(1, hint=NEW), {"gpu": [given(1, 100, core=100)]}),
            (gpus(1, hint=NEW), "Insufficient gpu devices"),
        ],
        id="selector",
    ),
    pytest.param(
        inventory(*cards(2)),
        [
            (ask({CORE: 50, MEM: 8 * GI}), {"gpu": [given(0, 50, core=50)]}),
            (ask({MEM: 5 * GI}), {"gpu": [given(1, 31, memory=5 * GI)]}),
        ],
        id="bytes",
    ),
    pytest.param(
        inventory(
            *PAIRED,
            labels={"node.koordinator.sh/gpu-partition-policy": "Honor"},
            annotations={"scheduling.koordinator.sh/gpu-partitions": TABLE},
        ),
        [
            (gpus(1), {"gpu": [given(0, 100, core=100)]}),
            (gpus(2), {"gpu": [given(2, 100, core=100), given(3, 100, core=100)]}),
            (gpus(2), "Insufficient Partitioned GPU Devices"),
            (gpus(3), "node(s) Unsupported number of GPU requests"),
        ],
        id="partitions-honoured",
    ),
    pytest.param(
        inventory(rdma(0, place(0, "0"), vfs=2), rdma(1, place(1, "1"), vfs=2)),
        [
            (ask({RDMA: 1}, hint=ALL_VFS), {"rdma": [net(0, 0), net(1, 0)]}),
            (ask({RDMA: 1}, hint=ALL_VFS), {"rdma": [net(0, 1), net(1, 1)]}),
            (ask({RDMA: 1}, hint=ALL_VFS), "Insufficient rdma devices"),
        ],
        id="network-cards-for-all",
    ),
    pytest.param(
        inventory(*UNEVEN),
        [
            (gpus(1), {"gpu": [given(0, 100, core=100)]}),
            (gpus(2), {"gpu": [given(2, 100, core=100), given(3, 100, core=100)]}),
        ],
        id="one-switch",
    ),
    pytest.param(
        inventory(*cards(4)),
        [
            (ask({NVIDIA_GPU: 2}), {"gpu": [given(0, 100, core=100), given(1, 100, core=100)]}),
            (ask({NVIDIA_GPU: 1}), {"gpu": [given(2, 100, core=100)]}),
            (ask({NVIDIA_GPU: 2}), "Insufficient gpu devices"),
        ],
        id="whole-cards",
    ),
]


def canonical(text: str) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(text)
    for entries in decoded.values():
        for entry in entries:
            entry["resources"] = {name: Quantity.parse(q).value() for name, q in entry["resources"].items()}
    return decoded


@pytest.mark.parametrize(("machine", "pods"), CASES)
def test_recorded(machine: Any, pods: list[tuple[Any, Any]]) -> None:
    ledger = DeviceLedger(machine)
    options = DeviceAllocateOptions(scorer=LEAST, final=True)
    for number, (demand, expected) in enumerate(pods):
        result = allocate_devices(ledger, demand, options=options)
        if isinstance(result, DeviceRefusal):
            assert result.message == expected
            continue
        text = dump_json(to_annotation(result))
        assert canonical(text) == expected
        ledger = ledger.with_allocation(f"pod-{number}", result.device_amounts)


def test_an_empty_node_wins_when_spreading() -> None:
    machine = inventory(*cards(4))
    a, b = busy(DeviceLedger(machine), 0, 1), DeviceLedger(machine)
    scores = [score_node_devices(ledger, gpus(1), LEAST) for ledger in (a, b)]
    # ratio: 400 in all, 100 asked; bytes are not asked for and count what is free
    assert scores == [(25 + 50) // 2, (75 + 100) // 2]


def test_the_text_is_what_agents_read() -> None:
    result = allocate_devices(DeviceLedger(inventory(gpu(0, memory="80Gi"), rdma(1, vfs=1))), ask({GPU: 100, RDMA: 1},
                      hint={"rdma": {"vfSelector": {}}}))  # fmt: skip
    assert isinstance(result, AllocatedDevices)
    assert dump_json(to_annotation(result)) == (
        '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"100","koordinator.sh/gpu-memory":"80Gi",'
        '"koordinator.sh/gpu-memory-ratio":"100"},"id":"GPU-0"}],"rdma":[{"minor":1,"resources":{"koordinator.sh/rdma":"1"},'
        '"id":"0000:11:00.0","extension":{"vfs":[{"busID":"0000:11:00.2"}]}}]}'
    )


def test_what_is_written_is_what_is_held() -> None:
    ledger = DeviceLedger(inventory(gpu(0), gpu(1), rdma(1, vfs=2)))
    result = allocate_devices(ledger, ask({GPU: 200, RDMA: 1}, hint={"rdma": {"vfSelector": {}}}))
    assert isinstance(result, AllocatedDevices)
    assert from_annotation(to_annotation(result)) == result.device_amounts


@pytest.mark.parametrize(
    ("node", "phase", "holds"),
    [
        pytest.param("n", "Running", True, id="running"),
        pytest.param("", "Pending", False, id="not-on-a-node"),
        pytest.param("n", "Succeeded", False, id="done"),
        pytest.param("n", "Failed", False, id="failed"),
    ],
)
def test_only_live_pods_hold_devices(node: str, phase: str, holds: bool) -> None:
    entry = {"minor": 3, "resources": {"kubernetes.io/gpu-core": "50"}}
    noted = {"scheduling.koordinator.sh/device-allocated": json.dumps({"gpu": [entry]})}
    found = pod_device_amounts(noted, node, phase)
    assert found == ({"gpu": {3: {CORE: 50}}} if holds else None)
