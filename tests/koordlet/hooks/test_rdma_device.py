"""The RDMA devices of containers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from koord.koordlet.hooks import rdma_device
from koord.koordlet.hooks.hook import ContainerContext, DeviceNode, HookPlan, NodeRules, RdmaFunction
from tests.koordlet.hooks.hook_builders import a_container, a_pod

FIRST, SECOND = "0000:1f:00.2", "0000:90:00.3"


def with_cards(*cards: dict[str, Any], **changes: Any) -> ContainerContext:
    annotation = {"scheduling.koordinator.sh/device-allocated": json.dumps({"rdma": list(cards)})}
    return a_container(a_pod("LS", annotations=annotation), **changes)


def functions(*addresses: str) -> dict[str, Any]:
    return {"vfs": [{"minor": -1, "busID": one} for one in addresses]}


@pytest.mark.parametrize(
    ("cards", "wanted"),
    [
        pytest.param([{"minor": 0, "id": FIRST}], [FIRST], id="whole-card"),
        pytest.param([{"minor": 0, "id": "x", "extension": functions(FIRST, SECOND)}], [FIRST, SECOND], id="functions"),
        pytest.param([{"minor": 0, "id": FIRST, "extension": {}}], [FIRST], id="no-functions"),
        pytest.param([{"minor": 0, "id": FIRST}, {"minor": 1, "id": SECOND}], [FIRST, SECOND], id="two"),
        pytest.param([{"minor": 0, "id": FIRST}, {"minor": 0, "id": FIRST}], [FIRST], id="one-twice"),
    ],
)
def test_a_container_gets_the_functions_of_its_pod(cards: list[dict[str, Any]], wanted: list[str]) -> None:
    plan = rdma_device.decide_container(with_cards(*cards), NodeRules())
    assert plan == HookPlan(
        devices=(DeviceNode(path="/dev/infiniband/rdma_cm", mode=0o666),),
        rdma=tuple(RdmaFunction(pci_address=one) for one in wanted),
    )


@pytest.mark.parametrize("address", ["", "mlx5_0", "../../../etc", "0000:1f:00.2/..", "0000:1f:00.2\n"])
def test_only_pci_functions_are_looked_up_on_the_host(address: str) -> None:
    plan = rdma_device.decide_container(with_cards({"minor": 0, "id": address}), NodeRules())
    assert repr(address) in plan.problem
    assert plan == HookPlan(problem=plan.problem)


def test_others_get_nothing() -> None:
    assert rdma_device.decide_container(with_cards(), NodeRules()) == HookPlan()
    assert rdma_device.decide_container(a_container(a_pod("LS")), NodeRules()) == HookPlan()
    assert rdma_device.decide_container(with_cards({"id": FIRST}, is_sandbox=True), NodeRules()) == HookPlan()
    broken = a_pod("LS", annotations={"scheduling.koordinator.sh/device-allocated": "[]"})
    assert "device-allocated" in rdma_device.decide_container(a_container(broken), NodeRules()).problem
