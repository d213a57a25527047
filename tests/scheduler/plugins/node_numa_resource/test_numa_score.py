"""Nodes and NUMA nodes are scored, and the cheap bound on bindable CPUs is right."""

from __future__ import annotations

import pytest

from koord.api.config.scheduler.in_tree_args import ResourceWeight, ScoringStrategy
from koord.scheduler.plugins.node_numa_resource.cycle_state import (
    NumaScorer,
    numa_allocate_strategy,
    score_allocation,
    score_node,
)
from koord.scheduler.plugins.node_numa_resource.ledger import NumaAllocation
from koord.scheduler.plugins.node_numa_resource.topology_options import (
    NumaZone,
    amplify,
    amplify_all,
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
