"""The program's log: klog lines or JSON on standard error, and a verbosity that can change while it runs.

Modules log with Python's `logging` and know nothing of this. Levels: INFO and above always show, DEBUG
from -v=5 on (Koordinator's charts run with -v=4, which must not cost a line for each pod).
"""

from __future__ import annotations

import fnmatch
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

import msgspec

DEBUG_FROM = 5
LIBRARY_DEBUG_FROM = 10  # at and above it other libraries' DEBUG lines show as well
TEXT, JSON = "text", "json"
_ROOT_LOGGER = "koord"


class KlogTextFormatter(logging.Formatter):
    """Formats `I1115 08:38:13.570801   18019 file.py:386] message`, with the traceback on the lines after it."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.localtime(record.created)
        micros = int(record.created % 1 * 1_000_000)
        head = (
            f"{_letter(record.levelno)}{moment.tm_mon:02d}{moment.tm_mday:02d} "
            f"{moment.tm_hour:02d}:{moment.tm_min:02d}:{moment.tm_sec:02d}.{micros:06d} "
            f"{record.process or 0:7d} {record.filename}:{record.lineno}] "
        )
        text = head + record.getMessage()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class JsonFormatter(logging.Formatter):
    """Formats one object a line: ts in milliseconds, caller, msg, v for information and err for errors."""

    def format(self, record: logging.LogRecord) -> str:
        folder = os.path.basename(os.path.dirname(record.pathname))
        entry: dict[str, Any] = {
            "ts": round(record.created * 1000, 4),
            "caller": f"{folder}/{record.filename}:{record.lineno}",
            "msg": record.getMessage(),
            "logger": record.name,
        }
        if record.levelno < logging.ERROR:
            entry["v"] = DEBUG_FROM if record.levelno < logging.INFO else 0
        if record.levelno == logging.WARNING:
            entry["severity"] = "warning"
        if record.exc_info:
            entry["err"] = str(record.exc_info[1])
            entry["stack"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry).decode()


class Logs:
    """Owns the root logger's handler between `start` and `stop`."""

    def __init__(
        self,
        *,
        format: str = TEXT,
        verbosity: int = 0,
        modules: Mapping[str, int] | None = None,
        stream: TextIO | None = None,
    ) -> None:
        """Configure the log. `modules` is --vmodule: file name patterns (or modules) with a verbosity of their own."""
        self._handler = logging.StreamHandler(stream or sys.stderr)
        self._handler.setFormatter(JsonFormatter() if format == JSON else KlogTextFormatter())
        self._handler.addFilter(self._shows)
        self._modules = dict(modules or {})
        self._before: tuple[int, int] | None = None
        self.verbosity = verbosity

    def start(self) -> None:
        root, ours = logging.getLogger(), logging.getLogger(_ROOT_LOGGER)
        self._before = (root.level, ours.level)
        root.addHandler(self._handler)
        self.set_verbosity(self.verbosity)

    def stop(self) -> None:
        if self._before is not None:
            logging.getLogger().removeHandler(self._handler)
            logging.getLogger().setLevel(self._before[0])
            logging.getLogger(_ROOT_LOGGER).setLevel(self._before[1])
            self._before = None

    def set_verbosity(self, verbosity: int) -> None:
        self.verbosity = verbosity
        loudest = max([verbosity, *self._modules.values()])
        logging.getLogger(_ROOT_LOGGER).setLevel(logging.DEBUG if loudest >= DEBUG_FROM else logging.INFO)
        logging.getLogger().setLevel(logging.DEBUG if verbosity >= LIBRARY_DEBUG_FROM else logging.WARNING)

    def _shows(self, record: logging.LogRecord) -> bool:
        """Filter records by module: levels are set for the most verbose module; here others are held to theirs."""
        if record.levelno >= logging.INFO or not self._modules:
            return True
        for pattern, verbosity in self._modules.items():
            if fnmatch.fnmatchcase(record.module, pattern) or fnmatch.fnmatchcase(record.name, pattern):
                return verbosity >= DEBUG_FROM
        return self.verbosity >= DEBUG_FROM


def _letter(level: int) -> str:
    if level >= logging.CRITICAL:
        return "F"
    if level >= logging.ERROR:
        return "E"
    return "W" if level >= logging.WARNING else "I"
