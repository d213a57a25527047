"""Timestamps are parsed, refused and formatted as Go does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord.values import timestamp
from koord.values.timestamp import TimestampError

SECONDS = "2006-01-02T15:04:05Z07:00"
MICRO = "2006-01-02T15:04:05.000000Z07:00"

zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=zones)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("2024-01-02T03:04:05Z", "2024-01-02T03:04:05Z", id="plain"),
        pytest.param("2024-01-02T03:04:05.999999Z", "2024-01-02T03:04:05Z", id="fraction-is-dropped"),
        pytest.param("2024-01-02T03:04:05.1234567891Z", "2024-01-02T03:04:05Z", id="long-fraction"),
        pytest.param("2024-01-02T03:04:05,5Z", "2024-01-02T03:04:05Z", id="comma"),
        pytest.param("2024-01-02T03:04:05+02:00", "2024-01-02T01:04:05Z", id="east"),
        pytest.param("2024-01-02T03:04:05-11:30", "2024-01-02T14:34:05Z", id="west"),
        pytest.param("2024-01-03T01:00:00+24:60", "2024-01-02T00:00:00Z", id="farthest-zone-that-Go-allows"),
        pytest.param("2024-01-02T3:04:05Z", "2024-01-02T03:04:05Z", id="hour-of-one-digit"),
        pytest.param("2024-02-29T00:00:00Z", "2024-02-29T00:00:00Z", id="leap-day"),
        pytest.param("0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z", id="first-year-keeps-its-zeros"),
    ],
)
def test_time(text: str, shown: str) -> None:
    assert timestamp.text(timestamp.parse(text)) == shown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", f'parsing time "" as "{SECONDS}": cannot parse "" as "2006"'),
        ("x", f'parsing time "x" as "{SECONDS}": cannot parse "x" as "2006"'),
        ("2024-13-02T03:04:05Z", 'parsing time "2024-13-02T03:04:05Z": month out of range'),
        ("2023-02-29T03:04:05Z", 'parsing time "2023-02-29T03:04:05Z": day out of range'),
        ("2024-04-31T03:04:05Z", 'parsing time "2024-04-31T03:04:05Z": day out of range'),
        ("2024-01-00T03:04:05Z", 'parsing time "2024-01-00T03:04:05Z": day out of range'),
        ("2024-01-02T25:04:00Z", 'parsing time "2024-01-02T25:04:00Z": hour out of range'),
        ("2024-01-02T03:60:00Z", 'parsing time "2024-01-02T03:60:00Z": minute out of range'),
        ("2024-01-02T03:04:60Z", 'parsing time "2024-01-02T03:04:60Z": second out of range'),
        ("2024-01-02T03:04:05+25:00", 'parsing time "2024-01-02T03:04:05+25:00": time zone offset hour out of range'),
        ("2024-01-02T03:04:05+02:61", 'parsing time "2024-01-02T03:04:05+02:61": time zone offset minute out of range'),
        (
            "2024-01-02 03:04:05Z",
            f'parsing time "2024-01-02 03:04:05Z" as "{SECONDS}": cannot parse " 03:04:05Z" as "T"',
        ),
        ("2024-01-02T03:04:05", f'parsing time "2024-01-02T03:04:05" as "{SECONDS}": cannot parse "" as "Z07:00"'),
        ("2024-01-02T03:04:05z", f'parsing time "2024-01-02T03:04:05z" as "{SECONDS}": cannot parse "z" as "Z07:00"'),
        ("2024-01-02T03:04:05ZZ", 'parsing time "2024-01-02T03:04:05ZZ": extra text: "Z"'),
    ],
)
def test_malformed_time_is_refused_in_gos_words(text: str, message: str) -> None:
    with pytest.raises(TimestampError) as refusal:
        timestamp.parse(text)
    assert str(refusal.value) == message


@pytest.mark.parametrize("text", ["0000-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00"])
def test_years_that_cannot_be_held_are_refused(text: str) -> None:
    with pytest.raises(TimestampError, match="year out of range"):
        timestamp.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "2024-01-02T03:04:05Z",
            f'parsing time "2024-01-02T03:04:05Z" as "{MICRO}": cannot parse "Z" as ".000000"',
            id="no-fraction",
        ),
        pytest.param(
            "2024-01-02T03:04:05.1234567Z",
            f'parsing time "2024-01-02T03:04:05.1234567Z" as "{MICRO}": cannot parse "7Z" as "Z07:00"',
            id="seven-digits",
        ),
    ],
)
def test_micro_time_has_exactly_six_digits(text: str, message: str) -> None:
    with pytest.raises(TimestampError) as refusal:
        timestamp.parse_micro(text)
    assert str(refusal.value) == message


@given(moments)
def test_micro_time_round_trip(moment: datetime) -> None:
    text = timestamp.micro_text(moment)
    assert len(text) == len("2006-01-02T15:04:05.000000Z")
    assert timestamp.parse_micro(text) == moment
    assert timestamp.parse(text) == moment


@given(moments)
def test_time_round_trip_loses_only_the_fraction(moment: datetime) -> None:
    read = timestamp.parse(timestamp.text(moment))
    assert read == moment.astimezone(UTC).replace(microsecond=0)
    assert read.tzinfo is UTC


def test_time_without_a_zone_is_no_point_in_time() -> None:
    with pytest.raises(ValueError, match="time zone"):
        timestamp.text(datetime(2024, 1, 2))
