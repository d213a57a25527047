"""Scores of devices and nodes, and the quick bound for columns."""

from __future__ import annotations

import pytest

from koord.api.resource_name import FPGA, GPU, GPU_MEMORY, GPU_MEMORY_RATIO, GPU_SHARED, RDMA
from koord.policy.device.bound import COLUMNS, bound_of, could_fit, thresholds
from koord.policy.device.node_score import node_score
from koord.policy.device.score import Scorer, stretched
from koord.policy.device.view import Terms
from tests.policy.device.machines import GI, LEAST, MOST, ask, busy, gpus, reference, whole_gpus

RATIO_ONLY = ((GPU_MEMORY_RATIO, 1),)


@pytest.mark.parametrize(
    ("most", "free", "want", "score"),
    [
        pytest.param(False, 100, 50, 50, id="least-idle"),
        pytest.param(True, 100, 50, 50, id="most-idle"),
        pytest.param(False, 0, 50, 0, id="least-full"),
        pytest.param(True, 0, 50, 100, id="most-full"),
        pytest.param(False, 50, 30, 20, id="least-half"),
        pytest.param(True, 50, 30, 80, id="most-half"),
        pytest.param(False, 150, 30, 0, id="more-free-than-there-is-counts-as-full"),
    ],
)
def test_one_device(most: bool, free: int, want: int, score: int) -> None:
    scorer = Scorer(most, RATIO_ONLY)
    found = scorer.score({GPU_MEMORY_RATIO: want}, {GPU_MEMORY_RATIO: 100}, {GPU_MEMORY_RATIO: free})
    assert found == score


def test_weights_and_resources_that_are_not_there() -> None:
    scorer = Scorer(False, ((GPU_MEMORY_RATIO, 3), (GPU_MEMORY, 1), (RDMA, 9)))
    total = {GPU_MEMORY_RATIO: 100, GPU_MEMORY: 1000}
    assert scorer.score({GPU_MEMORY_RATIO: 50}, total, total) == (3 * 50 + 100) // 4
    assert scorer.score({}, {}, {}) == 0


@pytest.mark.parametrize(
    ("raw", "normal"), [([0, 0], [0, 0]), ([10, 20], [50, 100]), ([], []), ([7, 3], [100, 42])], ids=str
)
def test_the_best_node_has_a_hundred(raw: list[int], normal: list[int]) -> None:
    assert stretched(raw) == normal


def test_types_add_up_and_one_instance_counts() -> None:
    both = ask({GPU: 200, RDMA: 100})
    # GPUs: ratio 800, one card of 100 asked: 87; bytes all free: 100. RDMA: 400, one of 100 asked: 75.
    assert node_score(reference(), both, LEAST) == (87 + 100) // 2 + 75
    assert node_score(reference(), gpus(1), MOST) == (12 + 0) // 2
    assert node_score(reference(), ask({FPGA: 100}), LEAST) == 0


def test_what_others_give_up_counts_as_free() -> None:
    terms = Terms(reusable=whole_gpus(0, 1))
    assert node_score(busy(reference(), 0, 1), gpus(1), LEAST, terms) == node_score(reference(), gpus(1), LEAST)


@pytest.mark.parametrize(
    ("asked", "taken", "fits"),
    [
        pytest.param({GPU: 800}, (), True, id="all"),
        pytest.param({GPU: 800}, (3,), False, id="one-short"),
        pytest.param({GPU: 50}, tuple(range(8)), False, id="no-room-for-a-share"),
        pytest.param({GPU: 50}, tuple(range(7)), True, id="room-for-a-share"),
        pytest.param({GPU_MEMORY: 17 * GI}, (), False, id="larger-than-a-card"),
        pytest.param({GPU_SHARED: 2, GPU_MEMORY_RATIO: 100}, tuple(range(7)), False, id="two-shares-on-one-card"),
        pytest.param({RDMA: 500}, (), False, id="five-of-four-network-cards"),
        pytest.param({RDMA: 400}, (), True, id="four-network-cards"),
        pytest.param({FPGA: 100}, (), False, id="no-such-type"),
    ],
)
def test_bound(asked: dict[str, int], taken: tuple[int, ...], fits: bool) -> None:
    assert could_fit(bound_of(busy(reference(), *taken)), thresholds(ask(asked))) is fits


def test_every_threshold_has_its_column() -> None:
    assert tuple(bound_of(reference())) == COLUMNS
    for asked in ({GPU: 100, RDMA: 1, FPGA: 300}, {GPU_SHARED: 2, GPU_MEMORY: 2}):
        assert {t.column for t in thresholds(ask(asked))} <= set(COLUMNS)


def test_planned_network_cards_are_not_counted() -> None:
    full = reference().taken("a", {"rdma": {m: {RDMA: 100} for m in range(1, 5)}})
    demanded = thresholds(ask({GPU: 100, RDMA: 1}, joint=("gpu", "rdma")))
    assert could_fit(bound_of(full), demanded, well_planned=True)
    assert not could_fit(bound_of(full), demanded)


def test_a_plan_says_nothing_of_the_leading_gpus() -> None:
    full = busy(reference(), *range(8))
    demanded = thresholds(ask({GPU: 100, RDMA: 1}, joint=("gpu", "rdma")))
    assert not could_fit(bound_of(full), demanded, well_planned=True)
