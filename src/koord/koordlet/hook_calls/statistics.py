"""The account of hooks: how often each was called, how long it took, and what went wrong last."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import msgspec

_KEPT = 512  # durations of each hook from which percentiles are taken

HookObserver = Callable[[str, str, bool, float], None]  # hook, stage, success, seconds


class HookAccount(msgspec.Struct):
    """The account of one hook. Times are in seconds since the epoch, durations in seconds."""

    calls: int = 0
    failures: int = 0
    last_applied_s: float | None = None
    last_failure_s: float | None = None
    last_failure: str = ""
    durations_s: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=_KEPT))

    def percentile_ms(self, percent: int) -> float | None:
        """Return the duration that this percentage of the last calls did not exceed; None without any."""
        if not self.durations_s:
            return None
        ordered = sorted(self.durations_s)
        return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)] * 1000


class HookStatistics:
    """The accounts of all hooks; `observe` is told of every call, for metrics."""

    def __init__(self, observe: HookObserver) -> None:
        self._observe = observe
        self._accounts: dict[str, HookAccount] = {}

    def account(self, hook: str) -> HookAccount:
        return self._accounts.setdefault(hook, HookAccount())

    def record_call(self, hook: str, stage: str, seconds: float, *, success: bool) -> None:
        account = self.account(hook)
        account.calls += 1
        account.durations_s.append(seconds)
        self._observe(hook, stage, success, seconds)

    def record_applied(self, hook: str, now_s: float) -> None:
        self.account(hook).last_applied_s = now_s

    def record_failure(self, hook: str, now_s: float, problem: str) -> None:
        account = self.account(hook)
        account.failures += 1
        account.last_failure_s, account.last_failure = now_s, problem
