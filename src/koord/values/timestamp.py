"""Timestamps as Kubernetes writes them: whole seconds for Time, exactly six decimals for MicroTime, always
UTC.

It parses what Go parses, with Go's messages for the rest. Telling the present time is left to the clock.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from koord.values.go_format import quoted_bytes

_SECONDS_LAYOUT = "2006-01-02T15:04:05Z07:00"
_MICRO_LAYOUT = "2006-01-02T15:04:05.000000Z07:00"

# (separator before the field, Go's name of the field, pattern, name in range errors, smallest, largest)
_FIELDS = (
    ("", "2006", re.compile(r"[0-9]{4}"), "year", 0, 9999),
    ("-", "01", re.compile(r"[0-9]{2}"), "month", 1, 12),
    ("-", "02", re.compile(r"[0-9]{2}"), "day", 0, 99),  # judged together with its month, after all fields are read
    ("T", "15", re.compile(r"[0-9]{1,2}"), "hour", 0, 23),
    (":", "04", re.compile(r"[0-9]{2}"), "minute", 0, 59),
    (":", "05", re.compile(r"[0-9]{2}"), "second", 0, 59),
)
_FRACTION = re.compile(r"[.,]([0-9]+)")
_MICRO_FRACTION = re.compile(r"[.,]([0-9]{6})")
_ZONE = re.compile(r"Z|([-+])([0-9]{2}):([0-9]{2})")


class TimestampError(ValueError):
    """The text is not a timestamp. The message is Go's."""


def text(moment: datetime) -> str:
    """Format as metav1.Time: the fraction of a second is dropped, not rounded."""
    return _utc(moment).isoformat(timespec="seconds") + "Z"


def micro_text(moment: datetime) -> str:
    """Format as metav1.MicroTime."""
    return _utc(moment).isoformat(timespec="microseconds") + "Z"


def unix_text(seconds: float) -> str:
    """Format seconds since 1970 as metav1.Time."""
    return text(datetime.fromtimestamp(seconds, UTC))


def unix_micro_text(seconds: float) -> str:
    """Format seconds since 1970 as metav1.MicroTime."""
    return micro_text(datetime.fromtimestamp(seconds, UTC))


def parse(text: str) -> datetime:
    """Parse a metav1.Time to UTC. A fraction is accepted and kept to the microsecond. Raises TimestampError."""
    return _read(text, _SECONDS_LAYOUT)


def parse_micro(text: str) -> datetime:
    """Parse a metav1.MicroTime to UTC: exactly six decimals. Raises TimestampError."""
    return _read(text, _MICRO_LAYOUT)


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} names no time zone, so it is no point in time")
    return moment.astimezone(UTC).replace(tzinfo=None)


def _read(text: str, layout: str) -> datetime:
    numbers, at = [], 0
    for separator, element, pattern, name, low, high in _FIELDS:
        if not text.startswith(separator, at):
            raise _unreadable(text, layout, at, separator)
        at += len(separator)
        match = pattern.match(text, at)
        if match is None:
            raise _unreadable(text, layout, at, element)
        number = int(match[0])
        if not low <= number <= high:
            raise _out_of_range(text, name)
        numbers.append(number)
        at = match.end()
    fraction = (_MICRO_FRACTION if layout is _MICRO_LAYOUT else _FRACTION).match(text, at)
    if fraction is not None:
        at = fraction.end()
    elif layout is _MICRO_LAYOUT:
        raise _unreadable(text, layout, at, ".000000")
    offset, at = _zone(text, layout, at)
    if at < len(text):
        raise TimestampError(f"parsing time {quoted_bytes(text)}: extra text: {quoted_bytes(text[at:])}")
    year, month, day, hour, minute, second = numbers
    micro = int(fraction[1][:6].ljust(6, "0")) if fraction else 0
    if not 1 <= day <= _days(year, month):
        raise _out_of_range(text, "day")
    try:
        return datetime(year, month, day, hour, minute, second, micro, UTC) - offset
    except (ValueError, OverflowError):
        raise _out_of_range(text, "year") from None  # Go goes on before year 1 and after 9999; datetime does not


def _zone(text: str, layout: str, at: int) -> tuple[timedelta, int]:
    zone = _ZONE.match(text, at)
    if zone is None:
        raise _unreadable(text, layout, at, "Z07:00")
    if zone[0] == "Z":
        return timedelta(0), zone.end()
    hours, minutes = int(zone[2]), int(zone[3])
    if minutes > 60:
        raise _out_of_range(text, "time zone offset minute")
    if hours > 24:
        raise _out_of_range(text, "time zone offset hour")
    offset = timedelta(hours=hours, minutes=minutes)
    return (offset if zone[1] == "+" else -offset), zone.end()


def _days(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def _unreadable(text: str, layout: str, at: int, element: str) -> TimestampError:
    return TimestampError(
        f"parsing time {quoted_bytes(text)} as {quoted_bytes(layout)}: "
        f"cannot parse {quoted_bytes(text[at:])} as {quoted_bytes(element)}"
    )


def _out_of_range(text: str, name: str) -> TimestampError:
    return TimestampError(f"parsing time {quoted_bytes(text)}: {name} out of range")
