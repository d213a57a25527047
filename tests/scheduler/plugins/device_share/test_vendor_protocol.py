"""Vendors' device plugins get their annotations, and the node lock works."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from koord.api.annotations.device_codecs import AllocatedDevice, AllocationExtension, DeviceAllocations
from koord.api.koordinator.protocol import L_GPU_MODEL, L_GPU_VENDOR
from koord.api.koordinator.resource_name import GPU_CORE, GPU_MEMORY
from koord.scheduler.plugins.device_share.annotations import (
    NodeLock,
    VendorPatch,
    acquire_node_lock,
    build_vendor_patch,
    parse_node_lock,
)
from tests.scheduler.plugins.device_share.device_builders import gpu, inventory

STAMP = {"scheduling.koordinator.sh/bind-timestamp": "7"}


def given(*minors: int, core: int | None = 50, memory: str = "1Gi", template: str = "") -> DeviceAllocations:
    resources: dict[str, Any] = {GPU_MEMORY: memory} | ({} if core is None else {GPU_CORE: str(core)})
    extension = AllocationExtension(gpu_shared_resource_template=template) if template else None
    return {
        "gpu": tuple(AllocatedDevice(minor=m, resources=resources, id=f"u{m}", extension=extension) for m in minors)
    }


def adapted(vendor: str, allocations: DeviceAllocations, model: str = "m", **labels: str) -> VendorPatch | str:
    machine = inventory(gpu(0), labels={L_GPU_VENDOR: vendor, L_GPU_MODEL: model})
    return build_vendor_patch(machine, allocations, {key.replace("_", "-"): value for key, value in labels.items()}, 7)


@pytest.mark.parametrize(
    ("vendor", "model", "allocations", "more", "lock"),
    [
        pytest.param("nvidia", "m", given(0, 1), {}, "", id="nvidia"),
        pytest.param(
            "huawei",
            "Ascend-310P3-300I-DUO",
            given(0, 1),
            {"predicate-time": "7", "huawei.com/Ascend310P": "Ascend310P-0,Ascend310P-1"},
            "",
            id="huawei-duo",
        ),
        pytest.param(
            "huawei", "910B", given(0, 1), {"predicate-time": "7", "huawei.com/npu-core": "0,1"}, "", id="huawei-full"
        ),
        pytest.param(
            "huawei",
            "910B",
            given(2, template="vir04"),
            {"predicate-time": "7", "huawei.com/npu-core": "2-vir04"},
            "",
            id="huawei-slice",
        ),
        pytest.param(
            "cambricon",
            "m",
            given(1),
            {"CAMBRICON_DSMLU_ASSIGHED": "false", "CAMBRICON_DSMLU_PROFILE": "1_50_4"},
            "cambricon.com/dsmlu.lock",
            id="cambricon",
        ),
        pytest.param(
            "metax",
            "m",
            given(1),
            {"metax-tech.com/gpu-devices-allocated": '[[{"uuid":"u1","compute":50,"vRam":1024}]]'},
            "hami.io/mutex.lock",
            id="metax",
        ),
    ],
)
def test_annotations(vendor: str, model: str, allocations: DeviceAllocations, more: dict[str, str], lock: str) -> None:
    minors = ",".join(str(entry.minor) for entry in allocations["gpu"])
    found = adapted(vendor, allocations, model)
    assert found == VendorPatch(
        annotations=STAMP | {"scheduling.koordinator.sh/gpu-minors": minors} | more, node_lock=lock
    )


@pytest.mark.parametrize(
    ("vendor", "allocations", "reason"),
    [
        pytest.param(
            "cambricon", given(0, 1), "multiple gpu share is not supported on device side", id="cambricon-two-cards"
        ),
        pytest.param("cambricon", given(0, core=None), "gpu core resource is required", id="cambricon-no-core"),
        pytest.param(
            "cambricon",
            given(0, memory="255Mi"),
            "gpu memory must not be less than 268435456 bytes",
            id="cambricon-little-memory",
        ),
        pytest.param("metax", given(0, core=None), "gpu core resource is required", id="metax-no-core"),
        pytest.param(
            "metax",
            given(0, memory="1000Ki"),
            "gpu memory must not be less than 1048576 bytes",
            id="metax-little-memory",
        ),
    ],
)
def test_what_a_vendor_cannot_serve(vendor: str, allocations: DeviceAllocations, reason: str) -> None:
    assert adapted(vendor, allocations) == f'failed to adapt for GPU device plugin of vendor "{vendor}": {reason}'


def test_hami_is_told_the_node() -> None:
    machine = inventory(gpu(0))
    found = build_vendor_patch(machine, given(0), {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}, 7)
    assert isinstance(found, VendorPatch)
    assert found.labels == {"hami.io/vgpu-node": "n"}


def test_a_pod_without_gpus_is_only_stamped() -> None:
    assert adapted("cambricon", {"rdma": (AllocatedDevice(minor=1),)}) == VendorPatch(annotations=STAMP)


NOW = datetime(2026, 1, 2, 3, 10, tzinfo=UTC)
MINE = NodeLock(NOW, "ns", "mine")


def held(age: timedelta, name: str = "other") -> str:
    return str(NodeLock(NOW - age, "ns", name))


@pytest.mark.parametrize(
    ("value", "gone", "expected"),
    [
        pytest.param(None, False, MINE, id="free"),
        pytest.param(held(timedelta(minutes=4)), False, 'failed to lock node: node "n" has been locked', id="held"),
        pytest.param(held(timedelta(minutes=6)), False, MINE, id="too-old"),
        pytest.param(held(timedelta(minutes=1)), True, MINE, id="its-pod-is-gone"),
        pytest.param(held(timedelta(minutes=1), "mine"), False, MINE, id="mine-already"),
        pytest.param(
            "2026-01-02T03:04:05Z,ns", False, 'invalid node lock value "2026-01-02T03:04:05Z,ns"', id="two-parts"
        ),
    ],
)
def test_locks(value: str | None, gone: bool, expected: NodeLock | str) -> None:
    assert acquire_node_lock("n", value, MINE, holder_gone=gone) == expected


def test_a_lock_that_tells_no_time() -> None:
    assert str(parse_node_lock("today,ns,p")).startswith('invalid node lock value "today,ns,p": ')


def test_the_text_of_a_lock() -> None:
    assert str(MINE) == "2026-01-02T03:10:00Z,ns,mine"
    assert parse_node_lock(str(MINE)) == MINE
