"""This module is a queue of keys (a key waits at most once, is worked on by one worker at a time, and is never lost),
and the workers that take keys from it and call a reconciler for each.

A key added while it is being worked on runs once more after `done`. Order is first in, first out; delayed
keys that fall due together keep the order in which they were added. One event loop owns a queue; there are
no locks.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from koord.kube.rate_limit import DefaultControllerRateLimiter, RateLimitedLog, RateLimiter
from koord.telemetry.clock import Clock

K = TypeVar("K", bound=Hashable)

# A loop may fire a timer early by its clock's resolution; a key that close to its time is due.
_SLACK_S = 1e-6


class QueueCounts(msgspec.Struct, kw_only=True):
    """QueueCounts says what a queue did so far, for whoever exposes metrics."""

    adds: int = 0  # keys that entered the queue, duplicates left out
    retries: int = 0  # add_rate_limited calls
    taken: int = 0
    finished: int = 0
    waited_s: float = 0.0  # sum of the time between entering the queue and being taken
    longest_wait_s: float = 0.0
    worked_s: float = 0.0  # sum of the time between taken and done


class WorkQueue(Generic[K]):
    def __init__(self, clock: Clock, *, name: str = "", limiter: RateLimiter[K] | None = None) -> None:
        self.name = name
        self.clock = clock
        self.counts = QueueCounts()
        self._limiter: RateLimiter[K] = DefaultControllerRateLimiter[K](clock) if limiter is None else limiter
        self._ready: deque[K] = deque()
        self._queued_since: dict[K, float] = {}  # wanted, with the time it was first wanted
        self._working_since: dict[K, float] = {}  # taken, with the time it was taken
        self._delayed_heap: list[tuple[float, int, K]] = []
        self._due_at: dict[K, float] = {}  # the heap entry that counts; others of the same key are stale
        self._sequence = 0
        self._timer: asyncio.TimerHandle | None = None
        self._waiting_getters: deque[asyncio.Future[None]] = deque()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    def add(self, key: K) -> None:
        if self._closed or key in self._queued_since:
            return
        self.counts.adds += 1
        self._queued_since[key] = self.clock.monotonic()
        self._idle.clear()
        if key not in self._working_since:
            self._ready.append(key)
            self._wake_one()

    def add_after(self, key: K, seconds: float) -> None:
        """Add a key when `seconds` have passed. Asked twice, the earlier time counts."""
        if self._closed:
            return
        if seconds <= 0:
            self.add(key)
            return
        due = self.clock.monotonic() + seconds
        known = self._due_at.get(key)
        if known is not None and known <= due:
            return
        self._due_at[key] = due
        self._sequence += 1
        heapq.heappush(self._delayed_heap, (due, self._sequence, key))
        if self._delayed_heap[0][2] == key:
            self._arm_timer()

    def add_rate_limited(self, key: K) -> None:
        if self._closed:
            return
        self.counts.retries += 1
        self.add_after(key, self._limiter.delay(key))

    def forget(self, key: K) -> None:
        """Reset the back-off of a key that succeeded."""
        self._limiter.forget(key)

    def retries(self, key: K) -> int:
        return self._limiter.retries(key)

    async def get(self) -> K | None:
        """Return the next key, to be given back with `done`; None when the queue is shut down and empty."""
        while not self._ready:
            if self._closed:
                return None
            taker = asyncio.get_running_loop().create_future()
            self._waiting_getters.append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                # The wake-up may have been given to this taker already: hand it on, or a key would wait for nobody.
                if taker.done() and not taker.cancelled():
                    self._wake_one()
                elif taker in self._waiting_getters:
                    self._waiting_getters.remove(taker)
                raise
        key = self._ready.popleft()
        now = self.clock.monotonic()
        waited = now - self._queued_since.pop(key)
        self._working_since[key] = now
        self.counts.taken += 1
        self.counts.waited_s += waited
        self.counts.longest_wait_s = max(self.counts.longest_wait_s, waited)
        return key

    def done(self, key: K) -> None:
        """Give back a key that was worked on, whatever came of it."""
        started = self._working_since.pop(key, None)
        if started is None:
            raise KeyError(f"queue {self.name!r}: {key!r} was given back but is not being worked on")
        self.counts.finished += 1
        self.counts.worked_s += self.clock.monotonic() - started
        if key in self._queued_since:
            self._ready.append(key)
            self._wake_one()
        elif not self._queued_since and not self._working_since:
            self._idle.set()

    def shutdown(self, *, drain: bool = True) -> None:
        """Accept no more keys. With `drain` the ones already queued are still handed out; without, they are dropped."""
        self._closed = True
        self._delayed_heap.clear()
        self._due_at.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not drain:
            self._ready.clear()
            self._queued_since.clear()
            if not self._working_since:
                self._idle.set()
        takers, self._waiting_getters = self._waiting_getters, deque()
        for taker in takers:
            if not taker.done():
                taker.set_result(None)

    async def wait_idle(self) -> None:
        """Wait until nothing is queued or being worked on; delayed keys do not count."""
        await self._idle.wait()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def depth(self) -> int:
        return len(self._ready)

    @property
    def delayed(self) -> int:
        return len(self._due_at)

    @property
    def working(self) -> int:
        return len(self._working_since)

    def _wake_one(self) -> None:
        while self._waiting_getters:
            taker = self._waiting_getters.popleft()
            if not taker.done():
                taker.set_result(None)
                return

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._delayed_heap:
            wait = max(0.0, self._delayed_heap[0][0] - self.clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait, self._release_due)

    def _release_due(self) -> None:
        horizon = self.clock.monotonic() + _SLACK_S
        while self._delayed_heap and self._delayed_heap[0][0] <= horizon:
            due, _, key = heapq.heappop(self._delayed_heap)
            if self._due_at.get(key) == due:
                del self._due_at[key]
                self.add(key)
        self._timer = None
        self._arm_timer()


_LOG = logging.getLogger(__name__)


class Done(msgspec.Struct, frozen=True):
    """Done means that there is nothing left to do until something changes."""


class RequeueAfter(msgspec.Struct, frozen=True):
    """RequeueAfter asks to reconcile again after this long. It is not a failure: the key's back-off is reset."""

    after_s: float


