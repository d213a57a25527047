"""The token bucket keeps its rate and burst, lends tokens in order, and survives a clock that is set back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from koord.values.token_bucket import TokenBucket


@given(rate=st.floats(0.1, 100), burst=st.integers(1, 20), gaps=st.lists(st.floats(0, 10), max_size=40))
def test_a_bucket_never_gives_more_than_its_rate_and_burst(rate: float, burst: int, gaps: list[float]) -> None:
    bucket = TokenBucket(rate, burst, 0.0)
    given_out, now_s = 0, 0.0
    for gap in gaps:
        now_s += gap
        while bucket.allow(now_s):
            given_out += 1
            assert given_out <= burst + rate * now_s + 1e-6


def test_borrowed_tokens_are_paid_for_in_order() -> None:
    bucket = TokenBucket(2.0, 2, 0.0)
    assert [bucket.reserve(0.0) for _ in range(5)] == [0, 0, 0.5, 1.0, 1.5]


def test_a_clock_that_was_set_back_neither_takes_nor_gives_tokens() -> None:
    bucket = TokenBucket(1.0, 3, 100.0)
    bucket.reserve(100.0)
    assert bucket.tokens(50.0) == 2
    assert bucket.tokens(50.5) == 2.5
    assert bucket.idle_s(51.0) == 1.0


def test_a_rate_of_zero_never_refills_the_bucket() -> None:
    bucket = TokenBucket(0.0, 1, 0.0)
    assert [bucket.allow(now_s) for now_s in (0.0, 1e9)] == [True, False]
