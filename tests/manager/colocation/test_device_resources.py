"""GPU and RDMA resources of a node are computed from its Device."""

from __future__ import annotations

from typing import Any

import pytest

from koord.manager.colocation.device_resources import decide_gpu, decide_rdma
from koord.manager.colocation.models import ColocationDevice
from tests.manager.colocation.colocation_builders import device

VENDOR, MODEL = "node.koordinator.sh/gpu-vendor", "node.koordinator.sh/gpu-model"
GPU = {
    "type": "gpu",
    "health": True,
    "resources": {
        "koordinator.sh/gpu-core": 100,
        "koordinator.sh/gpu-memory": "9000",
        "koordinator.sh/gpu-memory-ratio": 100,
        "vendor.example/other": 1,
    },
}
NPU = {
    "type": "gpu",
    "health": True,
    "resources": {"huawei.com/npu-core": 20, "huawei.com/npu-cpu": 14, "huawei.com/npu-dvpp": 100},
}
RDMA = {"type": "rdma", "health": True, "resources": {"koordinator.sh/rdma": 100}}
BROKEN: dict[str, Any] = {"health": False}


@pytest.mark.parametrize(
    ("seen", "amounts"),
    [
        pytest.param(
            device(GPU, GPU), {"gpu": 200, "gpu-core": 200, "gpu-memory": 18000, "gpu-memory-ratio": 200}, id="two"
        ),
        pytest.param(
            device(GPU, GPU, {**GPU, **BROKEN}),
            {"gpu": 200, "gpu-core": 200, "gpu-memory": 18000, "gpu-memory-ratio": 200},
            id="only-the-healthy",
        ),
        pytest.param(
            device(GPU, labels={VENDOR: "cambricon"}),
            {"gpu-core": 100, "gpu-memory": 9000, "gpu-memory-ratio": 100},
            id="other-vendor",
        ),
        pytest.param(
            device({"type": "gpu", "health": True, "resources": {"koordinator.sh/gpu-memory": "9000"}}),
            {"gpu": 0, "gpu-memory": 9000},
            id="without-cores-there-are-none",
        ),
        pytest.param(device({**GPU, **BROKEN}), None, id="all-broken"),
        pytest.param(device(RDMA), None, id="no-gpu"),
        pytest.param(None, None, id="no-device"),
    ],
)
def test_gpus(seen: ColocationDevice | None, amounts: dict[str, int] | None) -> None:
    found = decide_gpu(seen, shared=False)
    assert found.reset is (amounts is None)
    wanted = {f"koordinator.sh/{name}": n for name, n in (amounts or {}).items()}
    assert {name: amount.value() for name, amount in found.amounts.items()} == wanted


def test_npus() -> None:
    found = decide_gpu(device(NPU, NPU, labels={VENDOR: "huawei", MODEL: "910B", "other": "x"}), shared=False)
    assert {name: amount.value() for name, amount in found.amounts.items()} == {
        "huawei.com/npu-core": 40,
        "huawei.com/npu-cpu": 28,
        "huawei.com/npu-dvpp": 200,
    }
    assert found.labels == {VENDOR: "huawei", MODEL: "910B"}


def test_shared_cards_are_counted_when_asked_for() -> None:
    assert decide_gpu(device(GPU, GPU), shared=True).amounts["koordinator.sh/gpu.shared"].value() == 200


@pytest.mark.parametrize(
    ("seen", "percent"),
    [
        pytest.param(device(RDMA, RDMA, GPU), 200, id="two"),
        pytest.param(device(RDMA, {**RDMA, **BROKEN}), 100, id="one-broken"),
        pytest.param(device(GPU), None, id="none"),
        pytest.param(None, None, id="no-device"),
    ],
)
def test_rdma(seen: ColocationDevice | None, percent: int | None) -> None:
    found = decide_rdma(seen)
    assert found.reset is (percent is None)
    assert [amount.value() for amount in found.amounts.values()] == ([] if percent is None else [percent])
