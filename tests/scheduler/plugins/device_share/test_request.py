"""Every accepted spelling of device requests is normalized to one form."""

from __future__ import annotations

import json

import pytest

from koord.api.koordinator.protocol import A_DEVICE_ALLOCATE_HINT, A_DEVICE_JOINT_ALLOCATE, A_GPU_PARTITION_SPEC
from koord.api.koordinator.resource_name import (
    AMD_GPU,
    FPGA,
    GPU,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    HYGON_DCU,
    NPU_CORE,
    NPU_CPU,
    NPU_DVPP,
    NVIDIA_GPU,
    RDMA,
)
from koord.scheduler.plugins.device_share.refusal import DeviceRefusal, DeviceRefusalCode
from koord.scheduler.plugins.device_share.request import (
    DeviceDemand,
    GpuRequest,
    GpuTemplates,
    gpu_request_of,
    normalize_requests,
    parse_demand,
    parse_templates,
)
from tests.scheduler.plugins.device_share.device_builders import ask

CORE, RATIO, MEM, SHARED = GPU_CORE, GPU_MEMORY_RATIO, GPU_MEMORY, GPU_SHARED


@pytest.mark.parametrize(
    ("asked", "need"),
    [
        pytest.param({NVIDIA_GPU: 2}, ({CORE: 100, RATIO: 100}, 2, False), id="nvidia"),
        pytest.param({AMD_GPU: 1}, ({CORE: 100, RATIO: 100}, 1, False), id="amd"),
        pytest.param({HYGON_DCU: 1}, ({CORE: 100, RATIO: 100}, 1, False), id="hygon"),
        pytest.param({GPU: 50}, ({CORE: 50, RATIO: 50}, 1, True), id="half-a-card"),
        pytest.param({GPU: 300}, ({CORE: 100, RATIO: 100}, 3, False), id="three-cards"),
        pytest.param({MEM: 1024}, ({MEM: 1024}, 1, True), id="bytes-alone"),
        pytest.param({RATIO: 20}, ({RATIO: 20}, 1, True), id="ratio-alone"),
        pytest.param({RATIO: 200}, ({RATIO: 100}, 2, False), id="ratio-of-two"),
        pytest.param({CORE: 100, MEM: 1024}, ({CORE: 100, MEM: 1024}, 1, True), id="core-and-bytes-is-shared"),
        pytest.param({CORE: 200, RATIO: 200}, ({CORE: 100, RATIO: 100}, 2, False), id="core-and-ratio-of-two"),
        pytest.param({CORE: 100, RATIO: 200}, ({CORE: 50, RATIO: 100}, 2, False), id="half-the-core-of-two"),
        pytest.param({NPU_CORE: 16, RATIO: 200}, ({NPU_CORE: 8, RATIO: 100}, 2, False), id="npu-cores-of-two"),
        pytest.param({SHARED: 2, MEM: 8192}, ({MEM: 4096}, 2, True), id="shared-bytes"),
        pytest.param({SHARED: 2, RATIO: 100}, ({RATIO: 50}, 2, True), id="shared-ratio"),
        pytest.param({SHARED: 2, RATIO: 200}, ({RATIO: 100}, 2, False), id="shared-but-whole"),
        pytest.param({SHARED: 2, CORE: 100, RATIO: 100}, ({CORE: 50, RATIO: 50}, 2, True), id="two-halves"),
        pytest.param({SHARED: 1, CORE: 50, MEM: 7}, ({CORE: 50, MEM: 7}, 1, True), id="shared-core-and-bytes"),
        pytest.param(
            {SHARED: 1, NPU_CORE: 4, NPU_CPU: 3, MEM: 9}, ({NPU_CORE: 4, NPU_CPU: 3, MEM: 9}, 1, True), id="npu-slice"
        ),
        pytest.param(
            {SHARED: 1, NPU_CORE: 4, NPU_CPU: 3, NPU_DVPP: 100, MEM: 9},
            ({NPU_CORE: 4, NPU_CPU: 3, NPU_DVPP: 100, MEM: 9}, 1, True),
            id="npu-slice-with-dvpp",
        ),
        pytest.param({"kubernetes.io/gpu": 100}, ({CORE: 100, RATIO: 100}, 1, False), id="an-old-name"),
        pytest.param({GPU: 100, NVIDIA_GPU: 0}, ({CORE: 100, RATIO: 100}, 1, False), id="zero-is-not-asked"),
    ],
)
def test_gpu_requests(asked: dict[str, int], need: tuple[dict[str, int], int, bool]) -> None:
    found = normalize_requests(asked)
    assert not isinstance(found, DeviceRefusal)
    assert gpu_request_of(found["gpu"]) == GpuRequest(*need)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({CORE: 100}, id="core-alone"),
        pytest.param({NVIDIA_GPU: 1, CORE: 100}, id="two-spellings"),
        pytest.param({NVIDIA_GPU: 1, AMD_GPU: 1}, id="two-vendors"),
        pytest.param({NPU_CORE: 4, MEM: 1}, id="npu-bytes-unshared"),
        pytest.param({RATIO: 101}, id="ratio-101"),
        pytest.param({CORE: 150, MEM: 1}, id="core-150"),
        pytest.param({CORE: 100, RATIO: 150}, id="ratio-150-with-core"),
        pytest.param({NPU_CORE: 4, RATIO: 150}, id="npu-ratio-150"),
        pytest.param({SHARED: 1, RATIO: 101}, id="one-share-of-101"),
        pytest.param({SHARED: 2, RATIO: 101}, id="odd-share"),
        pytest.param({SHARED: 1, CORE: 101, MEM: 1}, id="one-share-of-101-core"),
        pytest.param({SHARED: 2, CORE: 75, RATIO: 100}, id="odd-core"),
        pytest.param({SHARED: 2, NPU_CORE: 4, NPU_CPU: 1, MEM: 1}, id="two-npu-slices"),
        pytest.param({SHARED: 1, NPU_CORE: 4, MEM: 1}, id="npu-slice-without-cpu"),
        pytest.param({SHARED: 1, NPU_CORE: 4, NPU_CPU: 1, NPU_DVPP: 101, MEM: 1}, id="dvpp-101"),
        pytest.param({SHARED: 1}, id="shares-of-nothing"),
    ],
)
def test_mixes_that_mean_nothing(asked: dict[str, int]) -> None:
    found = normalize_requests(asked)
    assert isinstance(found, DeviceRefusal)
    assert found.code is DeviceRefusalCode.UNRESOLVABLE
    assert found.message == f"invalid resource device requests: [{' '.join(sorted(asked))}]"


