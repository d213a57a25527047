"""Messages are quoted as Go quotes them, by examples taken from Go."""

from __future__ import annotations

import pytest

from koord.values.go_format import in_json, integer_refusal, parse_decimal_int, quoted, quoted_bytes


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain", '"plain"', id="plain"),
        pytest.param('a"b\\c', '"a\\"b\\\\c"', id="quote-and-backslash"),
        pytest.param("\a\b\f\n\r\t\v", '"\\a\\b\\f\\n\\r\\t\\v"', id="named-controls"),
        pytest.param("\x00\x1f\x7f", '"\\x00\\x1f\\x7f"', id="other-controls"),
        pytest.param("\u0080\u00a0", '"\\u0080\\u00a0"', id="invisible"),
        pytest.param("é世", '"é世"', id="letters"),
        pytest.param("\U000e0001", '"\\U000e0001"', id="beyond-the-first-plane"),
    ],
)
def test_quoted(text: str, shown: str) -> None:
    assert quoted(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("plain ~\x7f", '"plain ~\x7f"', id="ascii"),
        pytest.param('"\\', '"\\"\\\\"', id="quote-and-backslash"),
        pytest.param("é\n\x80", '"\\xc3\\xa9\\x0a\\xc2\\x80"', id="bytes"),
    ],
)
def test_quoted_bytes(text: str, shown: str) -> None:
    assert quoted_bytes(text) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        pytest.param(None, "null", id="nil"),
        pytest.param([], "[]", id="empty"),
        pytest.param(["a", "é"], '["a","é"]', id="list"),
        pytest.param("<a&b>", '"\\u003ca\\u0026b\\u003e"', id="html"),
    ],
)
def test_in_json(value: list[str] | str | None, shown: str) -> None:
    assert in_json(value) == shown


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("+5", 5),
        ("-007", -7),
        (str(2**63 - 1), 2**63 - 1),
        (str(-(2**63)), -(2**63)),
        (str(2**63), None),
        (str(-(2**63) - 1), None),
        ("9" * 100_000, None),
        ("1_0", None),
        (" 1", None),
        ("", None),
        ("\u0661", None),
    ],
    ids=lambda value: repr(value)[:24],
)
def test_integer(text: str, value: int | None) -> None:
    assert parse_decimal_int(text) == value


def test_why_text_is_no_integer() -> None:
    assert integer_refusal("x") == 'strconv.Atoi: parsing "x": invalid syntax'
    assert integer_refusal(str(2**63)) == 'strconv.Atoi: parsing "9223372036854775808": value out of range'