class Requeue(msgspec.Struct, frozen=True):
    """Requeue asks to reconcile again with the key's rate-limited back-off."""

    why: str = ""


ReconcileResult = Done | RequeueAfter | Requeue


class ControllerCounts(msgspec.Struct, kw_only=True):
    done: int = 0
    requeued_after: int = 0
    requeued: int = 0
    failed: int = 0


class Controller(Generic[K]):
    """Controller reconciles keys until its queue is shut down and empty; cancelling `run` stops at once."""

    def __init__(
        self, name: str, queue: WorkQueue[K], reconcile: Callable[[K], Awaitable[ReconcileResult]], *, workers: int = 1
    ) -> None:
        if workers < 1:
            raise ValueError(f"controller {name}: needs at least one worker, got {workers}")
        self.name = name
        self.queue = queue
        self.counts = ControllerCounts()
        self._reconcile = reconcile
        self._workers = workers
        self._limited_log = RateLimitedLog(_LOG, queue.clock, every_s=10.0, burst=10)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self.name}-{number}")

    async def _work(self) -> None:
        while (key := await self.queue.get()) is not None:
            try:
                await self._reconcile_key(key)
            finally:
                self.queue.done(key)

    async def _reconcile_key(self, key: K) -> None:
        try:
            outcome = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001  one bad key must not stop the others; it is logged, counted and retried
            self.counts.failed += 1
            self._limited_log.error(
                "%s: reconciling %s failed (failure %d in a row)",
                self.name,
                key,
                self.queue.retries(key) + 1,
                exc_info=error,
            )
            self.queue.add_rate_limited(key)
            return
        match outcome:
            case Done():
                self.counts.done += 1
                self.queue.forget(key)
            case RequeueAfter(after_s):
                self.counts.requeued_after += 1
                self.queue.forget(key)
                self.queue.add_after(key, after_s)
            case Requeue():
                self.counts.requeued += 1
                self.queue.add_rate_limited(key)
