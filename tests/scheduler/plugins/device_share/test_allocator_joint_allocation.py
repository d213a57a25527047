"""Joint allocation, topology and virtual functions work on the machine of Koordinator's documentation."""

from __future__ import annotations

from typing import Any

import pytest

from koord.api.koordinator.resource_name import GPU, RDMA
from koord.scheduler.plugins.device_share.allocator import AllocatedDevices, DeviceAllocateOptions, allocate_devices
from koord.scheduler.plugins.device_share.device_amounts import vf_key
from koord.scheduler.plugins.device_share.node_devices import DeviceLedger
from koord.scheduler.plugins.device_share.refusal import DeviceRefusal, DeviceRefusalCode
from tests.scheduler.plugins.device_share.device_builders import (
    ANY_VF,
    GI,
    LEAST,
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
    reference,
    whole_gpus,
)


def joint(count: int, **more: Any) -> Any:
    return ask({GPU: 100 * count, RDMA: 1}, joint=("gpu", "rdma"), hint=ANY_VF, **more)


def functions(result: AllocatedDevices | DeviceRefusal) -> list[str]:
    assert isinstance(result, AllocatedDevices), result
    return [one.virtual_function.bus_id for one in result.devices["rdma"] if one.virtual_function is not None]


@pytest.mark.parametrize(
    ("count", "cards", "nets"),
    [
        pytest.param(1, (0,), (1,), id="one"),
        pytest.param(2, (0, 1), (1,), id="two"),
        pytest.param(3, (0, 1, 2), (1, 2), id="three"),
        pytest.param(4, (0, 1, 2, 3), (1, 2), id="four"),
        pytest.param(6, tuple(range(6)), (1, 2, 3), id="six"),
        pytest.param(8, tuple(range(8)), (1, 2, 3, 4), id="eight"),
    ],
)
@pytest.mark.parametrize("same_pcie", [False, True], ids=["loose", "same-pcie"])
def test_network_cards_follow_the_gpus(
    count: int, cards: tuple[int, ...], nets: tuple[int, ...], same_pcie: bool
) -> None:
    result = allocate_devices(reference(), joint(count, same_pcie=same_pcie))
    assert minors(result) == {"gpu": cards, "rdma": nets}
    assert functions(result)[0] == "0000:1f:00.2"


def half_used() -> DeviceLedger:
    """GPU 0 and one function of network card 1 are taken."""
    held = {**whole_gpus(0), "rdma": {1: {RDMA: 1, vf_key("0000:1f:00.2"): 1}}}
    return reference().with_allocation("other", held)


def test_a_pair_on_one_switch_beats_a_leftover() -> None:
    assert minors(allocate_devices(half_used(), joint(2))) == {"gpu": (2, 3), "rdma": (2,)}


def test_the_next_function_is_given() -> None:
    result = allocate_devices(half_used(), joint(3))
    assert minors(result) == {"gpu": (1, 2, 3), "rdma": (1, 2)}
    assert functions(result) == ["0000:1f:00.3", "0000:20:00.2"]


def test_same_pcie_is_refused_where_a_switch_has_no_network_card_left() -> None:
    ledger = half_used().with_allocation("full", {"rdma": {1: {RDMA: 99}}})
    refusal = allocate_devices(ledger, joint(3, same_pcie=True))
    assert isinstance(refusal, DeviceRefusal)
    assert (refusal.code, refusal.message) == (
        DeviceRefusalCode.UNSCHEDULABLE,
        "node(s) Device Joint-Allocate rules violation",
    )
    assert refusal.nearest is not None
    assert refusal.nearest.detail == "gpu sits on PCIe 0, 1; no rdma on 0"
    assert minors(allocate_devices(ledger, joint(2, same_pcie=True))) == {"gpu": (2, 3), "rdma": (2,)}


