"""Log a problem that is looked at every second only when it begins, changes or ends."""

from __future__ import annotations

import logging

_ANY = "any"


class ProblemLog:
    """One problem and its end, each logged once.

    `bad` begins the line of the problem; `good` is the line of its end, "" for none. With `begins_unknown` the first
    success is logged as well. `problem` is what failed last, "" while nothing fails.
    """

    __slots__ = ("_bad", "_good", "_kind", "_log", "problem")

    def __init__(self, log: logging.Logger, bad: str, good: str = "", *, begins_unknown: bool = False) -> None:
        self._log = log
        self._bad = bad
        self._good = good
        self._kind: str | None = None if begins_unknown else ""  # what was logged last; "" is a success
        self.problem = ""

    def works(self) -> None:
        """Record a success; log it after a failure."""
        if self._kind != "" and self._good:
            self._log.info("%s", self._good)
        self._kind, self.problem = "", ""

    def fails(self, why: object, kind: str = _ANY) -> None:
        """Record a failure; log it after a success, and when it is of another kind than the last one."""
        self.problem = str(why)
        if kind != self._kind:
            self._log.warning("%s: %s", self._bad, why)
        self._kind = kind
