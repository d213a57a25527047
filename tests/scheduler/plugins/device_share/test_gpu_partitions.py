"""Partitions are honored or preferred, stated by the machine or known from its model."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.koordinator.protocol import A_GPU_PARTITIONS, L_GPU_MODEL, L_GPU_PARTITION_POLICY, L_GPU_VENDOR
from koord.api.koordinator.resource_name import GPU, GPU_MEMORY, GPU_SHARED, NPU_CORE, NPU_CPU, RDMA
from koord.scheduler.plugins.device_share.allocator import DeviceAllocateOptions, allocate_devices
from koord.scheduler.plugins.device_share.annotations import to_annotation
from koord.scheduler.plugins.device_share.gpu_selection import GpuNodeLabels, check_gpu_sharing, parse_gpu_labels
from koord.scheduler.plugins.device_share.node_devices import DeviceLedger
from koord.scheduler.plugins.device_share.refusal import DeviceRefusal, DeviceRefusalCode
from koord.scheduler.plugins.device_share.request import GpuTemplates, parse_templates
from tests.scheduler.plugins.device_share.device_builders import (
    GI,
    MOST,
    REFERENCE_GPUS,
    ask,
    busy,
    gpu,
    gpus,
    inventory,
    minors,
    place,
    rdma,
)

HONOR = {L_GPU_PARTITION_POLICY: "Honor"}
H100 = parse_gpu_labels({L_GPU_MODEL: "H100"})
H100_HONOR = parse_gpu_labels({L_GPU_MODEL: "H100", **HONOR})

UNSUPPORTED = "node(s) Unsupported number of GPU requests"
NONE_LEFT = "Insufficient Partitioned GPU Devices"


def partition(*minors: int, score: int = 1, bandwidth: str | None = None) -> dict[str, Any]:
    entry = {"minors": list(minors), "gpuLinkType": "NVLink", "allocationScore": score}
    return entry | ({"ringBusBandwidth": bandwidth} if bandwidth else {})


EIGHTS = {
    "1": [partition(m) for m in range(8)],
    "2": [partition(m, m + 1) for m in range(0, 8, 2)],
    "4": [partition(0, 1, 2, 3), partition(4, 5, 6, 7)],
    "8": [partition(*range(8))],
}


def machine(table: Any = None, **labels: str) -> DeviceLedger:
    annotations = {} if table is None else {A_GPU_PARTITIONS: table}
    return DeviceLedger(inventory(*REFERENCE_GPUS, labels=labels, annotations=annotations))


TOLD = machine(EIGHTS, **HONOR)
KNOWN = machine()


@pytest.mark.parametrize(
    ("ledger", "facts"),
    [(TOLD, GpuNodeLabels()), (KNOWN, H100_HONOR)],
    ids=["told-by-the-device", "known-by-the-model"],
)
@pytest.mark.parametrize(
    ("taken", "count", "cards"),
    [
        pytest.param((), 1, (0,), id="one"),
        pytest.param((), 8, tuple(range(8)), id="eight"),
        pytest.param((), 3, UNSUPPORTED, id="three"),
        pytest.param((), 6, UNSUPPORTED, id="six"),
        pytest.param((2, 3), 2, (0, 1), id="the-pair-that-completes-a-broken-four"),
        pytest.param((4,), 2, (6, 7), id="two-beside-the-broken-pair"),
        pytest.param((4,), 1, (5,), id="the-leftover-of-a-pair"),
        pytest.param((0, 4), 4, NONE_LEFT, id="no-four-left"),
    ],
)
def test_honoured(ledger: DeviceLedger, facts: GpuNodeLabels, taken: tuple[int, ...], count: int, cards: Any) -> None:
    result = allocate_devices(busy(ledger, *taken), gpus(count), facts)
    assert minors(result) == (cards if isinstance(cards, str) else {"gpu": cards})
    if isinstance(result, DeviceRefusal):
        assert result.code is (
            DeviceRefusalCode.UNRESOLVABLE if cards == UNSUPPORTED else DeviceRefusalCode.UNSCHEDULABLE
        )


def test_preferred_lets_other_counts_through() -> None:
    preferring = machine(EIGHTS)
    assert minors(allocate_devices(preferring, gpus(3))) == {"gpu": (0, 1, 2)}
    assert minors(allocate_devices(busy(preferring, 4), gpus(1))) == {"gpu": (5,)}
    assert minors(allocate_devices(KNOWN, gpus(3), H100)) == {"gpu": (0, 1, 2)}


def test_a_pod_can_ask_for_partitions_where_nobody_else_does() -> None:
    assert minors(allocate_devices(machine(EIGHTS), gpus(3, partition={}))) == UNSUPPORTED
    refusal = allocate_devices(KNOWN, gpus(2, partition={}))
    assert isinstance(refusal, DeviceRefusal)
    assert (refusal.code, refusal.message) == (DeviceRefusalCode.UNRESOLVABLE, "node(s) missing GPU Partition Table")


def test_the_nodes_label_counts_only_without_a_table() -> None:
    assert minors(allocate_devices(machine(EIGHTS), gpus(3), H100_HONOR)) == {"gpu": (0, 1, 2)}


def test_another_vendors_machine_is_not_known() -> None:
    facts = parse_gpu_labels({L_GPU_MODEL: "H100", L_GPU_VENDOR: "metax", **HONOR})
    assert minors(allocate_devices(KNOWN, gpus(2), facts)) == "node(s) missing GPU Partition Table"


def test_shares_are_not_partitioned() -> None:
    assert minors(allocate_devices(TOLD, ask({GPU: 50}))) == {"gpu": (0,)}


RINGS = {"2": [partition(0, 1, bandwidth="200Gi"), partition(2, 3, bandwidth="400Gi"), partition(4, 5)]}


def test_the_ring_must_be_wide_enough() -> None:
    ledger = machine(RINGS, **HONOR)
    wide = {"ringBusBandwidth": "300Gi"}
    assert minors(allocate_devices(ledger, gpus(2))) == {"gpu": (0, 1)}
    assert minors(allocate_devices(ledger, gpus(2, partition=wide))) == {"gpu": (2, 3)}
    refusal = allocate_devices(busy(ledger, 2), gpus(2, partition=wide))
    assert isinstance(refusal, DeviceRefusal)
    assert refusal.message == NONE_LEFT
    assert refusal.nearest is not None
    assert refusal.nearest.sentence == (
        "7 gpu devices would fit but no 2 share one partition (at most 2); a ring bandwidth of 300Gi is asked for"
    )


SCORED = {"2": [partition(0, 1, score=2), partition(2, 3, score=1), partition(4, 5, score=1)]}


@pytest.mark.parametrize(
    ("taken", "policy", "best_first", "cards"),
    [
        pytest.param((), "BestEffort", False, (2, 3), id="lowest-score-first-as-ever"),
        pytest.param((), "BestEffort", True, (0, 1), id="highest-first-when-switched"),
        pytest.param((2, 4), "BestEffort", False, (0, 1), id="then-the-next-group"),
        pytest.param((2, 4), "Restricted", False, NONE_LEFT, id="restricted-stays-in-the-first"),
        pytest.param((0,), "Restricted", True, NONE_LEFT, id="restricted-to-the-best"),
    ],
)
def test_scores_group_partitions(taken: tuple[int, ...], policy: str, best_first: bool, cards: Any) -> None:
    demand = gpus(2, partition={"allocatePolicy": policy})
    options = DeviceAllocateOptions(best_partitions_first=best_first)
    result = allocate_devices(busy(machine(SCORED), *taken), demand, options=options)
    assert minors(result) == (cards if isinstance(cards, str) else {"gpu": cards})


def test_an_unhealthy_card_breaks_its_partitions() -> None:
    cards = [gpu(m, place(0, str(m // 2)), health=m != 1) for m in range(4)]
    table = {"2": [partition(0, 1), partition(2, 3)]}
    ledger = DeviceLedger(inventory(*cards, labels=HONOR, annotations={A_GPU_PARTITIONS: table}))
    assert minors(allocate_devices(ledger, gpus(2))) == {"gpu": (2, 3)}


NPU = {NPU_CORE: "20", NPU_CPU: "14", GPU_MEMORY: "24Gi"}
SLICES = {"huawei-310P3": {"vir04": {NPU_CORE: 4, NPU_CPU: 4, GPU_MEMORY: "6Gi"}}}
SLICE = {GPU_SHARED: 1, NPU_CORE: 4, NPU_CPU: 4, GPU_MEMORY: 6 * GI}
HUAWEI = parse_gpu_labels({L_GPU_VENDOR: "huawei", L_GPU_MODEL: "310P3"})


def npus() -> DeviceLedger:
    cards = [gpu(m, place(m // 2, str(m // 2))) | {"resources": NPU} for m in range(4)]
    return DeviceLedger(inventory(*cards))


def sliced(document: Any) -> Any:
    templates = parse_templates(document, [NPU_CORE])
    assert isinstance(templates, GpuTemplates)
    return ask(SLICE, templates=templates)


def test_slices_are_packed_and_carry_their_template() -> None:
    ledger = npus()
    seen = []
    for number in range(4):
        result = allocate_devices(ledger, sliced(SLICES), HUAWEI, options=DeviceAllocateOptions(scorer=MOST))
        assert not isinstance(result, DeviceRefusal), result
        (entry,) = to_annotation(result)["gpu"]
        assert entry.extension is not None
        seen.append((entry.minor, entry.extension.gpu_shared_resource_template))
        ledger = ledger.with_allocation(f"p{number}", result.device_amounts)
    assert seen == [(0, "vir04"), (0, "vir04"), (0, "vir04"), (1, "vir04")]  # 14 NPU cpus hold three of four


def test_another_model_has_no_template() -> None:
    refusal = allocate_devices(npus(), sliced(SLICES), parse_gpu_labels({L_GPU_VENDOR: "huawei", L_GPU_MODEL: "910B"}))
    assert isinstance(refusal, DeviceRefusal)
    assert (refusal.code, refusal.message) == (
        DeviceRefusalCode.UNRESOLVABLE,
        "no matched GPU shared resource template",
    )


def test_two_equal_templates_leave_no_name() -> None:
    twins = {"huawei-310P3": dict.fromkeys(("a", "b"), SLICES["huawei-310P3"]["vir04"])}
    result = allocate_devices(npus(), sliced(twins), HUAWEI)
    assert not isinstance(result, DeviceRefusal), result
    assert to_annotation(result)["gpu"][0].extension is None


HAMI = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}


@pytest.mark.parametrize(
    ("demand", "facts", "said"),
    [
        pytest.param(ask({GPU: 50}, labels=HAMI), parse_gpu_labels(HAMI), None, id="same-library"),
        pytest.param(
            ask({GPU: 50}, labels=HAMI),
            GpuNodeLabels(),
            (DeviceRefusalCode.UNSCHEDULABLE, "GPUIsolationProviderHAMICore not found on the node"),
            id="library-missing",
        ),
        pytest.param(ask({GPU: 100}, labels=HAMI), GpuNodeLabels(), None, id="whole-cards-need-no-library"),
        pytest.param(ask({GPU: 50}), parse_gpu_labels(HAMI), None, id="library-not-asked-for"),
        pytest.param(
            ask({GPU: 50}),
            GpuNodeLabels(vendor="huawei", model="910"),
            (DeviceRefusalCode.UNRESOLVABLE, 'model "910" of vendor "huawei" does not support GPU Share'),
            id="cannot-be-shared",
        ),
        pytest.param(ask({GPU: 100}), GpuNodeLabels(vendor="huawei", model="910"), None, id="whole-is-not-shared"),
    ],
)
def test_which_nodes_may_share(demand: Any, facts: GpuNodeLabels, said: Any) -> None:
    refusal = check_gpu_sharing(demand, facts, {("huawei", "910")})
    assert (None if refusal is None else (refusal.code, refusal.message)) == said


def test_what_stays_possible_is_weighed_by_its_score() -> None:
    """A pair worth 200 is kept before a four worth 100."""
    table = {"1": [partition(0), partition(2)], "2": [partition(0, 1, score=200)], "4": [partition(2, 3, 4, 5)]}
    assert minors(allocate_devices(machine(table, **HONOR), gpus(1))) == {"gpu": (2,)}


def test_partitions_of_the_same_size_count_too() -> None:
    table = {"2": [partition(1, 2), partition(0, 1), partition(2, 3)]}
    assert minors(allocate_devices(machine(table, **HONOR), gpus(2))) == {"gpu": (0, 1)}


def test_a_partition_under_the_wrong_size_is_never_given() -> None:
    table = {"2": [partition(0, 1, 2), partition(4, 4), partition(6, 7)]}
    ledger = machine(table, **HONOR)
    assert minors(allocate_devices(ledger, gpus(2))) == {"gpu": (6, 7)}
    assert len(ledger.inventory.problems) == 2


def test_preferred_partitions_give_way_to_a_leading_network_card() -> None:
    """Partitions would keep the pair 4, 5 together and take 1, the rest of a broken one."""
    nets = [rdma(1, place(1, "2"))]
    cards = DeviceLedger(inventory(*REFERENCE_GPUS, *nets, annotations={A_GPU_PARTITIONS: EIGHTS}))
    demand = ask({GPU: 100, RDMA: 100}, joint=("rdma", "gpu"))
    assert minors(allocate_devices(busy(cards, 0), demand)) == {"gpu": (4,), "rdma": (1,)}
    honouring = DeviceLedger(inventory(*REFERENCE_GPUS, *nets, labels=HONOR, annotations={A_GPU_PARTITIONS: EIGHTS}))
    assert minors(allocate_devices(busy(honouring, 0), demand)) == {"gpu": (1,), "rdma": (1,)}