def test_functions_asked_of_cards_that_have_none() -> None:
    ledger = DeviceLedger(inventory(*[gpu(m) for m in range(2)], rdma(1)))
    refusal = allocate_devices(ledger, joint(1))
    assert isinstance(refusal, DeviceRefusal)
    assert (refusal.code, refusal.message) == (DeviceRefusalCode.UNRESOLVABLE, "Insufficient rdma VirtualFunctions")


def test_a_secondary_settles_for_its_own_count() -> None:
    ledger = DeviceLedger(inventory(*REFERENCE_GPUS, rdma(1, place(0, "0"), vfs=1)))
    assert minors(allocate_devices(ledger, joint(4))) == {"gpu": (0, 1, 2, 3), "rdma": (1,)}
    assert minors(allocate_devices(ledger, joint(4, same_pcie=True))) == "Insufficient rdma devices"


def test_same_pcie_cannot_be_shown_without_topology() -> None:
    ledger = DeviceLedger(inventory(gpu(0), rdma(0)))
    demand = ask({GPU: 100, RDMA: 1}, joint=("gpu", "rdma"), same_pcie=True)
    assert minors(allocate_devices(ledger, demand)) == "node(s) Device Joint-Allocate rules violation"


def test_applied_to_all_takes_every_network_card() -> None:
    hint = {"rdma": {"allocateStrategy": "ApplyForAll"}}
    demand = ask({GPU: 100, RDMA: 1}, joint=("gpu", "rdma"), hint=hint)
    assert minors(allocate_devices(reference(), demand)) == {"gpu": (0,), "rdma": (1, 2, 3, 4)}


def test_gpus_follow_a_leading_network_card_and_are_not_multiplied() -> None:
    ledger = reference().with_allocation("a", {"rdma": {1: {RDMA: 100}, 2: {RDMA: 100}}})
    demand = ask({GPU: 100, RDMA: 200}, joint=("rdma", "gpu"))
    assert minors(allocate_devices(ledger, demand)) == {"gpu": (4,), "rdma": (3, 4)}


@pytest.mark.parametrize(
    ("taken", "count", "scope", "cards"),
    [
        pytest.param((5,), 1, "", (4,), id="one-beside-the-busy"),
        pytest.param((5,), 2, "", (6, 7), id="two-on-the-same-zone"),
        pytest.param((5,), 1, "PCIe", (4,), id="one-in-a-switch"),
        pytest.param((5,), 2, "PCIe", (6, 7), id="two-in-a-switch"),
        pytest.param((5,), 4, "NUMANode", (0, 1, 2, 3), id="four-in-a-zone"),
        pytest.param((5, 0), 4, "NUMANode", "Insufficient Topology Scoped GPU Devices", id="no-zone-of-four"),
        pytest.param((), 3, "PCIe", "Insufficient Topology Scoped GPU Devices", id="switches-are-pairs"),
        pytest.param((), 1, "Device", "Insufficient Topology Scoped GPU Devices", id="a-device-is-no-scope"),
        pytest.param((5, 0), 6, "Node", (1, 2, 3, 4, 6, 7), id="across-the-node"),
        pytest.param((0, 1, 2, 3, 4), 4, "", "Insufficient GPU Devices", id="too-few"),
    ],
)
@pytest.mark.parametrize("scorer", [None, LEAST, MOST], ids=["plain", "least", "most"])
def test_cards_are_kept_close(
    taken: tuple[int, ...], count: int, scope: str, cards: tuple[int, ...] | str, scorer: Any
) -> None:
    demand = gpus(count, hint={"gpu": {"requiredTopologyScope": scope}})
    result = allocate_devices(
        busy(reference(), *taken), demand, options=DeviceAllocateOptions(scorer=scorer, final=True)
    )
    assert minors(result) == (cards if isinstance(cards, str) else {"gpu": cards})


def test_close_gpus_bring_their_network_card() -> None:
    assert minors(allocate_devices(busy(reference(), 5), joint(2))) == {"gpu": (6, 7), "rdma": (4,)}


