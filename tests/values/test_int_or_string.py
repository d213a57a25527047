"""Integers and percentages of rollouts and budgets are scaled and validated."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.values import int_or_string
from koord.values.int_or_string import IntOrString, IntOrStringError

PERCENT_RULE = (
    "a valid percent string must be a numeric string followed by an ending '%' "
    "(e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"
)


@pytest.mark.parametrize(
    ("value", "total", "up", "down"),
    [
        pytest.param(5, 10, 5, 5, id="integer"),
        pytest.param(-5, 10, -5, -5, id="negative-integer"),
        pytest.param("25%", 10, 3, 2, id="percentage"),
        pytest.param("50%", 10, 5, 5, id="exact-percentage"),
        pytest.param("0%", 10, 0, 0, id="none"),
        pytest.param("1%", 1, 1, 0, id="least"),
        pytest.param("250%", 2, 5, 5, id="more-than-all"),
        pytest.param("-5%", 10, 0, -1, id="negative-percentage"),
        pytest.param("+5%", 10, 1, 0, id="signed-percentage"),
    ],
)
def test_scaled(value: IntOrString, total: int, up: int, down: int) -> None:
    assert int_or_string.scaled_value(value, total, round_up=True) == up
    assert int_or_string.scaled_value(value, total, round_up=False) == down


@given(st.integers(0, 400), st.integers(0, 10**6))
def test_scaled_is_the_rounded_share(percent: int, total: int) -> None:
    share = Fraction(percent * total, 100)
    assert int_or_string.scaled_value(f"{percent}%", total, round_up=True) == math.ceil(share)
    assert int_or_string.scaled_value(f"{percent}%", total, round_up=False) == math.floor(share)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abc", "invalid value for IntOrString: invalid type: string is not a percentage"),
        ("", "invalid value for IntOrString: invalid type: string is not a percentage"),
        ("5", "invalid value for IntOrString: invalid type: string is not a percentage"),
        (
            "abc%",
            'invalid value for IntOrString: invalid value "abc%": strconv.Atoi: parsing "abc": invalid syntax',
        ),
        ("%", 'invalid value for IntOrString: invalid value "%": strconv.Atoi: parsing "": invalid syntax'),
        ("5.5%", 'invalid value for IntOrString: invalid value "5.5%": strconv.Atoi: parsing "5.5": invalid syntax'),
        (
            "99999999999999999999%",
            'invalid value for IntOrString: invalid value "99999999999999999999%": '
            'strconv.Atoi: parsing "99999999999999999999": value out of range',
        ),
    ],
)
def test_text_that_is_no_percentage_is_refused(text: str, message: str) -> None:
    with pytest.raises(IntOrStringError) as refusal:
        int_or_string.scaled_value(text, 10, round_up=True)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("value", "reasons"),
    [
        pytest.param(0, [], id="zero"),
        pytest.param(-1, ["must be greater than or equal to 0"], id="negative"),
        pytest.param("10%", [], id="percentage"),
        pytest.param("-10%", [PERCENT_RULE], id="negative-percentage"),
        pytest.param("10", [PERCENT_RULE], id="text-without-sign"),
        pytest.param("10%\n", [PERCENT_RULE], id="newline"),
    ],
)
def test_validation(value: IntOrString, reasons: list[str]) -> None:
    assert int_or_string.refusals(value) == reasons


@pytest.mark.parametrize(
    ("value", "fits"),
    [(500, True), ("0%", True), ("100%", True), ("0100%", True), ("101%", False), ("1000%", False), ("abc", True)],
)
def test_share_of_the_whole(value: IntOrString, fits: bool) -> None:
    assert int_or_string.over_100_percent_refusals(value) == ([] if fits else ["must not be greater than 100%"])
