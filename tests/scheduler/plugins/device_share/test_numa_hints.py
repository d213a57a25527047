"""NUMA hints name the NUMA nodes that a pod's devices could come from."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.koordinator.resource_name import GPU, RDMA
from koord.scheduler.framework.reservation import NumaTopologyHint
from koord.scheduler.plugins.device_share.allocator import (
    AllocatedDevices,
    allocate_devices,
    designated_hints,
    device_hints,
)
from koord.scheduler.plugins.device_share.node_devices import DeviceConstraints, DeviceLedger
from koord.scheduler.plugins.device_share.refusal import DeviceRefusal, DeviceRefusalCode
from koord.scheduler.plugins.device_share.request import DeviceDemand
from koord.values.bitmask import BitMask
from tests.scheduler.plugins.device_share.device_builders import (
    ANY_VF,
    ask,
    busy,
    gpu,
    gpus,
    inventory,
    place,
    reference,
    whole_gpus,
)


def hints(ledger: DeviceLedger, demand: DeviceDemand) -> Any:
    def trial(zones: BitMask) -> AllocatedDevices | DeviceRefusal:
        return allocate_devices(ledger, demand, terms=DeviceConstraints(zones=zones))

    return device_hints(demand, ledger.inventory, trial)


ZERO, ONE, BOTH = BitMask.of(0), BitMask.of(1), BitMask.of(0, 1)
WITH_NET = ask({GPU: 100, RDMA: 1}, joint=("gpu", "rdma"), hint=ANY_VF)


@pytest.mark.parametrize(
    ("taken", "demand", "expected"),
    [
        pytest.param((), WITH_NET, [(ZERO, True, 500), (ONE, True, 0), (BOTH, False, 500)], id="one-and-its-network"),
        pytest.param((0,), gpus(4), [(ONE, True, 500), (BOTH, False, 500)], id="four-with-the-first-busy"),
        pytest.param((), gpus(5), [(BOTH, True, 500)], id="more-than-a-zone"),
        pytest.param(
            (),
            ask({RDMA: 4}, hint={"rdma": {"allocateStrategy": "RequestsAsCount", "vfSelector": {}}}),
            [(BOTH, True, 500)],
            id="all-network-cards",
        ),
    ],
)
def test_hints(taken: tuple[int, ...], demand: DeviceDemand, expected: list[Any]) -> None:
    found = hints(busy(reference(), *taken), demand)
    assert found == dict.fromkeys(demand.requests, tuple(NumaTopologyHint(*hint) for hint in expected))


def test_too_many_is_the_whole_machines_refusal() -> None:
    refusal = hints(reference(), gpus(9))
    assert isinstance(refusal, DeviceRefusal)
    assert (refusal.code, refusal.message) == (DeviceRefusalCode.UNRESOLVABLE, "Insufficient NUMA Scoped Devices")
    busy_machine = hints(busy(reference(), 0), gpus(8))
    assert isinstance(busy_machine, DeviceRefusal)
    assert busy_machine.message == "Insufficient GPU Devices"


def test_zones_limit_the_choice() -> None:
    result = allocate_devices(reference(), WITH_NET, terms=DeviceConstraints(zones=ONE))
    assert isinstance(result, AllocatedDevices)
    assert (result.minors("gpu"), result.minors("rdma")) == ((4,), (3,))


def test_devices_already_fixed_give_the_only_hint() -> None:
    machine = reference().inventory
    assert designated_hints(machine, whole_gpus(1, 6)) == {"gpu": (NumaTopologyHint(BOTH, True, 500),)}
    refusal = designated_hints(inventory(gpu(0)), whole_gpus(0))
    assert isinstance(refusal, DeviceRefusal)
    assert (refusal.code, refusal.message) == (
        DeviceRefusalCode.UNSCHEDULABLE,
        "Designated Allocation Lack NUMA Node ID",
    )


def test_devices_that_belong_to_no_zone_have_no_preference() -> None:
    nowhere = DeviceLedger(inventory(gpu(0, place(-1, "0")), gpu(1, place(-1, "1"))))
    assert hints(nowhere, gpus(1)) == {}
    assert isinstance(allocate_devices(nowhere, gpus(1), terms=DeviceConstraints(zones=ONE)), AllocatedDevices)
    untold = hints(DeviceLedger(inventory(gpu(0))), gpus(1))
    assert isinstance(untold, DeviceRefusal)
    assert untold.message == "Insufficient NUMA Scoped Devices"
