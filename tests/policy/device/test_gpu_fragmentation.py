"""Fragmentation of small machines equals the value computed by hand, and the two scores follow it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.policy.device.fragmentation import (
    Choice,
    Room,
    Shape,
    Typical,
    best_fit,
    descent,
    fits,
    fragmentation,
    typical_pods,
    unusable,
)

HALF = Shape(1000, 500, 1)
WHOLE = Shape(1000, 1000, 1)
PAIR = Shape(1000, 1000, 2)
CPU_ONLY = Shape(1000, 0, 0)
PICKY = Shape(1000, 500, 1, "T4|P100")

ROOM = Room(8000, (1000, 300, 600), "T4")


@pytest.mark.parametrize(
    ("shape", "room", "lost"),
    [
        pytest.param(HALF, ROOM, 300, id="only-the-small-remains"),
        pytest.param(WHOLE, ROOM, 900, id="all-but-the-idle-card"),
        pytest.param(PAIR, ROOM, 1900, id="too-few-cards-lose-all"),
        pytest.param(CPU_ONLY, ROOM, 1900, id="no-gpu-wanted-loses-all"),
        pytest.param(HALF, Room(999, (1000, 300, 600)), 1900, id="no-cpu-loses-all"),
        pytest.param(PICKY, ROOM, 300, id="a-model-that-will-do"),
        pytest.param(PICKY, Room(8000, (1000, 300, 600), "A10"), 1900, id="a-model-that-will-not"),
        pytest.param(WHOLE, Room(8000, (0, 0)), 0, id="full"),
    ],
)
def test_what_a_pod_cannot_use(shape: Shape, room: Room, lost: int) -> None:
    assert unusable(room, shape) == lost


def test_a_node_is_as_fragmented_as_its_pods_find_it() -> None:
    expected = (Typical(HALF, 0.75), Typical(WHOLE, 0.25))
    assert fragmentation(ROOM, expected) == 0.75 * 300 + 0.25 * 900


def test_typical_pods_are_the_common_ones() -> None:
    rare = Shape(1, 1, 1)
    found = typical_pods([HALF] * 60 + [WHOLE] * 36 + [rare] * 4)
    assert found == (Typical(HALF, 60 / 96), Typical(WHOLE, 36 / 96))


def test_equally_common_pods_are_taken_largest_first() -> None:
    found = typical_pods([Shape(1, 0, 0)] * 2 + [Shape(3, 0, 0)] * 2 + [Shape(2, 0, 0)])
    assert [one.shape.cpu_milli for one in found] == [3, 1, 2]


def test_descent_takes_the_card_that_spoils_least() -> None:
    # On card 0 half a card splits the only idle one (lost to WHOLE: 900 -> 1400); on card 2 it leaves 100 of no use.
    expected = (Typical(HALF, 0.5), Typical(WHOLE, 0.5))
    before = 0.5 * 300 + 0.5 * 900
    after = 0.5 * (300 + 100) + 0.5 * (300 + 100)
    score = int(100 / (1 + math.exp(-(before - after) / 1000)))
    assert descent(ROOM, HALF, expected) == Choice(score, (2,))


def test_whole_cards_are_the_first_idle_ones() -> None:
    room = Room(8000, (500, 1000, 1000, 1000))
    expected = (Typical(HALF, 1.0),)
    assert descent(room, PAIR, expected) == Choice(50, (1, 2))  # all idle card is of use before and after
    found = best_fit(room, PAIR)
    assert found is not None
    assert found.cards == (1, 2)


def test_best_fit_takes_the_tightest_card() -> None:
    left = 0.5 * 7000 / 128_000 + 0.5 * 1400 / 8000
    assert best_fit(ROOM, HALF) == Choice(int(100 * (1 - left)), (2,))
    assert best_fit(Room(64_000, ()), CPU_ONLY) == Choice(int(100 * (1 - 0.5 * 63_000 / 128_000)), ())


def test_a_pod_that_does_not_fit_has_no_score() -> None:
    expected = (Typical(HALF, 1.0),)
    for shape in (PAIR, Shape(9000, 500, 1), Shape(0, 500, 1, "A10")):
        assert not fits(ROOM, shape)
        assert descent(ROOM, shape, expected) is None
        assert best_fit(ROOM, shape) is None


rooms = st.builds(
    Room, st.integers(0, 16_000), st.lists(st.integers(0, 100).map(lambda n: 10 * n), max_size=8).map(tuple)
)
shapes = st.one_of(
    st.builds(Shape, st.integers(0, 8000), st.integers(1, 99).map(lambda n: 10 * n), st.just(1)),
    st.builds(Shape, st.integers(0, 8000), st.just(1000), st.integers(1, 8)),
    st.builds(Shape, st.integers(0, 8000), st.just(0), st.just(0)),
)


@settings(max_examples=100, deadline=None)
@given(rooms, shapes, st.lists(shapes, min_size=1, max_size=4))
def test_scores_are_bounded_and_cards_are_never_overdrawn(room: Room, shape: Shape, others: list[Shape]) -> None:
    expected = typical_pods(others)
    assert math.isclose(sum(one.weight for one in expected), 1)
    assert 0 <= fragmentation(room, expected) <= sum(room.gpu_milli) + 1e-6
    for choice in (descent(room, shape, expected), best_fit(room, shape)):
        assert (choice is not None) == fits(room, shape)
        if choice is not None:
            assert 0 <= choice.score <= 100
            assert len(choice.cards) == shape.gpu_count
            assert min(room.after(shape, choice.cards).gpu_milli, default=0) >= 0


def test_ninety_five_percent_is_enough() -> None:
    assert typical_pods([HALF] * 95 + [WHOLE] * 5) == (Typical(HALF, 1.0),)


def test_equal_cards_go_by_index() -> None:
    assert descent(Room(8000, (700, 900)), HALF, (Typical(CPU_ONLY, 1.0),)) == Choice(62, (0,))