def test_a_refusal_says_how_near_the_node_came() -> None:
    ledger = busy(reference(), 0, 2, 4, 6, 7)
    refusal = allocate_devices(ledger, gpus(2, hint={"gpu": {"requiredTopologyScope": "PCIe"}}))
    assert isinstance(refusal, DeviceRefusal)
    assert refusal.nearest is not None
    assert refusal.nearest.sentence == "3 gpu devices would fit but no 2 share one PCIe switch (at most 1)"
    short = allocate_devices(ledger, gpus(4))
    assert isinstance(short, DeviceRefusal)
    assert short.nearest is not None
    assert short.nearest.sentence == "3 of the 4 gpu devices wanted would fit"


def test_scope_without_topology_is_refused_for_good() -> None:
    ledger = DeviceLedger(inventory(gpu(0), gpu(1, place(0, "0"))))
    refusal = allocate_devices(ledger, gpus(1, hint={"gpu": {"requiredTopologyScope": "PCIe"}}))
    assert isinstance(refusal, DeviceRefusal)
    assert (refusal.code, refusal.message) == (
        DeviceRefusalCode.UNRESOLVABLE,
        "node(s) missing GPU Device Topology Tree",
    )
    assert minors(allocate_devices(ledger, gpus(2))) == {"gpu": (0, 1)}


def test_shares_of_several_cards_have_no_scope() -> None:
    demand = ask(
        {"koordinator.sh/gpu.shared": 2, "koordinator.sh/gpu-memory-ratio": 100},
        hint={"gpu": {"requiredTopologyScope": "NUMANode"}},
    )
    refusal = allocate_devices(reference(), demand)
    assert isinstance(refusal, DeviceRefusal)
    assert (refusal.code, refusal.message) == (DeviceRefusalCode.UNRESOLVABLE, "node(s) Unsupported Multi-Shared GPU")


