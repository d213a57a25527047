"""NUMA hints name the NUMA nodes that a pod's devices could come from."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.resource_name import GPU, RDMA
from koord.policy.device.allocator import Allocation, allocate
from koord.policy.device.demand import Demand
from koord.policy.device.ledger import DeviceLedger
from koord.policy.device.numa_hint import NumaHint, designated_hints, device_hints
from koord.policy.device.refusal import Code, Refusal
from koord.policy.device.view import Terms
from koord.values.bitmask import BitMask
from tests.policy.device.machines import ANY_VF, ask, busy, gpu, gpus, inventory, place, reference, whole_gpus


def hints(ledger: DeviceLedger, demand: Demand) -> Any:
    def trial(zones: BitMask) -> Allocation | Refusal:
        return allocate(ledger, demand, terms=Terms(zones=zones))

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
def test_hints(taken: tuple[int, ...], demand: Demand, expected: list[Any]) -> None:
    found = hints(busy(reference(), *taken), demand)
    assert found == dict.fromkeys(demand.requests, tuple(NumaHint(*hint) for hint in expected))


def test_too_many_is_the_whole_machines_refusal() -> None:
    refusal = hints(reference(), gpus(9))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.message) == (Code.UNRESOLVABLE, "Insufficient NUMA Scoped Devices")
    busy_machine = hints(busy(reference(), 0), gpus(8))
    assert isinstance(busy_machine, Refusal)
    assert busy_machine.message == "Insufficient GPU Devices"


def test_zones_limit_the_choice() -> None:
    result = allocate(reference(), WITH_NET, terms=Terms(zones=ONE))
    assert isinstance(result, Allocation)
    assert (result.minors("gpu"), result.minors("rdma")) == ((4,), (3,))


def test_devices_already_fixed_give_the_only_hint() -> None:
    machine = reference().inventory
    assert designated_hints(machine, whole_gpus(1, 6)) == {"gpu": (NumaHint(BOTH, True, 500),)}
    refusal = designated_hints(inventory(gpu(0)), whole_gpus(0))
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.message) == (Code.UNSCHEDULABLE, "Designated Allocation Lack NUMA Node ID")


def test_devices_that_belong_to_no_zone_have_no_preference() -> None:
    nowhere = DeviceLedger(inventory(gpu(0, place(-1, "0")), gpu(1, place(-1, "1"))))
    assert hints(nowhere, gpus(1)) == {}
    assert isinstance(allocate(nowhere, gpus(1), terms=Terms(zones=ONE)), Allocation)
    untold = hints(DeviceLedger(inventory(gpu(0))), gpus(1))
    assert isinstance(untold, Refusal)
    assert untold.message == "Insufficient NUMA Scoped Devices"
