"""Fragmentation of small machines equals the value computed by hand, and the two scores follow it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.plugins.fragmentation_aware.fragmentation import (
    GpuChoice,
    GpuPodShape,
    NodeFreeGpus,
    TypicalPod,
    choose_by_best_fit,
    fits,
    typical_pods,
)
from tests.scheduler.plugins.fragmentation_aware.fgd_definition import (
    choose_by_fgd,
    fragmentation_milli,
    unusable_milli,
)

HALF = GpuPodShape(1000, 500, 1)
WHOLE = GpuPodShape(1000, 1000, 1)
PAIR = GpuPodShape(1000, 1000, 2)
CPU_ONLY = GpuPodShape(1000, 0, 0)
PICKY = GpuPodShape(1000, 500, 1, "T4|P100")

ROOM = NodeFreeGpus(8000, (1000, 300, 600), "T4")


@pytest.mark.parametrize(
    ("shape", "room", "lost"),
    [
        pytest.param(HALF, ROOM, 300, id="only-the-small-remains"),
        pytest.param(WHOLE, ROOM, 900, id="all-but-the-idle-card"),
        pytest.param(PAIR, ROOM, 1900, id="too-few-cards-lose-all"),
        pytest.param(CPU_ONLY, ROOM, 1900, id="no-gpu-wanted-loses-all"),
        pytest.param(HALF, NodeFreeGpus(999, (1000, 300, 600)), 1900, id="no-cpu-loses-all"),
        pytest.param(PICKY, ROOM, 300, id="a-model-that-will-do"),
        pytest.param(PICKY, NodeFreeGpus(8000, (1000, 300, 600), "A10"), 1900, id="a-model-that-will-not"),
        pytest.param(WHOLE, NodeFreeGpus(8000, (0, 0)), 0, id="full"),
    ],
)
def test_what_a_pod_cannot_use(shape: GpuPodShape, room: NodeFreeGpus, lost: int) -> None:
    assert unusable_milli(room, shape) == lost


def test_a_node_is_as_fragmented_as_its_pods_find_it() -> None:
    expected = (TypicalPod(HALF, 0.75), TypicalPod(WHOLE, 0.25))
    assert fragmentation_milli(ROOM, expected) == 0.75 * 300 + 0.25 * 900


def test_typical_pods_are_the_common_ones() -> None:
    rare = GpuPodShape(1, 1, 1)
    found = typical_pods([HALF] * 60 + [WHOLE] * 36 + [rare] * 4)
    assert found == (TypicalPod(HALF, 60 / 96), TypicalPod(WHOLE, 36 / 96))


def test_equally_common_pods_are_taken_largest_first() -> None:
    found = typical_pods([GpuPodShape(1, 0, 0)] * 2 + [GpuPodShape(3, 0, 0)] * 2 + [GpuPodShape(2, 0, 0)])
    assert [one.shape.cpu_milli for one in found] == [3, 1, 2]


def test_descent_takes_the_card_that_spoils_least() -> None:
    # On card 0 half a card splits the only idle one (lost to WHOLE: 900 -> 1400); on card 2 it leaves 100 of no use.
    expected = (TypicalPod(HALF, 0.5), TypicalPod(WHOLE, 0.5))
    before = 0.5 * 300 + 0.5 * 900
    after = 0.5 * (300 + 100) + 0.5 * (300 + 100)
    score = int(100 / (1 + math.exp(-(before - after) / 1000)))
    assert choose_by_fgd(ROOM, HALF, expected) == GpuChoice(score, (2,))


def test_whole_cards_are_the_first_idle_ones() -> None:
    room = NodeFreeGpus(8000, (500, 1000, 1000, 1000))
    expected = (TypicalPod(HALF, 1.0),)
    assert choose_by_fgd(room, PAIR, expected) == GpuChoice(50, (1, 2))  # all idle card is of use before and after
    found = choose_by_best_fit(room, PAIR)
    assert found is not None
    assert found.cards == (1, 2)


def test_best_fit_takes_the_tightest_card() -> None:
    left = 0.5 * 7000 / 128_000 + 0.5 * 1400 / 8000
    assert choose_by_best_fit(ROOM, HALF) == GpuChoice(int(100 * (1 - left)), (2,))
    assert choose_by_best_fit(NodeFreeGpus(64_000, ()), CPU_ONLY) == GpuChoice(
        int(100 * (1 - 0.5 * 63_000 / 128_000)), ()
    )


def test_a_pod_that_does_not_fit_has_no_score() -> None:
    expected = (TypicalPod(HALF, 1.0),)
    for shape in (PAIR, GpuPodShape(9000, 500, 1), GpuPodShape(0, 500, 1, "A10")):
        assert not fits(ROOM, shape)
        assert choose_by_fgd(ROOM, shape, expected) is None
        assert choose_by_best_fit(ROOM, shape) is None


rooms = st.builds(
    NodeFreeGpus, st.integers(0, 16_000), st.lists(st.integers(0, 100).map(lambda n: 10 * n), max_size=8).map(tuple)
)
shapes = st.one_of(
    st.builds(GpuPodShape, st.integers(0, 8000), st.integers(1, 99).map(lambda n: 10 * n), st.just(1)),
    st.builds(GpuPodShape, st.integers(0, 8000), st.just(1000), st.integers(1, 8)),
    st.builds(GpuPodShape, st.integers(0, 8000), st.just(0), st.just(0)),
)


@settings(max_examples=100, deadline=None)
@given(rooms, shapes, st.lists(shapes, min_size=1, max_size=4))
def test_scores_are_bounded_and_cards_are_never_overdrawn(
    room: NodeFreeGpus, shape: GpuPodShape, others: list[GpuPodShape]
) -> None:
    expected = typical_pods(others)
    assert math.isclose(sum(one.weight for one in expected), 1)
    assert 0 <= fragmentation_milli(room, expected) <= sum(room.gpu_milli) + 1e-6
    for choice in (choose_by_fgd(room, shape, expected), choose_by_best_fit(room, shape)):
        assert (choice is not None) == fits(room, shape)
        if choice is not None:
            assert 0 <= choice.score <= 100
            assert len(choice.cards) == shape.gpu_count
            assert min(room.after(shape, choice.cards).gpu_milli, default=0) >= 0


def test_ninety_five_percent_is_enough() -> None:
    assert typical_pods([HALF] * 95 + [WHOLE] * 5) == (TypicalPod(HALF, 1.0),)


def test_equal_cards_go_by_index() -> None:
    assert choose_by_fgd(NodeFreeGpus(8000, (700, 900)), HALF, (TypicalPod(CPU_ONLY, 1.0),)) == GpuChoice(62, (0,))
