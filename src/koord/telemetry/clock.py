"""One clock for the whole process, in wall time or in virtual time.

Code asks a Clock for the time and waits with `await clock.sleep(...)` (or plain asyncio timers, which
follow the loop). Under `VirtualLoop` the loop's clock jumps to the next timer when nothing is runnable,
so a day of cluster life costs only the work done in it, and the same events happen in the same order
every time.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

# A fixed, readable start for virtual runs: two runs of one seed must not differ by their start date.
VIRTUAL_EPOCH = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
# Linux has a clock that counts suspension too; elsewhere the monotonic one is the best there is.
_UNSTOPPED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def time(self) -> float:
        """Return seconds since the Unix epoch."""

    def monotonic(self) -> float:
        """Return seconds that never go backwards; only differences are meaningful."""

    async def sleep(self, seconds: float) -> None: ...


def now(clock: Clock) -> datetime:
    return datetime.fromtimestamp(clock.time(), UTC)


class WallClock:
    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        """Return the seconds since boot, those of a suspended machine among them: a lease runs out while it sleeps."""
        return time.clock_gettime(_UNSTOPPED)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class LoopClock:
    """Follows the running loop: under a VirtualLoop its time is virtual, epoch + loop time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch: float = VIRTUAL_EPOCH) -> None:
        self._loop = loop
        self._epoch = epoch

    def time(self) -> float:
        return self._epoch + self._loop.time()

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock for tests of synchronous code: time moves only when told to."""

    def __init__(self, start: float = VIRTUAL_EPOCH) -> None:
        self._now = start

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        self._now += seconds
        await asyncio.sleep(0)


class _JumpingSelector(selectors.DefaultSelector):
    """Answers `select(timeout)` by moving virtual time instead of waiting, unless a thread still owes an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.virtual_now = 0.0
        self.real_work = 0  # executor calls in flight: they finish in real time, so virtual time must wait for them

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:  # nothing scheduled at all: only the outside world can wake us
            return super().select(None)
        if self.real_work:
            return super().select(0.001)
        if timeout > 0:
            self.virtual_now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as nothing is runnable."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.virtual_now

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future = super().run_in_executor(executor, func, *args)
        self._jumping.real_work += 1
        future.add_done_callback(self._executor_done)
        return future

    def _executor_done(self, _: asyncio.Future[Any]) -> None:
        self._jumping.real_work -= 1


def run_virtual(main: Callable[[LoopClock], Coroutine[Any, Any, T]], epoch: float = VIRTUAL_EPOCH) -> T:
    """Run `main(clock)` to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main(LoopClock(runner.get_loop(), epoch)))
