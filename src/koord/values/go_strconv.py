"""This module reads numbers and booleans exactly as Go's strconv does; what Go refuses is None."""

from __future__ import annotations

import re

_DECIMAL = re.compile(r"[+-]?[0-9]+", re.ASCII)
_ANY_BASE = re.compile(
    r"([+-]?)(?:0[xX]((?:_?[0-9a-fA-F])+)|0[bB]((?:_?[01])+)|0[oO]((?:_?[0-7])+)|0((?:_?[0-7])+)|(0|[1-9](?:_?[0-9])*))",
    re.ASCII,
)
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_MAX_DIGITS = 256  # more are out of every range, whatever they are
_OUT_OF_RANGE = 1 << 64
_BOOLS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}


def parse_decimal_int(text: str, bits: int = 64) -> int | None:
    """Parse as ParseInt with base 10."""
    return _within(int(text), bits) if _DECIMAL.fullmatch(text) else None


def parse_any_base_int(text: str, bits: int = 64) -> int | None:
    """Parse as ParseInt with base 0."""
    value = any_base_int(text)
    return None if value is None else _within(value, bits)


def any_base_int(text: str) -> int | None:
    """Return the number in whatever range: 0x, 0b, 0o and a leading 0 (octal) are understood, underscores between
    digits too.
    """
    found = _ANY_BASE.fullmatch(text)
    if found is None:
        return None
    sign, *spelled = found.groups()
    base, digits = next((b, d) for b, d in zip((16, 2, 8, 8, 10), spelled) if d is not None)
    value = int(digits.replace("_", ""), base) if len(digits) <= _MAX_DIGITS else _OUT_OF_RANGE
    return -value if sign == "-" else value


def parse_finite_float(text: str) -> float | None:
    """Parse as ParseFloat in decimal notation; infinities and NaN are of no use to any reader here and count as
    unreadable.
    """
    return float(text) if _FLOAT.fullmatch(text) else None


def parse_bool(text: str) -> bool | None:
    """Parse as ParseBool."""
    return _BOOLS.get(text)


def _within(value: int, bits: int) -> int | None:
    bound = 1 << (bits - 1)
    return value if -bound <= value < bound else None
