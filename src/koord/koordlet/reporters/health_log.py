"""Log whether a reporter succeeds when that changes, and not each time."""

from __future__ import annotations

import logging


class HealthLog:
    """The health of one reporter; `problem` is "" while it works."""

    def __init__(self, log: logging.Logger, good: str, bad: str) -> None:
        self._log = log
        self._good = good
        self._bad = bad
        self._known: bool | None = None
        self.problem = ""

    def works(self) -> None:
        """Record a success; log it when the last attempt failed."""
        if self._known is not True:
            self._log.info("%s", self._good)
        self._known, self.problem = True, ""

    def fails(self, why: str) -> None:
        """Record a failure; log it when the last attempt succeeded."""
        if self._known is not False:
            self._log.warning("%s: %s", self._bad, why)
        self._known, self.problem = False, why
