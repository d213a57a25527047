"""Go durations as integers of nanoseconds: reads every text that Go reads, and writes the text that Go writes."""

from __future__ import annotations

import re
from functools import lru_cache

from koord.values.go_format import quoted_bytes

NANOSECOND = 1
MICROSECOND = 1_000
MILLISECOND = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

_LIMIT = 2**63
_UNITS = {
    "ns": NANOSECOND,
    "us": MICROSECOND,
    "\u00b5s": MICROSECOND,  # micro sign
    "\u03bcs": MICROSECOND,  # Greek letter mu
    "ms": MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}
_TERM = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)")


class DurationError(ValueError):
    """The text is not a duration. The message is Go's."""


@lru_cache(maxsize=4096)
def parse(text: str) -> int:
    """Parse a Go duration to nanoseconds. Raises DurationError."""
    rest = text[1:] if text[:1] in ("-", "+") else text
    if rest == "0":
        return 0
    if not rest:
        raise _invalid(text)
    total, at = 0, 0
    while at < len(rest):
        term = _TERM.match(rest, at)
        if term is None or not (term[1] or term[2]):
            raise _invalid(text)
        total += _term(term[1], term[2] or "", term[3], text)
        if total > _LIMIT:
            raise _invalid(text)
        at = term.end()
    if text[0] == "-":
        return -total
    if total == _LIMIT:  # only the negative end of int64 reaches this far
        raise _invalid(text)
    return total


def parse_seconds(text: str) -> float:
    return parse(text) / SECOND


def from_seconds(seconds: float) -> int:
    return round(seconds * SECOND)


def text(nanoseconds: int) -> str:
    """Format as Go prints it: "1h30m0s", "1.5s", "100µs", "0s"."""
    if nanoseconds == 0:
        return "0s"
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if rest < SECOND:
        unit, size = (
            ("ns", 1) if rest < MICROSECOND else ("µs", MICROSECOND) if rest < MILLISECOND else ("ms", MILLISECOND)
        )
        return f"{sign}{_decimal(rest, size)}{unit}"
    minutes, rest = divmod(rest, MINUTE)
    hours, minutes = divmod(minutes, 60)
    head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{head}{_decimal(rest, SECOND)}s"


def _term(whole: str, fraction: str, unit: str, text: str) -> int:
    if len(whole) > 1000:
        raise _invalid(text)
    count = int(whole or "0")
    if count > _LIMIT:
        raise _invalid(text)
    if not unit:
        raise DurationError(f"time: missing unit in duration {quoted_bytes(text)}")
    size = _UNITS.get(unit)
    if size is None:
        raise DurationError(f"time: unknown unit {quoted_bytes(unit)} in duration {quoted_bytes(text)}")
    if count > _LIMIT // size:
        raise _invalid(text)
    return count * size + _part(fraction, size)


def _part(fraction: str, size: int) -> int:
    """Return the fraction of a unit, in floating point from the digits that fit an int64, exactly as Go computes it."""
    digits, scale = 0, 1.0
    for digit in fraction:
        if digits > (_LIMIT - 1) // 10:
            break
        longer = digits * 10 + int(digit)
        if longer > _LIMIT:
            break
        digits = longer
        scale *= 10
    return int(digits * (size / scale))


def _decimal(count: int, size: int) -> str:
    whole, part = divmod(count, size)
    if not part:
        return str(whole)
    return f"{whole}.{part:0{len(str(size)) - 1}d}".rstrip("0")


def _invalid(text: str) -> DurationError:
    return DurationError(f"time: invalid duration {quoted_bytes(text)}")
