"""Whether a reporter gets through, told to the log when that changes and not each time."""

from __future__ import annotations

import logging


class Standing:
    def __init__(self, log: logging.Logger, good: str, bad: str) -> None:
        self._log = log
        self._good = good
        self._bad = bad
        self._known: bool | None = None
        self.problem = ""

    def works(self) -> None:
        if self._known is not True:
            self._log.info("%s", self._good)
        self._known, self.problem = True, ""

    def fails(self, why: str) -> None:
        if self._known is not False:
            self._log.warning("%s: %s", self._bad, why)
        self._known, self.problem = False, why