@pytest.mark.parametrize("name", [GPU, FPGA, RDMA])
def test_percents_above_a_card_are_whole_cards(name: str) -> None:
    found = normalize_requests({name: 201})
    assert isinstance(found, DeviceRefusal)
    assert (found.code, found.message) == (DeviceRefusalCode.UNRESOLVABLE, f"invalid resource unit {name}: 201")


def test_types_are_apart_and_in_order() -> None:
    assert normalize_requests({RDMA: 1, GPU: 100, FPGA: 200, "cpu": 4000}) == {
        "fpga": {FPGA: 200},
        "gpu": {CORE: 100, RATIO: 100},
        "rdma": {RDMA: 1},
    }
    assert normalize_requests({"cpu": 1}) == {}


@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        pytest.param({A_DEVICE_ALLOCATE_HINT: "{"}, "invalid DeviceAllocateHint annotation, err: ", id="hint"),
        pytest.param({A_DEVICE_JOINT_ALLOCATE: "[]"}, "invalid DeviceJointAllocate annotation, err: ", id="joint"),
        pytest.param({A_GPU_PARTITION_SPEC: "7"}, "invalid GPUPartitionSpec annotation, err: ", id="partition"),
        pytest.param(
            {A_DEVICE_ALLOCATE_HINT: '{"gpu":{"selector":{"matchExpressions":[{"key":"a","operator":"Near"}]}}}'},
            "invalid Selector of DeviceHint, deviceType: gpu",
            id="selector",
        ),
        pytest.param(
            {A_DEVICE_ALLOCATE_HINT: '{"rdma":{"vfSelector":{"matchLabels":{"a":"b c"}}}}'},
            "invalid VFSelector of DeviceHint, deviceType: rdma",
            id="vf-selector",
        ),
    ],
)
def test_annotations_that_cannot_be_read(annotations: dict[str, str], text: str) -> None:
    refusal = parse_demand({GPU: 100}, annotations, {})
    assert isinstance(refusal, DeviceRefusal)
    assert refusal.code is DeviceRefusalCode.UNRESOLVABLE
    assert refusal.message.startswith(text)


def test_a_pod_without_devices_is_none_of_ours() -> None:
    assert parse_demand({"cpu": 1}, {A_DEVICE_ALLOCATE_HINT: "{"}, {}) is None


def test_joint_types_are_those_asked_for_and_not_applied_to_all() -> None:
    demand = ask({GPU: 100, RDMA: 1}, joint=("fpga", "gpu", "rdma"))
    assert demand.joint_types == ("gpu", "rdma")
    everywhere = ask({GPU: 100, RDMA: 1}, joint=("gpu", "rdma"), hint={"rdma": {"allocateStrategy": "ApplyForAll"}})
    assert everywhere.joint_types == ("gpu",)


def test_an_empty_partition_policy_is_best_effort() -> None:
    assert ask({GPU: 100}, partition={}).partition is not None
    wish = ask({GPU: 100}, partition={"allocatePolicy": "Restricted", "ringBusBandwidth": "100Gi"}).partition
    assert wish is not None
    assert wish.restricted
    assert wish.bandwidth is not None
    assert wish.bandwidth.value() == 100 << 30


NPU_SLICE = {SHARED: 1, NPU_CORE: 4, NPU_CPU: 3, MEM: 6 << 30}
TEMPLATES = parse_templates(
    {"huawei-910B": {"vir04": {NPU_CORE: 4, NPU_CPU: 3, MEM: "6Gi"}, "vir08": {NPU_CORE: 8, NPU_CPU: 6, MEM: "12Gi"}}},
    [NPU_CORE],
)


def test_a_slice_must_be_exactly_a_template() -> None:
    assert isinstance(TEMPLATES, GpuTemplates)
    demand = parse_demand(NPU_SLICE, {}, {}, TEMPLATES)
    assert isinstance(demand, DeviceDemand)
    assert demand.templates == {"huawei-910B": ("vir04",)}
    refusal = parse_demand({**NPU_SLICE, NPU_CPU: 2}, {}, {}, TEMPLATES)
    assert isinstance(refusal, DeviceRefusal)
    assert (refusal.code, refusal.message) == (
        DeviceRefusalCode.UNRESOLVABLE,
        "no matched GPU shared resource template",
    )


def test_templates_bind_only_shares_of_their_own_resources() -> None:
    assert isinstance(TEMPLATES, GpuTemplates)
    for asked in ({GPU: 50}, {NPU_CORE: 4, RATIO: 100}):
        demand = parse_demand(asked, {}, {}, TEMPLATES)
        assert isinstance(demand, DeviceDemand)
        assert demand.templates is None


@pytest.mark.parametrize("document", [[], {"a": 1}, {"a": {"b": {"cpu": "x"}}}], ids=json.dumps)
def test_templates_that_cannot_be_read(document: object) -> None:
    assert isinstance(parse_templates(document, []), str)
