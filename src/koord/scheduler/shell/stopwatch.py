"""Measures how long the points of some attempts take: one in ten, as measuring costs as much as a quick decision."""

from __future__ import annotations

from koord.scheduler.shell.meter import Meter
from koord.telemetry.clock import Clock

EVERY = 10


class Stopwatch:
    """Call it with the name of the point that is just over."""

    def __init__(self, meter: Meter, clock: Clock) -> None:
        self._meter = meter
        self._clock = clock
        self._count = 0
        self._profile = ""
        self._since = 0.0

    def runs(self, profile: str, now: float) -> bool:
        """Whether this attempt is one that is measured; it begins now."""
        self._count += 1
        if self._count % EVERY != 1:
            return False
        self._profile, self._since = profile, now
        return True

    def __call__(self, point: str) -> None:
        now = self._clock.monotonic()
        self._meter.point(self._profile, point, now - self._since)
        self._since = now
