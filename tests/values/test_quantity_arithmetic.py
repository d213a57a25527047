"""Quantities agree with a second implementation of the rules in fractions, written independently."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.values.quantity import ZERO, Format, Quantity

DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
MAX = 2**63 - 1
NANO = Fraction(1, 10**9)


def multiplier(suffix: str) -> Fraction:
    if suffix in BINARY:
        return Fraction(2 ** BINARY[suffix])
    if suffix in DECIMAL:
        return Fraction(10) ** DECIMAL[suffix]
    return Fraction(10) ** int(suffix[1:])


def away_from_zero(amount: Fraction) -> int:
    whole = abs(amount.numerator) // amount.denominator
    if whole * amount.denominator != abs(amount.numerator):
        whole += 1
    return whole if amount >= 0 else -whole


def expected_amount(number: str, suffix: str) -> Fraction:
    amount = away_from_zero(Fraction(number) * multiplier(suffix) / NANO) * NANO
    return max(min(amount, Fraction(MAX)), Fraction(-MAX)) if suffix in BINARY else amount


def expected_text(amount: Fraction, format: Format) -> str:
    """The largest suffix of the family that leaves an integer in front."""
    if amount == 0:
        return "0"
    if format is Format.BINARY_SI and abs(amount) >= 1024 and amount.denominator == 1:
        choices = [("", 0), *BINARY.items()]
        return [f"{amount / 2**e}{suffix}" for suffix, e in choices if (amount / 2**e).denominator == 1][-1]
    if format is Format.DECIMAL_EXPONENT:
        powers = {f"e{e}" if e else "": e for e in range(-9, 40, 3)}
    else:
        powers = DECIMAL
    fitting = [(e, suffix) for suffix, e in powers.items() if (amount / Fraction(10) ** e).denominator == 1]
    e, suffix = max(fitting)
    return f"{amount / Fraction(10) ** e}{suffix}"


numbers = st.builds(
    lambda sign, whole, places: f"{sign}{whole}" + (f".{places}" if places else ""),
    st.sampled_from(["", "", "-"]),
    st.one_of(st.integers(0, 5000), st.integers(0, 10**17), st.integers(1, 999).map(lambda n: n * 1000)),
    st.one_of(st.just(""), st.text("0123456789", min_size=1, max_size=13)),
)
suffixes = st.one_of(
    st.sampled_from([*DECIMAL, *BINARY]),
    st.integers(-14, 12).map(lambda e: f"e{e}"),
    st.integers(0, 9).map(lambda e: f"E+{e}"),
)
parts = st.tuples(numbers, suffixes)
literals = parts.map("".join)


def exact(amount: Quantity) -> Fraction:
    """Through the text alone, so that the oracle shares nothing with the arithmetic."""
    text = str(amount * 1)
    number = text[: len(text) - len(text.lstrip("+-0123456789."))]
    return Fraction(number) * multiplier(text[len(number) :])


def in_text_range(amount: Fraction) -> bool:
    """No power beyond the largest suffix, where text changes family."""
    return abs(amount) < 10**21


@given(parts)
def test_parsing_rounds_to_nano_and_caps_binary(literal: tuple[str, str]) -> None:
    number, suffix = literal
    assert exact(Quantity.parse(number + suffix)) == expected_amount(number, suffix)


@given(parts.filter(lambda p: in_text_range(expected_amount(*p))))
def test_canonical_text(literal: tuple[str, str]) -> None:
    amount = Quantity.parse("".join(literal))
    # A product forgets the text as written, which Kubernetes keeps in some cases.
    assert str(amount * 1) == expected_text(expected_amount(*literal), amount.format)


@given(literals)
def test_text_reads_back_as_the_same_amount(literal: str) -> None:
    amount = Quantity.parse(literal)
    assert Quantity.parse(str(amount)) == amount
    assert str(Quantity.parse(str(amount))) == str(amount)


@given(parts)
def test_integer_views_round_away_from_zero(literal: tuple[str, str]) -> None:
    amount, whole = Quantity.parse("".join(literal)), expected_amount(*literal)
    for scale in range(-9, 10):
        units = away_from_zero(whole / Fraction(10) ** scale)
        assert amount.scaled_value(scale) == max(min(units, MAX), -MAX)
    assert amount.value() == amount.scaled_value(0)
    assert amount.milli_value() == amount.scaled_value(-3)


@given(literals, literals, st.integers(-(10**6), 10**6))
def test_arithmetic_is_exact(left: str, right: str, factor: int) -> None:
    a, b = Quantity.parse(left), Quantity.parse(right)
    assert exact(a + b) == exact(a) + exact(b)
    assert exact(a - b) == exact(a) - exact(b)
    assert exact(a * factor) == exact(factor * a) == exact(a) * factor
    assert exact(-a) == -exact(a)


@given(literals, literals)
def test_order_is_by_amount(left: str, right: str) -> None:
    a, b = Quantity.parse(left), Quantity.parse(right)
    x, y = exact(a), exact(b)
    assert (a < b, a <= b, a == b, a >= b, a > b) == (x < y, x <= y, x == y, x >= y, x > y)
    assert a.compare(b) == (x > y) - (x < y)
    assert a.sign() == (x > 0) - (x < 0)
    assert a.is_zero() == (x == 0)


@given(st.integers(-(10**12), 10**12), st.integers(0, 12), st.sampled_from(list(Format)))
def test_equal_amounts_hash_alike(number: int, zeros: int, format: Format) -> None:
    a = Quantity.from_value(number * 10**zeros)
    b = Quantity.from_scaled(number, zeros, format)
    assert a == b
    assert hash(a) == hash(b)


@given(literals)
def test_float_is_the_nearest(literal: str) -> None:
    amount = Quantity.parse(literal)
    assert float(amount) == float(exact(amount))


@pytest.mark.parametrize(
    ("left", "right", "total"),
    [
        pytest.param("1Gi", "1G", "2073741824", id="left-format-wins"),
        pytest.param("1G", "1Gi", "2073741824", id="left-format-wins-decimal"),
        pytest.param("2Ki", "2048", "4Ki", id="binary-left"),
        pytest.param("2048", "2Ki", "4096", id="decimal-left"),
        pytest.param("0", "2Ki", "2Ki", id="zero-has-no-say"),
        pytest.param("0Ki", "4096", "4096", id="binary-zero-has-no-say"),
        pytest.param("1e3", "1k", "2e3", id="exponent-left"),
        pytest.param("100m", "900m", "1", id="milli-to-whole"),
    ],
)
def test_sum_keeps_the_format_of_the_left(left: str, right: str, total: str) -> None:
    assert str(Quantity.parse(left) + Quantity.parse(right)) == total


@pytest.mark.parametrize(
    ("left", "right", "rest"),
    [
        pytest.param("0", "1Ki", "-1Ki", id="zero-has-no-say"),
        pytest.param("4Gi", "1Gi", "3Gi", id="bytes"),
        pytest.param("1", "1", "0", id="nothing-left"),
        pytest.param("1", "250m", "750m", id="milli"),
    ],
)
def test_difference_keeps_the_format_of_the_left(left: str, right: str, rest: str) -> None:
    assert str(Quantity.parse(left) - Quantity.parse(right)) == rest


def test_zero_has_any_sign() -> None:
    assert Quantity.parse("-0") == ZERO == Quantity.parse("0Ki") == -ZERO


class TestAbsurdExponents:
    """A hostile literal costs no more than any other."""

    huge = Quantity.parse("1e2000000000")
    one = Quantity.parse("1")

    def test_order(self) -> None:
        assert self.one < self.huge
        assert -self.huge < -self.one < self.huge
        assert self.huge == Quantity.parse("10e1999999999")
        assert hash(self.huge) == hash(Quantity.parse("10e1999999999"))

    def test_the_smaller_is_lost_in_a_sum(self) -> None:
        assert self.huge + self.one == self.huge
        assert self.one - self.huge == -self.huge

    def test_float_is_infinite(self) -> None:
        assert float(self.huge) == float("inf")
        assert float(-self.huge) == float("-inf")

    def test_far_below_nano_is_one_nano(self) -> None:
        assert Quantity.parse("1e-2000000000") == Quantity.parse("1n")
        assert Quantity.parse("-1e-2000000000") == Quantity.parse("-1n")
