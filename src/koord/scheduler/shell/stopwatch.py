"""Time the extension points of one in ten attempts."""

from __future__ import annotations

from koord.scheduler.shell.meter import Meter
from koord.telemetry.clock import Clock

EVERY = 10


class Stopwatch:
    """Time the extension points of one attempt in ten, because timing costs as much as a quick decision.

    Call it with the name of the point that has just ended.
    """

    def __init__(self, meter: Meter, clock: Clock) -> None:
        self._meter = meter
        self._clock = clock
        self._count = 0
        self._profile = ""
        self._since = 0.0

    def runs(self, profile: str, now: float) -> bool:
        """Return whether this attempt is sampled; if it is, its time starts now."""
        self._count += 1
        if self._count % EVERY != 1:
            return False
        self._profile, self._since = profile, now
        return True

    def __call__(self, point: str) -> None:
        now = self._clock.monotonic()
        self._meter.point(self._profile, point, now - self._since)
        self._since = now
