"""This module limits the log lines of a repeating failure and counts those that were suppressed."""

from __future__ import annotations

import logging

from koord.kube.ratelimit import TokenBucket
from koord.telemetry.clock import Clock


class QuietLog:
    """RateLimitedLog writes at most `burst` lines at once and one more each `every_s`; the next line says how many
    were suppressed.
    """

    def __init__(self, logger: logging.Logger, clock: Clock, every_s: float = 30.0, burst: int = 5) -> None:
        self._logger = logger
        self._bucket = TokenBucket(clock, 1 / every_s, burst)
        self._left_out = 0

    def warning(self, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        self._write(logging.WARNING, message, args, exc_info)

    def error(self, message: str, *args: object, exc_info: BaseException | None = None) -> None:
        self._write(logging.ERROR, message, args, exc_info)

    def _write(self, level: int, message: str, args: tuple[object, ...], exc_info: BaseException | None) -> None:
        if not self._bucket.allow():
            self._left_out += 1
            return
        if self._left_out:
            message += f" ({self._left_out} more lines like this were left out)"
            self._left_out = 0
        self._logger.log(
            level, message, *args, exc_info=exc_info, stacklevel=3
        )  # named after whoever had something to say
