"""A Device object is read into an inventory, and unusable fields are named."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from koord.api.koordinator.protocol import A_GPU_PARTITIONS
from koord.api.koordinator.resource_name import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO
from koord.scheduler.plugins.device_share.allocator import allocate_devices
from koord.scheduler.plugins.device_share.inventory import mark_all_unhealthy
from koord.scheduler.plugins.device_share.node_devices import DeviceLedger, DeviceOvercommit
from koord.scheduler.plugins.device_share.occupancy import summarize_node_devices
from tests.scheduler.plugins.device_share.device_builders import (
    GI,
    busy,
    gpu,
    gpus,
    inventory,
    minors,
    place,
    rdma,
    reference,
    whole_gpus,
)

HERE = place(0, "0")


@pytest.mark.parametrize(
    ("infos", "annotations", "problem"),
    [
        pytest.param([gpu(0)], {}, "spec.devices[0].topology: Required value", id="no-topology"),
        pytest.param([gpu(0, place(0, ""))], {}, "spec.devices[0].topology.pcieID: Required value", id="no-pcie-id"),
        pytest.param(
            [gpu(0, HERE), gpu(1, HERE, health=False)],
            {},
            "spec.devices[1].health: the device is unhealthy",
            id="unhealthy",
        ),
        pytest.param(
            [{"type": "gpu", "health": True, "topology": HERE}],
            {},
            "spec.devices[0].minor: Required value",
            id="no-minor",
        ),
        pytest.param([gpu(0, HERE), gpu(0, HERE)], {}, "spec.devices[1].minor: Duplicate value: 0", id="a-minor-twice"),
        pytest.param(
            [gpu(0, HERE) | {"type": "tpu"}], {}, "spec.devices[0].type: Unsupported value: 'tpu'", id="unknown-type"
        ),
        pytest.param(
            [gpu(0, HERE)],
            {A_GPU_PARTITIONS: {"2": [{"minors": [0, 5]}]}},
            f"metadata.annotations[{A_GPU_PARTITIONS}]: partition [0, 5] of 2: no such GPU [5]",
            id="partition-of-unknown-minors",
        ),
        pytest.param(
            [gpu(0, HERE)],
            {A_GPU_PARTITIONS: "null"},
            f"metadata.annotations[{A_GPU_PARTITIONS}]: the partition table is null",
            id="null-table",
        ),
        pytest.param(
            [rdma(0, HERE, vfGroups=[{"vfs": [{"minor": 0}]}])],
            {},
            "spec.devices[0].vfGroups[0].vfs[0].busID: Required value",
            id="function-without-bus",
        ),
    ],
)
def test_problems_name_their_field(infos: list[Any], annotations: dict[str, Any], problem: str) -> None:
    assert [str(p) for p in inventory(*infos, annotations=annotations).problems] == [problem]


def test_a_clean_machine_has_no_problem() -> None:
    machine = reference().inventory
    assert machine.problems == ()
    assert machine.zones == (0, 1)
    assert machine.tree is not None


def test_an_amount_that_is_none_makes_the_card_unusable() -> None:
    broken = gpu(0, HERE) | {"resources": {GPU_CORE: "many"}}
    machine = inventory(broken)
    assert [p.field for p in machine.problems] == ["spec.devices[0].resources"]
    assert minors(allocate_devices(DeviceLedger(machine), gpus(1))) == "Insufficient GPU Devices"


def test_an_unknown_numa_node_is_not_a_number() -> None:
    machine = inventory(gpu(0, place(-1, "0")), gpu(1, place(0, "1")))
    assert machine.of_type("gpu")[0].numa is None
    assert machine.zones == (0,)
    assert minors(allocate_devices(DeviceLedger(machine), gpus(2))) == {"gpu": (0, 1)}


def test_old_names_are_read() -> None:
    old = gpu(0, HERE) | {"resources": {"kubernetes.io/gpu-core": "100", "kubernetes.io/gpu-memory-ratio": "100"}}
    assert inventory(old).of_type("gpu")[0].total == {GPU_CORE: 100, GPU_MEMORY_RATIO: 100}


def test_an_unhealthy_card_is_not_given_and_comes_back() -> None:
    sick = DeviceLedger(inventory(gpu(0, HERE, health=False), gpu(1, HERE)))
    assert minors(allocate_devices(sick, gpus(1))) == {"gpu": (1,)}
    well = sick.with_inventory(inventory(gpu(0, HERE), gpu(1, HERE)))
    assert minors(allocate_devices(well, gpus(1))) == {"gpu": (0,)}


def test_a_machine_whose_object_is_gone_gives_nothing_and_forgets_nothing() -> None:
    ledger = busy(reference(), 0)
    gone = ledger.with_inventory(mark_all_unhealthy(ledger.inventory))
    assert minors(allocate_devices(gone, gpus(1))) == "Insufficient GPU Devices"
    back = gone.with_inventory(ledger.inventory)
    assert back == ledger
    assert minors(allocate_devices(back, gpus(1))) == {"gpu": (1,)}


def test_holding_more_than_there_is_is_told() -> None:
    ledger = (
        reference()
        .with_allocation("a", {"gpu": {0: {GPU_CORE: 80}}})
        .with_allocation("b", {"gpu": {0: {GPU_CORE: 40}}})
    )
    assert ledger.overcommits() == [DeviceOvercommit("gpu", 0, GPU_CORE, 120, 100)]
    assert ledger.free_by_type("gpu")[0][GPU_CORE] == 0
    assert ledger.without_allocation("a").overcommits() == []


def test_devices_that_nobody_lists_are_told() -> None:
    ledger = reference().with_allocation("a", whole_gpus(9))
    assert ledger.unlisted_devices() == [("gpu", 9)]
    assert ledger.overcommits() == []


def test_a_pod_is_counted_once() -> None:
    once = reference().with_allocation("a", whole_gpus(0))
    assert once.with_allocation("a", whole_gpus(1)) is once
    assert once.without_allocation("b") is once
    assert once.without_allocation("a") == reference()


def test_bytes_and_percents_of_a_card_are_one_thing() -> None:
    card = inventory(gpu(0)).of_type("gpu")[0]
    assert card.with_both_memory_units({GPU_MEMORY_RATIO: 60}) == {GPU_MEMORY_RATIO: 60, GPU_MEMORY: 10307921510}
    assert card.with_both_memory_units({GPU_MEMORY: 5 * GI}) == {GPU_MEMORY_RATIO: 31, GPU_MEMORY: 5 * GI}
    assert inventory(rdma(0)).of_type("rdma")[0].with_both_memory_units({"x": 1}) == {"x": 1}


def test_a_wild_minor_is_not_believed() -> None:
    machine = inventory(gpu(2**31 - 1, HERE), gpu(-1, HERE), gpu(1, HERE))
    assert [p.field for p in machine.problems] == ["spec.devices[0].minor", "spec.devices[1].minor"]
    assert list(machine.of_type("gpu")) == [1]


def test_the_summary_shows_sums_details_and_pods() -> None:
    ledger = DeviceLedger(inventory(gpu(0, HERE), gpu(1, HERE), rdma(2, HERE)))
    ledger = ledger.with_allocation("u1", whole_gpus(1)).with_allocation(
        "u2", {"rdma": {2: {"koordinator.sh/rdma": 1, "vf/x": 1}}}
    )
    shown = json.loads(msgspec.json.encode(summarize_node_devices(ledger, {"u1": "ns/a"})))
    whole = {GPU_CORE: "100", GPU_MEMORY: "16Gi", GPU_MEMORY_RATIO: "100"}
    assert shown["deviceTotal"] == {
        GPU_CORE: "200", GPU_MEMORY: "32Gi", GPU_MEMORY_RATIO: "200", "koordinator.sh/rdma": "100"
    }  # fmt: skip
    assert shown["deviceFree"] == whole | {"koordinator.sh/rdma": "99"}
    assert shown["deviceUsed"] == whole | {"koordinator.sh/rdma": "1"}
    assert shown["deviceUsedDetail"] == {"gpu": {"1": whole}, "rdma": {"2": {"koordinator.sh/rdma": "1"}}}
    assert shown["deviceFreeDetail"]["gpu"]["0"] == whole
    assert shown["allocateSet"] == {"gpu": {"ns/a": {"1": whole}}, "rdma": {"u2": {"2": {"koordinator.sh/rdma": "1"}}}}


def test_pods_on_an_unhealthy_card_still_make_its_switch_busy() -> None:
    """A lone GPU goes beside them, as it would beside any other pod."""
    cards = [gpu(m, place(0, str(m // 2)), health=m != 3) for m in range(4)]
    ledger = busy(DeviceLedger(inventory(*cards)), 3)
    assert minors(allocate_devices(ledger, gpus(1))) == {"gpu": (2,)}
