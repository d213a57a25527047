"""What the Device says of NVIDIA cards: partitions by NVLink, cards that are divided, and cards that are lost."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.annotations import device_codecs
from koord.api.koordinator.protocol import A_GPU_PARTITIONS, L_GPU_PARTITION_POLICY
from koord.api.koordinator.scheduling import DeviceInfo
from koord.host.hardware import LOST, GpuCard, GpuHealth, GpuInventory, MigInstance
from koord.koordlet.reporters.builders.device import DeviceReport, build_device_report, nvlink_partitions

Links = dict[tuple[int, int], int]


def address(minor: int) -> str:
    return f"0000:3b:{minor:02x}.0"


def cards(count: int, links: Links, **changes: object) -> list[GpuCard]:
    """Return cards with links in both directions."""
    both = {**links, **{(there, here): number for (here, there), number in links.items()}}
    return [
        GpuCard(
            uuid=f"GPU-{minor}",
            minor=minor,
            total_bytes=80 * 2**30,
            address=address(minor),
            model="NVIDIA A100",
            links={address(there): number for (here, there), number in both.items() if here == minor},
            **changes,  # type: ignore[arg-type]
        )
        for minor in range(count)
    ]


def partitions(count: int, links: Links) -> dict[int, list[tuple[tuple[int, ...], int]]]:
    found = nvlink_partitions(cards(count, links))
    single = [one.minors for one in found.pop(1, ())]
    assert single == ([(minor,) for minor in range(count)] if found else []), "a table has each card"
    return {size: [(one.minors, one.allocation_score) for one in listed] for size, listed in found.items()}


@pytest.mark.parametrize(
    ("count", "links", "wanted"),
    [
        pytest.param(2, {}, {}, id="no-links"),
        pytest.param(4, {(0, 1): 12, (2, 3): 12}, {2: [((0, 1), 1), ((2, 3), 1)]}, id="bridged-pairs"),
        pytest.param(
            4,
            {(0, 1): 2, (1, 2): 1, (2, 3): 2, (0, 3): 1},
            {2: [((0, 1), 1), ((0, 3), 2), ((1, 2), 2), ((2, 3), 1)], 4: [((0, 1, 2, 3), 1)]},
            id="a-ring",
        ),
        pytest.param(
            3, {(0, 1): 4, (1, 2): 4}, {2: [((0, 1), 1), ((1, 2), 1)], 3: [((0, 1, 2), 1)]}, id="joined-through-another"
        ),
    ],
)
def test_groups_that_are_linked(count: int, links: Links, wanted: object) -> None:
    assert partitions(count, links) == wanted


def test_behind_switches_all_groups_are_alike() -> None:
    assert nvlink_partitions(cards(4, {}, switch_links=18)) == {}


@given(
    st.integers(1, 8).flatmap(
        lambda n: st.tuples(
            st.just(n), st.dictionaries(st.sampled_from(sorted(combinations(range(max(n, 2)), 2))), st.integers(1, 4))
        )
    )
)
def test_every_pair_of_a_partition_is_linked_or_it_is_all_that_is_joined(drawn: tuple[int, Links]) -> None:
    count, links = drawn
    links = {pair: number for pair, number in links.items() if max(pair) < count}
    found = partitions(count, links)
    assert sum(len(listed) for listed in found.values()) >= len(links)
    joined: list[set[int]] = []
    for size, listed in found.items():
        weakest = {minors: min(links.get(pair, 0) for pair in combinations(minors, 2)) for minors, _ in listed}
        for minors, score in listed:
            assert len(minors) == size
            assert score == 1 + len({other for other in weakest.values() if other > weakest[minors]})
            if not weakest[minors]:
                joined.append(set(minors))
    assert not any(one & other for one, other in combinations(joined, 2)), "a card is joined with one group of others"


def report(gpus: GpuInventory, before: tuple[DeviceInfo, ...] = ()) -> DeviceReport:
    return build_device_report([], [], before, 1000.0, gpus)


def test_the_table_and_the_policy_are_told() -> None:
    told = report(GpuInventory(tuple(cards(2, {(0, 1): 4})), "550"))
    assert told.labels[L_GPU_PARTITION_POLICY] == "Prefer"
    table = device_codecs.parse_gpu_partition_table(told.annotations)
    assert isinstance(table, dict)
    assert [one.minors for one in table[2]] == [(0, 1)]
    assert A_GPU_PARTITIONS not in report(GpuInventory(tuple(cards(2, {})), "550")).annotations


def test_a_divided_card_is_given_to_nobody_as_a_whole() -> None:
    instances = tuple(MigInstance(f"MIG-{n}", "1g.10gb+me" if n else "3g.40gb") for n in range(3))
    (card,) = cards(1, {}, mig_enabled=True, mig_instances=instances)
    (device,) = report(GpuInventory((card,), "550", {card.uuid: GpuHealth()})).devices
    assert not device.health
    assert device.conditions[0].reason == "MigEnabled"
    assert device.labels == {
        "nvidia.com/mig.enabled": "true",
        "nvidia.com/mig-1g.10gb.me.count": "2",
        "nvidia.com/mig-3g.40gb.count": "1",
    }
    (failed,) = report(GpuInventory((card,), "550", {card.uuid: GpuHealth(False, "Xid79", "x")})).devices
    assert failed.conditions[0].reason == "Xid79", "an error says more"


def test_a_card_that_does_not_say_who_it_is_stays_as_it_was_but_unhealthy() -> None:
    first, second = cards(2, {})
    before = report(GpuInventory((first, second), "550")).devices
    told = report(GpuInventory((first,), "550", {}, unidentified=1), before)
    assert [(one.id, one.health) for one in told.devices] == [("GPU-0", True), ("GPU-1", False)]
    assert told.devices[1].conditions[0].reason == LOST.code
    assert told.devices[1].resources == before[1].resources
    assert [one.id for one in report(GpuInventory((first,), "550"), before).devices] == ["GPU-0"], "it was taken out"
