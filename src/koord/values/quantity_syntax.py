"""The syntax of quantities: it parses a literal into digits, power of ten and format, and formats the
canonical literal.

It does no arithmetic; `koord.values.quantity` holds the number and decides when text is needed.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import NamedTuple

MAX_INT64 = 2**63 - 1
NANO = -9

# Text longer than this is an attack on the parser's time, not a number: Kubernetes itself has no limit here.
_MAX_DIGITS = 1000
_INT32 = 2**31

_FORMAT_WRONG = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"  # as Kubernetes says
)
_NUMERIC_WRONG = "unable to parse numeric part of quantity"
_SUFFIX_WRONG = "unable to parse quantity's suffix"


class QuantityError(ValueError):
    """The text is not a quantity. The message is the one an API server gives."""


class Format(StrEnum):
    """The family of suffixes that a quantity is written with. Values keep the family they were parsed in."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


class QuantityLiteral(NamedTuple):
    """A parsed literal: unscaled x 10^scale. `text` is set when the literal is shown as it was written."""

    unscaled: int
    scale: int
    format: Format
    text: str | None


# The published expression asks for a digit; the code behind it does not, so "", "m" and "." (all zero) must pass too.
_SHAPE = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)")
_EXPONENT = re.compile(r"[eE]([-+]?[0-9]+)")
_DECIMAL_EXPONENT = {"": 0, "n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_EXPONENT = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL_EXPONENT.items()}
_BINARY_SUFFIX = ("", *_BINARY_EXPONENT)


def parse_literal(text: str) -> QuantityLiteral:
    """Parse a literal. Raises QuantityError."""
    shape = _SHAPE.fullmatch(text) if text else None
    if shape is None:
        raise QuantityError(_FORMAT_WRONG)
    sign, whole, fraction, suffix = shape.groups("")
    digits = (whole.lstrip("0") or "0") + fraction
    if len(digits) > _MAX_DIGITS:
        raise QuantityError(_NUMERIC_WRONG)
    unscaled = -int(digits) if sign == "-" else int(digits)
    bits = _BINARY_EXPONENT.get(suffix)
    if bits is not None:
        if not fraction and len(digits) + bits * 3 // 10 <= 14:
            kept = unscaled & 7 != 0  # 8 Ki and more may be a step towards the next suffix, so those are written anew
            return QuantityLiteral(unscaled << bits, 0, Format.BINARY_SI, text if kept else None)
        _need_digits(whole, fraction)
        return _binary(unscaled << bits, -len(fraction))
    exponent = _DECIMAL_EXPONENT.get(suffix)
    if exponent is not None:
        format = Format.DECIMAL_SI
    else:
        exponent, format = _power(suffix), Format.DECIMAL_EXPONENT
    scale = exponent - len(fraction)
    if len(digits) <= 18 and scale >= NANO:
        # Kubernetes shows such a literal unchanged ("1.234", "+5") when it looks canonical at a glance, even if it
        # is not; other programs compare these texts, so the same glance is taken here.
        kept = scale % 3 == 0 and not digits.endswith("000") and digits[0] != "0"
        return QuantityLiteral(unscaled, scale, format, text if kept else None)
    _need_digits(whole, fraction)
    unscaled, scale = _at_nano(unscaled, scale)
    return QuantityLiteral(unscaled, scale, format, None)


def _power(suffix: str) -> int:
    exponent = _EXPONENT.fullmatch(suffix)
    if exponent is None or len(suffix) > 24:
        raise QuantityError(_SUFFIX_WRONG)
    power = int(exponent[1])
    if not -_INT32 <= power < _INT32:  # Kubernetes wraps around here, and may then compute for minutes
        raise QuantityError(_SUFFIX_WRONG)
    return power


def _need_digits(whole: str, fraction: str) -> None:
    """Refuse a long literal without digits; in Kubernetes only short ones without digits are zero."""
    if not whole and not fraction:
        raise QuantityError(_NUMERIC_WRONG)


def _binary(unscaled: int, scale: int) -> QuantityLiteral:
    unscaled, scale = _at_nano(unscaled, scale)
    one = 10**-scale
    if abs(unscaled) > MAX_INT64 * one:
        return QuantityLiteral(MAX_INT64 if unscaled > 0 else -MAX_INT64, 0, Format.BINARY_SI, None)
    below_one = 0 < abs(unscaled) < one
    return QuantityLiteral(unscaled, scale, Format.DECIMAL_SI if below_one else Format.BINARY_SI, None)


def _at_nano(unscaled: int, scale: int) -> tuple[int, int]:
    """Round away from zero to nanos, so that a tiny request does not become nothing."""
    if scale >= NANO or unscaled == 0:
        return unscaled, scale if unscaled else 0
    excess = NANO - scale
    if excess > 2 * _MAX_DIGITS:
        return (1 if unscaled > 0 else -1), NANO
    return divide_away(unscaled, 10**excess), NANO


def divide_away(value: int, divisor: int) -> int:
    """Divide integers, rounded away from zero."""
    return -(-value // divisor) if value > 0 else value // divisor


def format_literal(unscaled: int, scale: int, format: Format) -> str:
    """Format the canonical literal: no fraction digits, the largest suffix that keeps it exact."""
    if unscaled == 0:
        return "0"
    if format is Format.BINARY_SI and (whole := _whole(unscaled, scale)) is not None and not -1024 < whole < 1024:
        power = ((whole & -whole).bit_length() - 1) // 10
        if power < len(_BINARY_SUFFIX):
            return f"{whole >> 10 * power}{_BINARY_SUFFIX[power]}"
    while unscaled % 1000 == 0:
        unscaled //= 1000
        scale += 3
    while unscaled % 10 == 0:
        unscaled //= 10
        scale += 1
    shift = scale % 3
    if shift:
        unscaled *= 10**shift
        scale -= shift
    suffix = _DECIMAL_SUFFIX.get(scale) if format is not Format.DECIMAL_EXPONENT else None
    if suffix is None:
        # Also what no suffix can say: Kubernetes drops the power there and writes 1000E as "1".
        suffix = f"e{scale}" if scale else ""
    return f"{unscaled}{suffix}"


def _whole(unscaled: int, scale: int) -> int | None:
    """Return the integer value, or None when there is a fraction or the number is beyond any binary suffix."""
    if scale >= 0:
        return unscaled * 10**scale if scale <= 30 else None
    whole, rest = divmod(unscaled, 10**-scale)
    return whole if rest == 0 else None
