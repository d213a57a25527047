"""Kubernetes' "integer or percentage" fields: their value out of a total, and the rules they are checked by."""

from __future__ import annotations

import re

from koord.values.go_format import integer_refusal, parse_decimal_int, quoted
from koord.values.names import pattern_refusal

IntOrString = int | str

_PERCENT = "[0-9]+%"
_PERCENT_TEXT = re.compile(_PERCENT)


class IntOrStringError(ValueError):
    """The text is not a percentage. The message is Kubernetes'."""


def scaled_value(value: IntOrString, total: int, *, round_up: bool) -> int:
    """Return the integer itself, or the percentage of the total. Raises IntOrStringError."""
    if isinstance(value, int):
        return value
    percent = _percent(value)
    return -(-percent * total // 100) if round_up else percent * total // 100


def _percent(value: str) -> int:
    if not value.endswith("%"):
        raise IntOrStringError("invalid value for IntOrString: invalid type: string is not a percentage")
    digits = value[:-1]
    percent = parse_decimal_int(digits)
    if percent is None:
        raise IntOrStringError(
            f"invalid value for IntOrString: invalid value {quoted(value)}: {integer_refusal(digits)}"
        )
    return percent


def percent_refusals(text: str) -> list[str]:
    """Return why the text is no percentage such as "25%"."""
    if _PERCENT_TEXT.fullmatch(text):
        return []
    rule = "a valid percent string must be a numeric string followed by an ending '%'"
    return [pattern_refusal(rule, _PERCENT, "1%", "93%")]


def refusals(value: IntOrString) -> list[str]:
    """Return why the value is neither a count of at least zero nor a percentage."""
    if isinstance(value, int):
        return [] if value >= 0 else ["must be greater than or equal to 0"]
    return percent_refusals(value)


def over_100_percent_refusals(value: IntOrString) -> list[str]:
    """Return why a value that must be a share of the whole exceeds it; integers are not checked."""
    if isinstance(value, int) or not _PERCENT_TEXT.fullmatch(value) or len(value.lstrip("0")) <= 3:
        return []
    return [] if value.lstrip("0") == "100%" else ["must not be greater than 100%"]