def shared_on(minor: int, percent: int) -> dict[str, dict[int, dict[str, int]]]:
    return {"gpu": {minor: {"koordinator.sh/gpu-core": percent, "koordinator.sh/gpu-memory-ratio": percent,
                            "koordinator.sh/gpu-memory": 16 * GI * percent // 100}}}  # fmt: skip


@pytest.mark.parametrize(
    ("scorer", "percent", "card"),
    [
        pytest.param(MOST, 50, 3, id="packs-on-the-used-card"),
        pytest.param(MOST, 80, 2, id="not-where-it-does-not-fit"),
        pytest.param(LEAST, 50, 2, id="spreads-to-the-idle-card-of-the-used-switch"),
        pytest.param(None, 50, 2, id="lowest-minor-without-a-score"),
    ],
)
def test_shares_stay_on_the_used_switch(scorer: Any, percent: int, card: int) -> None:
    ledger = reference().with_allocation("other", shared_on(3, 30))
    result = allocate_devices(ledger, ask({GPU: percent}), options=DeviceAllocateOptions(scorer=scorer))
    assert minors(result) == {"gpu": (card,)}


def test_packing_takes_the_card_in_use_of_two_equally_used_switches() -> None:
    ledger = reference().with_allocation("a", shared_on(1, 30)).with_allocation("b", shared_on(2, 50))
    assert minors(allocate_devices(ledger, ask({GPU: 40}), options=DeviceAllocateOptions(scorer=MOST))) == {"gpu": (1,)}
    assert minors(allocate_devices(ledger, ask({GPU: 60}), options=DeviceAllocateOptions(scorer=MOST))) == {"gpu": (1,)}


def test_planned_network_cards_are_looked_at_only_in_the_end() -> None:
    ledger = reference(labels={"node.koordinator.sh/secondary-device-well-planned": "true"})
    full = ledger.with_allocation("a", {"rdma": {m: {RDMA: 100} for m in range(1, 5)}})
    assert minors(allocate_devices(full, joint(1))) == {"gpu": (0,)}
    assert (
        minors(allocate_devices(full, joint(1), options=DeviceAllocateOptions(final=True)))
        == "Insufficient rdma devices"
    )
    shared = ask({GPU: 50, RDMA: 1}, joint=("gpu", "rdma"))
    assert minors(allocate_devices(full, shared)) == "Insufficient rdma devices"


@pytest.mark.parametrize(
    ("amount", "hint", "given"),
    [
        pytest.param(100, {}, [(1, 100)], id="one-whole"),
        pytest.param(200, {}, [(1, 100), (2, 100)], id="two-whole"),
        pytest.param(5, {}, [(1, 5)], id="a-part"),
        pytest.param(4, {"allocateStrategy": "RequestsAsCount"}, [(m, 1) for m in (1, 2, 3, 4)], id="counted"),
        pytest.param(
            4,
            {"allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"},
            [(m, 100) for m in (1, 2, 3, 4)],
            id="counted-and-exclusive",
        ),
        pytest.param(
            1,
            {"allocateStrategy": "ApplyForAll", "selector": {"matchLabels": {"fast": "yes"}}},
            [(2, 1), (4, 1)],
            id="all-that-match",
        ),
        pytest.param(
            1,
            {"allocateStrategy": "ApplyForAll", "selector": {"matchLabels": {"fast": "no"}}},
            "Insufficient rdma devices",
            id="none-matches",
        ),
    ],
)
def test_how_network_cards_are_counted(amount: int, hint: Any, given: Any) -> None:
    nets = [rdma(m, labels={"fast": "yes"} if m % 2 == 0 else {}) for m in (1, 2, 3, 4)]
    result = allocate_devices(DeviceLedger(inventory(*nets)), ask({RDMA: amount}, hint={"rdma": hint}))
    if isinstance(result, DeviceRefusal):
        assert (result.code, result.message) == (DeviceRefusalCode.UNRESOLVABLE, given)
    else:
        assert [(one.card.minor, one.amounts[RDMA]) for one in result.devices["rdma"]] == given


def test_a_type_that_the_node_lacks() -> None:
    refusal = allocate_devices(reference(), ask({"koordinator.sh/fpga": 100}))
    assert isinstance(refusal, DeviceRefusal)
    assert (refusal.code, refusal.message) == (DeviceRefusalCode.UNRESOLVABLE, "Insufficient fpga devices")


def test_switches_are_kept_apart_only_when_that_is_switched_on() -> None:
    ledger = busy(reference(), 0)
    demand = gpus(1, hint={"gpu": {"exclusivePolicy": "PCIeLevel"}})
    assert minors(allocate_devices(ledger, demand)) == {"gpu": (1,)}
    assert minors(allocate_devices(ledger, demand, options=DeviceAllocateOptions(keep_switches_apart=True))) == {
        "gpu": (2,)
    }


def test_packing_looks_across_equally_used_switches() -> None:
    """On the first switch only the idle card has room; the used card of the second is the better one."""
    ledger = reference().with_allocation("a", shared_on(1, 90)).with_allocation("b", shared_on(2, 50))
    assert minors(allocate_devices(ledger, ask({GPU: 40}), options=DeviceAllocateOptions(scorer=MOST))) == {"gpu": (2,)}


def test_a_full_network_card_does_not_use_up_its_switch() -> None:
    """Switch 0 has cards 0 and 9, switch 1 has 1 and 2. With card 0 full, 9 must come before 2."""
    nets = [rdma(0, place(0, "0")), rdma(9, place(0, "0")), rdma(1, place(0, "1")), rdma(2, place(0, "1"))]
    ledger = DeviceLedger(inventory(*REFERENCE_GPUS, *nets)).with_allocation("full", {"rdma": {0: {RDMA: 100}}})
    demand = ask({GPU: 400, RDMA: 1}, joint=("gpu", "rdma"), same_pcie=True)
    assert minors(allocate_devices(ledger, demand)) == {"gpu": (0, 1, 2, 3), "rdma": (1, 9)}
