"""Devices and nodes are scored by LeastAllocated and MostAllocated."""

from __future__ import annotations

import pytest

from koord.api.koordinator.resource_name import FPGA, GPU, GPU_MEMORY, GPU_MEMORY_RATIO, RDMA
from koord.scheduler.plugins.device_share.device_amounts import DeviceScorer
from koord.scheduler.plugins.device_share.node_devices import DeviceConstraints
from koord.scheduler.plugins.device_share.selection import score_node_devices
from tests.scheduler.plugins.device_share.device_builders import LEAST, MOST, ask, busy, gpus, reference, whole_gpus

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
    scorer = DeviceScorer(most, RATIO_ONLY)
    found = scorer.score({GPU_MEMORY_RATIO: want}, {GPU_MEMORY_RATIO: 100}, {GPU_MEMORY_RATIO: free})
    assert found == score


def test_weights_and_resources_that_are_not_there() -> None:
    scorer = DeviceScorer(False, ((GPU_MEMORY_RATIO, 3), (GPU_MEMORY, 1), (RDMA, 9)))
    total = {GPU_MEMORY_RATIO: 100, GPU_MEMORY: 1000}
    assert scorer.score({GPU_MEMORY_RATIO: 50}, total, total) == (3 * 50 + 100) // 4
    assert scorer.score({}, {}, {}) == 0


def test_types_add_up_and_one_instance_counts() -> None:
    both = ask({GPU: 200, RDMA: 100})
    # GPUs: ratio 800, one card of 100 asked: 87; bytes all free: 100. RDMA: 400, one of 100 asked: 75.
    assert score_node_devices(reference(), both, LEAST) == (87 + 100) // 2 + 75
    assert score_node_devices(reference(), gpus(1), MOST) == (12 + 0) // 2
    assert score_node_devices(reference(), ask({FPGA: 100}), LEAST) == 0


def test_what_others_give_up_counts_as_free() -> None:
    terms = DeviceConstraints(reusable=whole_gpus(0, 1))
    assert score_node_devices(busy(reference(), 0, 1), gpus(1), LEAST, terms) == score_node_devices(
        reference(), gpus(1), LEAST
    )
