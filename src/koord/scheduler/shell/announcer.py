"""Report what happens to pods: events, conditions and metrics. It decides nothing.

Scheduled events are throttled: a binding must not wait behind the event about another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from koord.telemetry.clock import Clock

# Events wait until bindings pause, but not for ever: under endless load they are written at a low rate.
_LOOK_S = 0.2
_PATIENCE_S = 5.0
_TRICKLE = 20  # a look, so 100 a second
_FLOOD = 200  # a look when idle, as long as the recorder keeps up
KEPT = 20_000


class Announcer:
    """Delay events until bindings pause; under endless load let them through at a low rate."""
    def __init__(self, clock: Clock, busy: Callable[[], bool], unwritten: Callable[[], int]) -> None:
        self._clock = clock
        self._busy = busy
        self._unwritten = unwritten
        self._news: deque[Callable[[], None]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.dropped = 0

    def announce(self, news: Callable[[], None]) -> None:
        if len(self._news) >= KEPT:
            self._news.popleft()
            self.dropped += 1
        self._news.append(news)
        if self._task is None:
            self._task = asyncio.create_task(self._tell(), name="announcer")

    @property
    def untold(self) -> int:
        return len(self._news)

    async def stop(self) -> None:
        """Hand over the events that are left; the recorder knows how long it may still write."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        while self._news:
            self._news.popleft()()

    async def _tell(self) -> None:
        busy_since: float | None = None
        while self._news:
            now = self._clock.monotonic()
            if not self._busy():
                busy_since = None
                count = max(0, 2 * _FLOOD - self._unwritten())
            else:
                busy_since = now if busy_since is None else busy_since
                count = _TRICKLE if now - busy_since > _PATIENCE_S else 0
            for _ in range(min(count, len(self._news))):
                self._news.popleft()()
            await self._clock.sleep(_LOOK_S)
        self._task = None
