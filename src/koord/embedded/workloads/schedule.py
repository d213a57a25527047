"""Cron schedules: cron expressions, their macros, and "@every". Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from koord.values import duration

_SHORT = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = "@every "
# As many missed times are counted; more are only called many.
TOO_MANY = 100
_FIELDS = 5
_ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)  # parsing needs a moment to start from, whichever


class ScheduleError(ValueError):
    """Raised when the text is not a schedule, or its time zone does not exist."""


class Schedule:
    def __init__(self, text: str, time_zone: str | None = None) -> None:
        self._zone: tzinfo = _zone(time_zone)
        self._every: timedelta | None = None
        self._cron = ""
        if text.startswith(_EVERY):
            self._every = _interval(text[len(_EVERY) :])
            return
        fields = _SHORT.get(text.strip(), text).split()
        if len(fields) != _FIELDS:
            raise ScheduleError(f"expected exactly {_FIELDS} fields, found {len(fields)}: {text!r}")
        self._cron = " ".join("*" if field == "?" else field for field in fields)
        try:
            CronSim(self._cron, _ANY_TIME)
        except CronSimError as error:
            raise ScheduleError(f"{error}: {text!r}") from None

    def after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the scheduled times strictly after `moment`, as long as there are any."""
        if self._every is not None:
            at = moment.replace(microsecond=0)
            while True:
                at += self._every
                yield at
        for found in CronSim(self._cron, moment.astimezone(self._zone)):
            yield found.astimezone(UTC)

    def next(self, moment: datetime) -> datetime | None:
        return next(self.after(moment), None)

    def latest(self, since: datetime, now: datetime) -> datetime | None:
        """Return the last scheduled time in (since, now], or None."""
        if self._every is not None:
            count = (now - since) // self._every
            return since.replace(microsecond=0) + count * self._every if count > 0 else None
        # Backwards from now: a long sleep may have missed a million of them.
        backwards = CronSim(self._cron, (now + timedelta(minutes=1)).astimezone(self._zone), reverse=True)
        for found in backwards:
            at: datetime = found.astimezone(UTC)
            if at <= now:
                return at if at > since else None
        return None

    def many_missed(self, since: datetime, now: datetime) -> bool:
        return sum(at <= now for at in islice(self.after(since), TOO_MANY + 1)) > TOO_MANY


def _zone(name: str | None) -> tzinfo:
    if name is None:
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise ScheduleError(f"unknown time zone {name!r}: {error}") from None


def _interval(text: str) -> timedelta:
    try:
        whole = duration.parse(text) // duration.SECOND
    except duration.DurationError as error:
        raise ScheduleError(f"{error}: {text!r}") from None
    return timedelta(seconds=max(1, whole))
