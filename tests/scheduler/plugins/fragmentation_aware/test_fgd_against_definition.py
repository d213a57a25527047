"""Scores from tables equal those of fragmentation by its definition, for one node and for many."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.scheduler.plugins.fragmentation_aware.fragmentation import (
    DOES_NOT_FIT,
    FgdScorer,
    GpuPodShape,
    NodeFreeGpus,
    TypicalPod,
    typical_pods,
)
from tests.scheduler.plugins.fragmentation_aware.fgd_definition import choose_by_fgd, fragmentation_milli

rooms = st.builds(
    NodeFreeGpus,
    st.integers(0, 16).map(lambda n: 1000 * n),
    st.lists(st.sampled_from([0, 190, 300, 530, 810, 1000]), max_size=8).map(tuple),
    st.sampled_from(["T4", "A10"]),
)
asked = st.one_of(
    st.builds(
        GpuPodShape, st.integers(0, 8).map(lambda n: 1000 * n), st.sampled_from([50, 190, 320, 470, 810]), st.just(1)
    ),
    st.builds(GpuPodShape, st.integers(0, 8).map(lambda n: 1000 * n), st.just(1000), st.integers(1, 8)),
    st.builds(GpuPodShape, st.integers(0, 8).map(lambda n: 1000 * n), st.just(300), st.integers(2, 3)),
    st.builds(GpuPodShape, st.integers(0, 8).map(lambda n: 1000 * n), st.just(0), st.just(0)),
)
picky = st.builds(
    lambda shape, spec: GpuPodShape(shape.cpu_milli, shape.gpu_milli, shape.gpu_count, spec),
    asked,
    st.sampled_from(["", "T4", "T4|A10"]),
)
mixes = st.lists(picky, min_size=1, max_size=6).map(typical_pods)


def prospect(expected: tuple[TypicalPod, ...], model: str, balance: int = 0) -> FgdScorer:
    return FgdScorer(expected, lambda shape: shape.accepts_model(model), balance)


def percents(room: NodeFreeGpus) -> list[int]:
    return [left // 10 for left in room.gpu_milli]


@settings(max_examples=200, deadline=None)
@given(rooms, mixes)
def test_what_is_of_no_use_is_fragmentation(room: NodeFreeGpus, expected: tuple[TypicalPod, ...]) -> None:
    useful = prospect(expected, room.model).usefulness(room.cpu_milli, percents(room)) / (1 << 30)
    assert math.isclose(sum(room.gpu_milli) - useful, fragmentation_milli(room, expected), abs_tol=1e-4)


def near_a_step(room: NodeFreeGpus, shape: GpuPodShape, expected: tuple[TypicalPod, ...]) -> bool:
    """Return whether some placement is so near a score step that the last bit of a sum decides."""
    before = fragmentation_milli(room, expected)
    fitting = [card for card, left in enumerate(room.gpu_milli) if left >= shape.gpu_milli]
    cards: list[tuple[int, ...]] = [(card,) for card in fitting]
    if shape.gpu_count != 1 or shape.gpu_milli == 1000:
        cards = [tuple(fitting[: shape.gpu_count])]
    gains = (before - fragmentation_milli(room.after(shape, chosen), expected) for chosen in cards)
    exact = (100 / (1 + math.exp(-gain / 1000)) for gain in gains)
    return any(abs(score - round(score)) < 1e-6 for score in exact)


@settings(max_examples=300, deadline=None)
@given(rooms, asked, mixes)
def test_choices_are_those_of_descent(room: NodeFreeGpus, shape: GpuPodShape, expected: tuple[TypicalPod, ...]) -> None:
    found = prospect(expected, room.model).choose(room.cpu_milli, percents(room), shape)
    right = choose_by_fgd(room, shape, expected)
    if right is None or not near_a_step(room, shape, expected):
        assert found == right


@settings(max_examples=200, deadline=None)
@given(st.lists(rooms, min_size=1, max_size=5), asked, mixes, st.sampled_from([0, 10]))
def test_many_rooms_score_as_each_does(
    found: list[NodeFreeGpus], shape: GpuPodShape, expected: tuple[TypicalPod, ...], balance: int
) -> None:
    table = prospect(expected, "T4", balance)
    matrix = np.zeros((len(found), 8), np.int64)
    for row, room in enumerate(found):
        matrix[row, : len(room.gpu_milli)] = percents(room)
    one_by_one = [table.choose(room.cpu_milli, percents(room), shape) for room in found]
    scores = table.score_column(np.asarray([room.cpu_milli for room in found]), matrix, shape)
    assert scores.tolist() == [DOES_NOT_FIT if choice is None else choice.score for choice in one_by_one]


PAIRED = (TypicalPod(GpuPodShape(8000, 1000, 1), 1.0),)  # eight cores with each card


@pytest.mark.parametrize(
    ("cpu_milli", "balanced"),
    [
        pytest.param(16_000, False, id="cards-would-be-left-without-cpu"),
        pytest.param(64_000, True, id="there-is-cpu-for-all"),
    ],
)
def test_cpu_is_not_taken_from_cards_that_need_it(cpu_milli: int, balanced: bool) -> None:
    """A pod without GPUs: fragmentation alone sees no harm while one more pod would fit."""
    plain, aware = (prospect(PAIRED, "", balance) for balance in (0, 10))
    pod = GpuPodShape(6000, 0, 0)
    first, second = (table.choose(cpu_milli, [100, 100], pod) for table in (plain, aware))
    assert first is not None
    assert second is not None
    assert first.score == 50
    assert (second.score == 50) is balanced
