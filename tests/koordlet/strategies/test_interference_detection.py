"""Samples are judged against a container's own past, and the pod is named whose CPU use follows the bad ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.koordlet.strategies.interference_view import (
    CORRELATION_SAMPLES,
    CPI,
    CPU_PSI,
    MIN_SAMPLES,
    JudgedSample,
    MetricTrack,
    correlation,
    judge_sample,
    normal_range,
)

SIZE = 60
NEW = MetricTrack()


def judged(
    values: Sequence[float], metric: str = CPI, *, outliers: int = 3, start: MetricTrack = NEW
) -> list[MetricTrack]:
    tracks = [start]
    for value in values:
        at_s = 60.0 * (tracks[-1].seen_ms // 60_000 + 1)
        tracks.append(
            judge_sample(
                tracks[-1],
                metric,
                at_s,
                int(at_s * 1000),
                value,
                deviations=2.0,
                outliers=outliers,
                baseline_samples=SIZE,
            )
        )
    return tracks[1:]


def noisy(value: float, count: int, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [value * (1 + chance.uniform(-0.02, 0.02)) for _ in range(count)]


def test_a_container_that_runs_as_ever_is_not_disturbed() -> None:
    assert [one for one in judged(noisy(1.2, 300)) if one.since_s is not None] == []


def test_three_outliers_of_five_are_an_incident_and_three_good_samples_end_it() -> None:
    calm = judged(noisy(1.0, 30))[-1]
    story = judged([2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 1.0, 1.0], start=calm)
    opened = [one.since_s is not None for one in story]
    assert opened == [False] * 4 + [True] * 5 + [False]
    first_outlier_s = story[0].recent[-1].at_s
    assert story[4].since_s == first_outlier_s, "it began with the first of them"


def test_two_outliers_of_five_may_be_chance() -> None:
    calm = judged(noisy(1.0, 30))[-1]
    assert all(one.since_s is None for one in judged([2.0, 1.0, 1.0, 2.0, 1.0, 1.0, 2.0], start=calm))


def test_a_new_container_has_no_past() -> None:
    assert all(one.since_s is None for one in judged([1.0] * (MIN_SAMPLES - 3) + [50.0] * 3))


def test_better_than_ever_is_no_disturbance() -> None:
    assert all(one.since_s is None for one in judged([*noisy(3.0, 30), *noisy(0.5, 10)]))


def test_differences_below_the_floor_are_noise() -> None:
    assert all(one.since_s is None for one in judged([0.0] * 30 + [1.9] * 10, CPU_PSI)), "two percent of stalls"
    assert judged([0.0] * 30 + [3.0] * 3, CPU_PSI)[-1].since_s is not None


def test_what_lasts_becomes_normal_in_the_end_and_not_soon() -> None:
    story = judged([*noisy(1.0, SIZE), *noisy(1.6, 300, seed=2)])[SIZE:]
    opened = [number for number, one in enumerate(story) if one.since_s is not None]
    assert opened[0] == 2
    assert 15 < opened[-1] < 200, "a new version may just need more"


def test_an_incident_keeps_the_range_from_which_it_began() -> None:
    story = judged([*noisy(1.0, 30), *noisy(2.0, 15)])
    began = story[32].normal
    assert began is not None
    assert began.mean == pytest.approx(1.0, abs=0.05)
    assert story[-1].normal == began
    assert normal_range(CPI, story[-1].baseline).mean > began.mean


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=2 * SIZE))
def test_a_track_is_bounded_whatever_is_measured(values: list[float]) -> None:
    track = judged(values)[-1]
    assert len(track.baseline) == min(len(values), SIZE)
    assert len(track.recent) == min(len(values), CORRELATION_SAMPLES)
    normal = normal_range(CPI, track.baseline)
    assert min(values) - 1e-6 <= normal.mean <= max(values) + 1e-6
    assert normal.deviation >= 0.05


def samples(*values: float) -> list[JudgedSample]:
    return [JudgedSample(at_s=float(number), value=value, outlier=value > 1) for number, value in enumerate(values)]


@pytest.mark.parametrize(
    ("used", "wanted"),
    [
        pytest.param([0, 0, 0, 4, 4], 0.5, id="ran-only-while-it-was-bad"),
        pytest.param([4, 4, 4, 0, 0], -0.5, id="ran-only-while-it-was-good"),
        pytest.param([1, 1, 1, 1, 1], -0.1, id="ran-all-the-time"),
        pytest.param([0, 0, 0, 0, 0], 0.0, id="did-not-run"),
        pytest.param([0, 0, 0, 40, 40], 0.5, id="how-much-does-not-count"),
    ],
)
def test_the_score_is_that_of_the_paper(used: list[float], wanted: float) -> None:
    found = correlation(samples(0.5, 0.5, 0.5, 2.0, 2.0), 1.0, dict(enumerate(map(float, used))))
    assert found == pytest.approx(wanted)


@given(
    st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 64)), min_size=1, max_size=CORRELATION_SAMPLES),
    st.floats(0.01, 1e3),
)
def test_a_score_is_a_correlation(pairs: list[tuple[float, float]], threshold: float) -> None:
    usage = {float(number): cores for number, (_, cores) in enumerate(pairs)}
    assert -1 - 1e-9 <= correlation(samples(*(value for value, _ in pairs)), threshold, usage) <= 1 + 1e-9
