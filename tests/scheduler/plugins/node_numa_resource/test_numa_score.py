"""Nodes and NUMA nodes are scored, and the cheap bound on bindable CPUs is right."""

from __future__ import annotations

import pytest

from koord.api.config.scheduler.plugin_args import ResourceWeight, ScoringStrategy
from koord.scheduler.plugins.node_numa_resource.available import can_fit, can_fit_one_zone, summarize_free
from koord.scheduler.plugins.node_numa_resource.ledger import NumaAllocation, NumaLedger
from koord.scheduler.plugins.node_numa_resource.numa_score import (
    NumaScorer,
    numa_allocate_strategy,
    score_allocation,
    score_node,
)
from koord.scheduler.plugins.node_numa_resource.topology_options import (
    NumaZone,
    TopologyOptions,
    amplify,
    amplify_all,
    read_topology_options,
)
from koord.values.cpuset import CPUSet
from tests.scheduler.plugins.node_numa_resource.numa_builders import GI, LEAST, MOST, bits, holding, machine, node_of

TWO = machine(1, 2, 4, 2)


@pytest.mark.parametrize(
    ("scorer", "requested", "there", "pod", "score"),
    [
        pytest.param(LEAST, {"cpu": 2000}, {"cpu": 8000}, {"cpu": 2000}, 50, id="half-left"),
        pytest.param(MOST, {"cpu": 2000}, {"cpu": 8000}, {"cpu": 2000}, 50, id="half-taken"),
        pytest.param(LEAST, {"cpu": 8000}, {"cpu": 8000}, {"cpu": 1}, 0, id="overfull-leaves-nothing"),
        pytest.param(MOST, {"cpu": 9000}, {"cpu": 8000}, {}, 100, id="overfull-is-full"),
        pytest.param(LEAST, {}, {"cpu": 8000, "memory": 3}, {"cpu": 2000, "memory": 1}, 70, id="mean-is-cut"),
        pytest.param(LEAST, {}, {"memory": 4}, {"memory": 1}, 75, id="what-is-not-there-has-no-say"),
        pytest.param(LEAST, {}, {}, {"cpu": 1}, 0, id="nothing-there"),
    ],
)
def test_weighted_score(
    scorer: NumaScorer, requested: dict[str, int], there: dict[str, int], pod: dict[str, int], score: int
) -> None:
    assert scorer.score(requested, there, pod) == score


def test_special_resources_count_when_asked_for() -> None:
    scorer = NumaScorer(packs=False, weights=(("cpu", 1), ("kubernetes.io/batch-cpu", 3)))
    there = {"cpu": 100, "kubernetes.io/batch-cpu": 100}
    assert scorer.score({"kubernetes.io/batch-cpu": 90}, there, {"cpu": 50}) == 50
    assert scorer.score({}, there, {"cpu": 50, "kubernetes.io/batch-cpu": 90}) == (50 + 3 * 10) // 4


def test_zone_scorer_has_the_nodes_weights() -> None:
    node = ScoringStrategy(type="LeastAllocated", resources=(ResourceWeight(name="cpu", weight=7),))
    zone = ScoringStrategy(type="MostAllocated", resources=(ResourceWeight(name="memory", weight=1),))
    assert NumaScorer.from_strategy(node) == NumaScorer(False, (("cpu", 7),))
    assert NumaScorer.for_zones(zone, node) == NumaScorer(True, (("cpu", 7),))
    assert (numa_allocate_strategy(zone), numa_allocate_strategy(node)) == ("MostAllocated", "LeastAllocated")


def test_bound_cpus_of_an_amplified_node_weigh_more() -> None:
    node = node_of(TWO, node_ratio=2.0)
    ledger = holding(TWO, "0-3")
    there, taken = {"cpu": 32_000}, {"cpu": 4000}
    assert score_node(LEAST, node, ledger, {"cpu": 8000}, taken, there) == 50
    assert score_node(LEAST, node_of(TWO), ledger, {"cpu": 8000}, taken, there) == 62
    assert score_node(LEAST, node, ledger, {"memory": 1}, taken, there) == 87


