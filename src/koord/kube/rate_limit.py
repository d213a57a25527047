"""This module computes delays before retries, exponential or jittered, and limits repeated log lines."""

from __future__ import annotations

import logging
from collections.abc import Hashable
from random import Random
from typing import Generic, Protocol, TypeVar

from koord.telemetry.clock import Clock
from koord.values.token_bucket import TokenBucket

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class RateLimiter(Protocol[K_contra]):
    """RateLimiter decides the delay of an item's retry and counts how often it was asked."""

    def delay(self, item: K_contra) -> float: ...

    def forget(self, item: K_contra) -> None: ...

    def retries(self, item: K_contra) -> int: ...


class ItemExponentialRateLimiter(Generic[K]):
    """ItemExponentialRateLimiter delays each item by 5 ms, 10 ms, 20 ms ... 1000 s, counted per item."""

    def __init__(self, first_s: float = 0.005, longest_s: float = 1000.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._failures: dict[K, int] = {}

    def delay(self, item: K) -> float:
        failures = self._failures.get(item, 0)
        self._failures[item] = failures + 1
        # Past 2**64 the product is far beyond any ceiling and would overflow a float in the end.
        return min(self._first_s * (1 << min(failures, 64)), self._longest_s)

    def forget(self, item: K) -> None:
        self._failures.pop(item, None)

    def retries(self, item: K) -> int:
        return self._failures.get(item, 0)


class DefaultControllerRateLimiter(Generic[K]):
    """DefaultControllerRateLimiter takes the longer of the item's delay and an overall 10 per second, burst 100."""

    def __init__(
        self,
        clock: Clock,
        first_s: float = 0.005,
        longest_s: float = 1000.0,
        per_second: float = 10.0,
        burst: int = 100,
    ) -> None:
        self._item = ItemExponentialRateLimiter[K](first_s, longest_s)
        self._clock = clock
        self._overall = TokenBucket(per_second, burst, clock.monotonic())

    def delay(self, item: K) -> float:
        return max(self._item.delay(item), self._overall.reserve(self._clock.monotonic()))

    def forget(self, item: K) -> None:
        self._item.forget(item)

    def retries(self, item: K) -> int:
        return self._item.retries(item)


class JitteredBackoff:
    """JitteredBackoff delays one thing that keeps failing: doubling up to a ceiling, each stretched by up to
    `jitter` of itself.

    A run of failures that stopped `reset_after_s` ago is forgotten, so an old outage does not slow a new one.
    """

    def __init__(
        self,
        clock: Clock,
        rng: Random,
        first_s: float = 0.8,
        longest_s: float = 30.0,
        jitter: float = 1.0,
        reset_after_s: float = 120.0,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._first_s = first_s
        self._longest_s = longest_s
        self._jitter = jitter
        self._reset_after_s = reset_after_s
        self._next_s = first_s
        self._asked_at = clock.monotonic()

    def next(self) -> float:
        now = self._clock.monotonic()
        if now - self._asked_at > self._reset_after_s:
            self._next_s = self._first_s
        self._asked_at = now
        delay, self._next_s = self._next_s, min(self._next_s * 2, self._longest_s)
        return jitter(delay, self._jitter, self._rng)

    def reset(self) -> None:
        self._next_s = self._first_s


def jitter(seconds: float, factor: float, rng: Random) -> float:
    """Return a random value between `seconds` and `seconds * (1 + factor)`."""
    return seconds * (1 + factor * rng.random())


class RateLimitedLog:
    """RateLimitedLog writes at most `burst` lines at once, one more each `every_s`, and counts those suppressed."""

    def __init__(self, logger: logging.Logger, clock: Clock, every_s: float = 30.0, burst: int = 5) -> None:
        self._logger = logger
        self._clock = clock
        self._bucket = TokenBucket(1 / every_s, burst, clock.monotonic())
        self._suppressed = 0

    def warning(self, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        self._write(logging.WARNING, message, args, exc_info)

    def error(self, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        self._write(logging.ERROR, message, args, exc_info)

    def _write(self, level: int, message: str, args: tuple[object, ...], exc_info: BaseException | None) -> None:
        if not self._bucket.allow(self._clock.monotonic()):
            self._suppressed += 1
            return
        if self._suppressed:
            message += f" ({self._suppressed} more lines like this were left out)"
            self._suppressed = 0
        self._logger.log(
            level, message, *args, exc_info=exc_info, stacklevel=3
        )  # named after whoever had something to say
