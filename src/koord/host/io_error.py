"""This module holds what went wrong with one file, as a value: path, stage, errno, or malformed text."""

from __future__ import annotations

import errno
import os

import msgspec

OPEN, READ, WRITE, PARSE, ABSENT = "open", "read", "write", "parse", "absent"
JOURNAL = "journal"  # not the file itself, but the journal that must be written first
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ESRCH})


class IoError(msgspec.Struct, frozen=True):
    """An I/O error as a return value. `errno` is 0 when the text was malformed or this machine has no such file."""

    path: str
    stage: str
    errno: int = 0
    detail: str = ""

    @property
    def vanished(self) -> bool:
        """Return whether the file is gone. A removed cgroup answers ENODEV on descriptors that were still open."""
        return self.errno in _GONE

    @property
    def code(self) -> str:
        """Return the errno's name, or the stage when there is no errno."""
        return errno.errorcode.get(self.errno, str(self.errno)) if self.errno else self.stage

    def __str__(self) -> str:
        said = os.strerror(self.errno) if self.errno else self.detail
        return f"{self.stage} {self.path}: {said}" if self.errno else f"{self.path}: {said}"


def malformed(path: str, detail: str) -> IoError:
    """Return the error of a text that cannot be parsed."""
    return IoError(path, PARSE, 0, detail)


def unsupported(path: str, detail: str) -> IoError:
    """Return the error of a file or feature that this machine does not have."""
    return IoError(path, ABSENT, 0, detail)
