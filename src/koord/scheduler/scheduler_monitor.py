"""Report pods whose scheduling attempt takes too long."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from koord.telemetry.clock import Clock
from koord.values import duration


class SchedulerMonitorSettings(msgspec.Struct, frozen=True, kw_only=True):
    period_s: float = 10.0
    timeout_s: float = 30.0
    drop_unhandled_s: float = 5.0


class SchedulingTimeout(msgspec.Struct, frozen=True, kw_only=True):
    pod: str  # namespace/name
    uid: str
    profile: str
    attempts: int
    took_s: float
    timeout_s: float

    def __str__(self) -> str:
        took, limit = (duration.text(duration.from_seconds(s)) for s in (self.took_s, self.timeout_s))
        whose = f"scheduling pod {self.pod}({self.uid})"
        return f"!!!CRITICAL TIMEOUT!!! {whose} took longer ({took}) than the timeout {limit}"


class _WatchedAttempt(msgspec.Struct):
    pod: str
    profile: str
    attempts: int
    dequeued: float
    started: float | None = None


class SchedulerMonitor:
    """Watch each pod from leaving the queue until it is bound or rejected. Times are seconds of one monotonic clock."""

    def __init__(
        self,
        tell: Callable[[SchedulingTimeout], None],
        settings: SchedulerMonitorSettings = SchedulerMonitorSettings(),  # noqa: B008 - frozen
    ) -> None:
        self.settings = settings
        self._report = tell
        self._watched: dict[str, _WatchedAttempt] = {}

    def dequeued(self, uid: str, pod: str, profile: str, attempts: int, now: float, *, ending: bool = False) -> None:
        """Start watching a pod; `ending` pods are being deleted and are not watched."""
        if ending:
            self._watched.pop(uid, None)
        else:
            self._watched[uid] = _WatchedAttempt(pod, profile, attempts, now)

    def started(self, uid: str, now: float) -> None:
        found = self._watched.get(uid)
        if found is not None:
            found.started = now

    def completed(self, uid: str, now: float) -> None:
        """Stop watching a bound or rejected pod, and report it if it took too long even when no check came in time."""
        found = self._watched.pop(uid, None)
        if found is not None:
            self._report_if_late(uid, found, now)

    def check(self, now: float) -> None:
        """Report every late pod, at each check. Pods that were dequeued but never tried are dropped."""
        for uid, found in list(self._watched.items()):
            if found.started is not None:
                self._report_if_late(uid, found, now)
            elif now - found.dequeued > self.settings.drop_unhandled_s:
                del self._watched[uid]

    async def run(self, clock: Clock) -> None:
        """Check once a period until cancelled."""
        while True:
            await clock.sleep(self.settings.period_s)
            self.check(clock.monotonic())

    def __len__(self) -> int:
        return len(self._watched)

    def _report_if_late(self, uid: str, found: _WatchedAttempt, now: float) -> None:
        if found.started is None or now - found.started <= self.settings.timeout_s:
            return
        timeout = SchedulingTimeout(
            pod=found.pod,
            uid=uid,
            profile=found.profile,
            attempts=found.attempts,
            took_s=now - found.started,
            timeout_s=self.settings.timeout_s,
        )
        self._report(timeout)
