"""Rates of growing counters, and all that makes a difference meaningless."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord.koordlet.collect.collector import CounterRates


def test_the_first_look_tells_nothing() -> None:
    counters = CounterRates(20.0)
    assert counters.rate("c", 1.0, 100.0) is None
    assert counters.rate("c", 3.0, 104.0) == 2.0


@pytest.mark.parametrize(
    ("at", "total"),
    [
        pytest.param(2.0, 50.0, id="counter-went-back"),
        pytest.param(1.0, 200.0, id="clock-stood-still"),
        pytest.param(0.5, 200.0, id="clock-went-back"),
        pytest.param(30.0, 200.0, id="gap-too-long"),
        pytest.param(1.001, 200.0, id="faster-than-the-machine"),
    ],
)
def test_meaningless_differences_start_anew(at: float, total: float) -> None:
    counters = CounterRates(20.0)
    counters.rate("c", 1.0, 100.0)
    assert counters.rate("c", at, total, ceiling=64.0) is None
    assert counters.rate("c", at + 1, total + 3, ceiling=64.0) == pytest.approx(3.0)


def test_throttling_is_a_share_of_periods() -> None:
    counters = CounterRates(20.0)
    assert counters.share("c", 0.0, 0, 0) is None
    assert counters.share("c", 1.0, 5, 10) == 0.5
    assert counters.share("c", 2.0, 5, 10) == 0.0


def test_counters_nobody_looks_at_are_forgotten() -> None:
    counters = CounterRates(20.0)
    counters.rate("old", 0.0, 1.0)
    counters.rate("new", 30.0, 1.0)
    counters.rate("future", 1000.0, 1.0)
    assert counters.expire(31.0) == 2
    assert len(counters) == 1


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(-5, 30), st.floats(0, 1e12)), min_size=1, max_size=50))
def test_a_rate_is_never_negative(looks: list[tuple[float, float]]) -> None:
    counters, now = CounterRates(20.0), 100.0
    for step, total in looks:
        now += step
        found = counters.rate("c", now, total)
        assert found is None or found >= 0