def test_score_by_the_zones_that_were_given() -> None:
    given = NumaAllocation(zones={1: {"cpu": 2000}})
    found = score_allocation(
        LEAST,
        node_of(TWO, zones=(NumaZone(0, {"cpu": 8000}), NumaZone(1, {"cpu": 8000}))),
        given,
        {"cpu": 2000},
        available={0: {"cpu": 0}, 1: {"cpu": 6000}},
        held=0,
        requested={"cpu": 16_000},
        allocatable={"cpu": 16_000},
    )
    assert found == 50


def test_score_by_bound_cpus() -> None:
    given = NumaAllocation(cpus=CPUSet.parse("4-7"))
    found = score_allocation(
        MOST,
        node_of(TWO, ratio=2.0),
        given,
        {"cpu": 8000},
        available={},
        held=bits("0-3"),
        requested={"cpu": 0},
        allocatable={"cpu": 32_000},
    )
    assert found == 50


@pytest.mark.parametrize(
    ("amount", "ratio", "amplified"),
    [
        pytest.param(1000, 1.5, 1500, id="half-more"),
        pytest.param(1000, 1.0, 1000, id="one-changes-nothing"),
        pytest.param(1000, 0.5, 1000, id="less-than-one-changes-nothing"),
        pytest.param(1000, None, 1000, id="none"),
        pytest.param(1, 1.01, 2, id="rounded-up"),
        pytest.param(3000, 1.1, 3301, id="as-a-float-multiplies"),
    ],
)
def test_amplified(amount: int, ratio: float | None, amplified: int) -> None:
    assert amplify(amount, ratio) == amplified


def test_each_resource_by_its_own_ratio() -> None:
    assert amplify_all({"cpu": 1000, "memory": GI}, {"cpu": 2.0}) == {"cpu": 2000, "memory": GI}


@pytest.mark.parametrize(
    ("count", "must", "zone", "fits"),
    [
        pytest.param(11, "", None, True, id="all-that-is-free"),
        pytest.param(12, "", None, False, id="one-too-many"),
        pytest.param(8, "FullPCPUs", None, True, id="whole-cores"),
        pytest.param(10, "FullPCPUs", None, False, id="too-few-whole-cores"),
        pytest.param(3, "FullPCPUs", None, False, id="half-a-core"),
        pytest.param(7, "SpreadByPCPUs", None, True, id="a-thread-of-each-core"),
        pytest.param(8, "SpreadByPCPUs", None, False, id="more-than-open-cores"),
        pytest.param(8, "", 1, True, id="one-zone"),
        pytest.param(4, "", 0, False, id="too-much-for-the-zone"),
        pytest.param(1, "", 7, False, id="no-such-zone"),
        pytest.param(0, "FullPCPUs", 7, True, id="nothing-asked"),
    ],
)
def test_bound_on_what_fits(count: int, must: str, zone: int | None, fits: bool) -> None:
    there = summarize_free(node_of(TWO, reserved=bits("0-1")), holding(TWO, "2,4,6"))
    assert can_fit(there, count, must, zone) is fits


def test_no_room_without_topology() -> None:
    node: TopologyOptions = read_topology_options(None, {}, {})
    assert not can_fit(summarize_free(node, NumaLedger.build(None)), 1)


@pytest.mark.parametrize(
    ("amounts", "exclusive", "fits"),
    [
        pytest.param({"cpu": 8000}, "", True, id="in-the-second"),
        pytest.param({"cpu": 9000}, "", False, id="in-neither"),
        pytest.param({"nvidia.com/gpu": 9}, "", True, id="nothing-that-zones-know"),
        pytest.param({"cpu": 1000}, "Required", False, id="pods-lie-across"),
    ],
)
def test_bound_on_one_zone(amounts: dict[str, int], exclusive: str, fits: bool) -> None:
    ledger = holding(TWO, "0,8", zones={0: {"cpu": 1000}})
    there = summarize_free(node_of(TWO), ledger)
    assert can_fit_one_zone(there, amounts, exclusive=exclusive) is fits
