"""Durations agree with tables taken from Go, and round-trip."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.values import duration
from koord.values.duration import HOUR, MICROSECOND, MILLISECOND, MINUTE, SECOND, DurationError

int64s = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-(10**12), 10**12), st.integers(-2000, 2000))


@pytest.mark.parametrize(
    ("text", "nanoseconds", "canonical"),
    [
        ("0", 0, "0s"),
        ("+0", 0, "0s"),
        ("-0", 0, "0s"),
        ("1ns", 1, "1ns"),
        ("1us", MICROSECOND, "1µs"),
        ("1\u00b5s", MICROSECOND, "1µs"),
        ("1\u03bcs", MICROSECOND, "1µs"),
        ("100µs", 100 * MICROSECOND, "100µs"),
        ("300ms", 300 * MILLISECOND, "300ms"),
        ("1.5ms", 1_500_000, "1.5ms"),
        ("1.5s", 1_500_000_000, "1.5s"),
        (".5s", 500 * MILLISECOND, "500ms"),
        ("1.s", SECOND, "1s"),
        ("+5s", 5 * SECOND, "5s"),
        ("-2m", -2 * MINUTE, "-2m0s"),
        ("300s", 5 * MINUTE, "5m0s"),
        ("1h30m", 90 * MINUTE, "1h30m0s"),
        ("24h", 24 * HOUR, "24h0m0s"),
        ("1h1h", 2 * HOUR, "2h0m0s"),
        ("0.3333333333333333333h", 20 * MINUTE, "20m0s"),
        ("0.9223372036854775808s", 922_337_203, "922.337203ms"),
        ("1.00000000000000000000001s", SECOND, "1s"),
        ("2562047h47m16.854775807s", 2**63 - 1, "2562047h47m16.854775807s"),
        ("-9223372036854775808ns", -(2**63), "-2562047h47m16.854775808s"),
    ],
)
def test_read_and_write(text: str, nanoseconds: int, canonical: str) -> None:
    assert duration.parse(text) == nanoseconds
    assert duration.text(nanoseconds) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", 'time: invalid duration ""'),
        ("-", 'time: invalid duration "-"'),
        ("s", 'time: invalid duration "s"'),
        (".s", 'time: invalid duration ".s"'),
        ("3", 'time: missing unit in duration "3"'),
        ("00", 'time: missing unit in duration "00"'),
        ("1.5.3s", 'time: missing unit in duration "1.5.3s"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        ("1s ", 'time: unknown unit "s " in duration "1s "'),
        ("1m-1s", 'time: unknown unit "m-" in duration "1m-1s"'),
        ('1"x', 'time: unknown unit "\\"x" in duration "1\\"x"'),
        ("1é\n", 'time: unknown unit "\\xc3\\xa9\\x0a" in duration "1\\xc3\\xa9\\x0a"'),
        ("9223372036854775808ns", 'time: invalid duration "9223372036854775808ns"'),
        ("3000000h", 'time: invalid duration "3000000h"'),
    ],
)
def test_malformed_text_is_refused_in_gos_words(text: str, message: str) -> None:
    with pytest.raises(DurationError) as refusal:
        duration.parse(text)
    assert str(refusal.value) == message


@given(int64s)
def test_text_round_trip(nanoseconds: int) -> None:
    assert duration.parse(duration.text(nanoseconds)) == nanoseconds


@given(int64s)
def test_text_states_the_amount(nanoseconds: int) -> None:
    """Add up hours, minutes and seconds of the text as fractions."""
    units = {"h": HOUR, "m": MINUTE, "s": SECOND, "ms": MILLISECOND, "µs": MICROSECOND, "ns": 1}
    rest, total = duration.text(nanoseconds).removeprefix("-"), Fraction(0)
    while rest:
        number = rest[: len(rest) - len(rest.lstrip("0123456789."))]
        rest = rest[len(number) :]
        unit = rest[: len(rest) - len(rest.lstrip("hmsnµ"))]
        rest = rest[len(unit) :]
        total += Fraction(number) * units[unit]
    assert total == abs(nanoseconds)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.sampled_from(["h", "m", "s", "ms", "us", "ns"])), min_size=1, max_size=5)
)
def test_terms_add_up(terms: list[tuple[int, str]]) -> None:
    text = "".join(f"{count}{unit}" for count, unit in terms)
    assert duration.parse(text) == sum(duration.parse(f"{count}{unit}") for count, unit in terms)
    assert duration.parse(f"-{text}") == -duration.parse(text)


def test_seconds() -> None:
    assert duration.parse_seconds("1m30.5s") == 90.5
    assert duration.text(duration.from_seconds(90.5)) == "1m30.5s"
