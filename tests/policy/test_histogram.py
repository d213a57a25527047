"""Histogram samples fall into the right buckets, decay, and survive saving unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.api.model import decode, encode
from koord.policy.histogram import (
    CPU_BUCKETS,
    MEMORY_BUCKETS,
    CompactHistogram,
    DecayingHistogram,
    HistogramCheckpoint,
)

HALF_LIFE_S = 100.0


def histogram(*samples: tuple[float, float], half_life_s: float = HALF_LIFE_S) -> DecayingHistogram:
    made = DecayingHistogram(CPU_BUCKETS, half_life_s)
    for value, at in samples:
        made.add(value, at)
    return made


def test_bucket_counts() -> None:
    assert (CPU_BUCKETS.count, MEMORY_BUCKETS.count) == (158, 205)


@pytest.mark.parametrize(
    ("value", "end"),
    [(0.01, 0.025), (0.05, 0.05125), (1.0, 1.03576), (4.0, 4.21713)],
    ids=["tiny", "small", "one", "four"],
)
def test_bucket_ends(value: float, end: float) -> None:
    assert histogram((value, 0.0)).percentile(0.95) == pytest.approx(end, abs=1e-5)


def test_more_than_the_largest_falls_into_the_last_bucket() -> None:
    assert histogram((1e9, 0.0)).percentile(1.0) == CPU_BUCKETS.start(CPU_BUCKETS.count - 1)


def test_nothing_is_zero() -> None:
    assert histogram().is_empty
    assert histogram().percentile(0.5) == 0.0
    assert histogram().peak(0.0, 0.01) == 0.0


def test_a_sample_counts_half_after_its_half_life() -> None:
    made = histogram((1.0, 0.0), (1.0, 0.0), (8.0, HALF_LIFE_S))
    low, high = CPU_BUCKETS.end(CPU_BUCKETS.find(1.0)), CPU_BUCKETS.end(CPU_BUCKETS.find(8.0))
    assert made.percentile(0.49) == made.percentile(0.5) == low  # two old ones weigh as much as one new
    assert made.percentile(0.51) == high


def test_a_peak_fades() -> None:
    made = histogram((8.0, 0.0), *((1.0, float(at)) for at in range(0, 1000, 10)))
    assert made.peak(600.0, 0.01) == CPU_BUCKETS.end(CPU_BUCKETS.find(8.0))
    assert made.peak(700.0, 0.01) == CPU_BUCKETS.end(CPU_BUCKETS.find(1.0))


def test_a_long_absence_moves_the_reference_and_leaves_the_new() -> None:
    made = histogram((8.0, 0.0), (1.0, 1e6))
    assert made.percentile(1.0) == CPU_BUCKETS.end(CPU_BUCKETS.find(1.0))
    assert made.save().reference_s == 1e6


samples = st.lists(st.tuples(st.floats(0, 2000), st.floats(0, 1e5)), max_size=30)


@given(given_=samples, cut=st.integers(0, 30))
def test_a_restart_equals_no_restart(given_: list[tuple[float, float]], cut: int) -> None:
    whole = histogram(*given_)
    first = histogram(*given_[:cut])
    second = DecayingHistogram(CPU_BUCKETS, HALF_LIFE_S)
    second.restore(decode(encode(first.save()), HistogramCheckpoint))
    for value, at in given_[cut:]:
        second.add(value, at)
    assert second.save() == whole.save()
    assert [second.percentile(share / 10) for share in range(11)] == [
        whole.percentile(share / 10) for share in range(11)
    ]


@given(given_=samples)
def test_percentiles_rise(given_: list[tuple[float, float]]) -> None:
    made = histogram(*given_)
    ladder = [made.percentile(share / 20) for share in range(21)]
    assert ladder == sorted(ladder)
    assert made.peak(1e5, 0.01) <= made.percentile(1.0)


@given(given_=samples)
def test_the_compact_form_keeps_the_shape(given_: list[tuple[float, float]]) -> None:
    made = histogram(*given_, half_life_s=1e6)
    other = DecayingHistogram(CPU_BUCKETS, 1e6)
    other.expand(decode(encode(made.compact()), CompactHistogram))
    assert other.total == pytest.approx(made.total)
    before, after = made.save().weights, other.save().weights
    assert all(after[bucket] == pytest.approx(before[bucket], rel=0.05, abs=made.total / 1e4) for bucket in after)


def test_a_half_life_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="half-life"):
        DecayingHistogram(CPU_BUCKETS, 0)
