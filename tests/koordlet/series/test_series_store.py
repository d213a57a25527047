"""Samples by key and time: windows, aggregates, bounds, and clocks that jump."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.koordlet.series import metric_kind
from koord.koordlet.series.store import SampleRing, SampleWindow, SeriesStore

KEY = ("pod_cpu_usage", "uid-1")


def filled(values: list[float], *, keep_s: int = 300) -> SeriesStore:
    store = SeriesStore({KEY[0]: keep_s})
    for second, value in enumerate(values):
        assert store.add(KEY, 1000.0 + second, value)
    return store


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        pytest.param([1000.0], 0.5, 1000.0, id="single-element"),
        pytest.param([float(v) for v in range(1, 11)], 0.9, 9.0, id="ninth-of-ten"),
        pytest.param([5.0, 1.0, 4.0, 2.0, 3.0], 0.5, 2.0, id="second-of-five"),
        pytest.param([float(v) for v in range(1, 21)], 0.95, 19.0, id="nineteenth-of-twenty"),
        pytest.param([float(v) for v in range(1, 101)], 0.99, 99.0, id="99-of-100"),
        pytest.param([3.0, 1.0], 0.01, 1.0, id="never-below-the-first"),
        pytest.param([3.0, 1.0], 1.0, 3.0, id="all-is-the-largest"),
    ],
)
def test_percentile_ranks(values: list[float], share: float, expected: float) -> None:
    assert SampleWindow(array("d", values), 0, 1).percentile(share) == expected


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_a_percentile_is_a_share(share: float) -> None:
    with pytest.raises(ValueError, match="share above 0"):
        SampleWindow(array("d", [1.0]), 0, 1).percentile(share)


def test_aggregates_of_a_window() -> None:
    window = filled([1.0, 2.0, 3.0, 10.0]).window(KEY, 1003.0, 2.0)
    assert (window.count, window.avg, window.last, window.span_ms) == (3, 5.0, 10.0, 2000)
    assert [window.aggregate(name) for name in ("avg", "p50", "p90", "p95", "p99", "last")] == [5, 2, 3, 3, 3, 10]


def test_no_samples_is_not_zero() -> None:
    window = filled([1.0]).window(KEY, 5000.0, 10.0)
    assert (window.count, window.avg, window.last, window.percentile(0.9)) == (0, None, None, None)
    assert SeriesStore({}).window(("nothing",), 0.0, 10.0).last is None


def test_the_latest_value_must_be_of_now() -> None:
    store = filled([1.0, 2.0])
    assert [store.latest(KEY, at) for at in (1001.0, 1003.0, 1003.1)] == [2.0, 2.0, None]


def test_both_ends_of_a_window_belong_to_it() -> None:
    assert filled([1.0, 2.0, 3.0]).window(KEY, 1002.0, 1.0).count == 2


def test_a_window_is_never_longer_than_samples_are_kept() -> None:
    store = SeriesStore({KEY[0]: 10}, interval_s=0.5)
    for second in range(20):
        store.add(KEY, float(second), 1.0)
    assert store.window(KEY, 19.0, 100.0).count == 11


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.001])
def test_garbage_is_refused_and_counted(value: float) -> None:
    store = SeriesStore({})
    assert not store.add(KEY, 1.0, value)
    assert (len(store), store.refused) == (0, 1)


def test_a_time_that_is_none_is_refused() -> None:
    store = SeriesStore({})
    assert not store.add(KEY, math.nan, 1.0)
    assert not store.add(KEY, -1.0, 1.0)


def test_a_clock_that_goes_back_forgets_the_future() -> None:
    store = filled([1.0, 2.0, 3.0, 4.0])
    store.add(KEY, 1001.5, 9.0)
    window = store.window(KEY, 1001.5, 60.0)
    assert (window.count, window.last, window.avg) == (3, 9.0, 4.0)


def test_a_clock_far_back_starts_anew() -> None:
    store = filled([5.0] * 50)
    store.add(KEY, 3.0, 1.0)
    assert store.window(KEY, 3.0, 60.0).avg == 1.0


def test_a_clock_that_jumps_ahead_leaves_the_past_behind() -> None:
    store = filled([5.0] * 50)
    store.add(KEY, 90_000.0, 1.0)
    assert store.window(KEY, 90_000.0, 60.0).avg == 1.0


def test_two_samples_at_one_time_are_one() -> None:
    store = filled([1.0])
    store.add(KEY, 1000.0, 7.0)
    assert store.window(KEY, 1000.0, 10.0).avg == 7.0


def test_a_series_older_than_an_offset_can_count_goes_on() -> None:
    ring = SampleRing(4)
    for at in (0, 2000, 2**32 + 500, 2**32 + 1500):
        ring.add(at, float(at))
    values, first, last = ring.between(0, 2**33)
    assert (list(values), first, last) == ([2000.0, 2**32 + 500.0, 2**32 + 1500.0], 2000, 2**32 + 1500)


def test_quiet_series_expire_by_kind() -> None:
    store = SeriesStore({"long": 100, "short": 10})
    store.add(("long", "a"), 0.0, 1.0)
    store.add(("short", "a"), 0.0, 1.0)
    assert store.expire(50.0) == 1
    assert [*store.keys("long")] == [("long", "a")]
    assert [*store.keys("short")] == []


def test_the_number_of_series_is_bounded() -> None:
    store = SeriesStore({}, most_series=2)
    assert [store.add((metric_kind.POD_CPU, str(n)), 1.0, 1.0) for n in range(3)] == [True, True, False]
    assert store.add((metric_kind.POD_CPU, "0"), 2.0, 1.0), "a known series goes on"


def test_half_an_hour_of_a_hundred_pods_fits() -> None:
    """Two series a pod at one sample a second; a full series of half an hour is 12 bytes a sample."""
    store = SeriesStore({metric_kind.POD_CPU: 1800, metric_kind.POD_MEMORY: 1800})
    for pod in range(100):
        for second in range(1900):
            store.add((metric_kind.POD_CPU, str(pod)), float(second), 0.5)
    assert store.size_bytes / len(store) < 12 * 1801 + 400
    assert store.size_bytes < 3_000_000
    before = store.size_bytes
    for pod in range(100):
        store.add((metric_kind.POD_CPU, str(pod)), 2000.0, 0.5)
    assert store.size_bytes == before, "a full store does not grow"


def test_memory_is_steady_over_a_day_of_coming_and_going_pods() -> None:
    """250 pods, one of which is replaced every minute; a sample a minute stands for sixty."""
    store = SeriesStore(metric_kind.retention_s(), interval_s=60.0)
    sizes = []
    for minute in range(24 * 60):
        now = minute * 60.0
        for pod in range(minute, minute + 250):
            store.add((metric_kind.POD_CPU, str(pod)), now, 1.0)
        store.expire(now)
        sizes.append((len(store), store.size_bytes) if minute % 60 == 59 else (0, 0))
    later = sizes[119:]
    assert max(later) == max(sizes)
    assert max(count for count, _ in later) <= 250 + 6


def test_kinds_are_kept_as_long_as_reports_need_them() -> None:
    keep = metric_kind.retention_s(aggregate_s=600)
    assert (keep[metric_kind.NODE_CPU], keep[metric_kind.POD_CPU]) == (1800, 600)
    assert metric_kind.CONTAINER_THROTTLED not in keep


@settings(max_examples=60)
@given(
    capacity=st.integers(1, 40),
    steps=st.lists(st.tuples(st.integers(-20, 30), st.floats(0, 1e15)), max_size=120),
)
def test_a_ring_equals_a_list(capacity: int, steps: list[tuple[int, float]]) -> None:
    ring, model, now = SampleRing(capacity), list[tuple[int, float]](), 500
    for step, value in steps:
        now = max(0, now + step)
        ring.add(now, value)
        model = [(at, old) for at, old in model if at < now][-(capacity - 1) :] if capacity > 1 else []
        model.append((now, value))
        values, _, _ = ring.between(now - 25, now)
        assert list(values) == [old for at, old in model if at >= now - 25]
    assert len(ring) == len(model)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=12),
    st.integers(0, 45),
    st.integers(1, 5),
)
def test_the_latest_value_is_the_last_of_its_window(samples: list[tuple[int, int]], now: int, interval: int) -> None:
    store = SeriesStore({}, default_keep_s=20, interval_s=interval)
    for at, value in samples:
        store.add(("k",), at, value)
    assert store.latest(("k",), now) == store.window(("k",), now, 2 * interval).last


@pytest.mark.parametrize("before", [5, 40, 400])
def test_series_that_are_kept_longer_from_now_on_lose_nothing(before: int) -> None:
    store = SeriesStore({KEY[0]: 30})
    for second in range(before):
        store.add(KEY, 1000.0 + second, float(second))
    assert store.extend_retention({KEY[0]: 100, "other": 20})
    assert not store.extend_retention({KEY[0]: 50}), "never shorter"
    for second in range(before, before + 200):
        store.add(KEY, 1000.0 + second, float(second))
        kept = min(31, before) + second - before + 1
        window = store.window(KEY, 1000.0 + second, 1000)
        assert (window.count, window.last) == (min(kept, 101), float(second))
