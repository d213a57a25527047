"""What went wrong with one file, as a value: which file, at which step, which errno, or which text made no sense."""

from __future__ import annotations

import errno
import os

import msgspec

OPEN, READ, WRITE, PARSE, ABSENT = "open", "read", "write", "parse", "absent"
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR, errno.ESRCH})


class Fault(msgspec.Struct, frozen=True):
    """`errno` is 0 when the file answered but its text made no sense, or when this machine has no such file at all."""

    path: str
    stage: str
    errno: int = 0
    detail: str = ""

    @property
    def vanished(self) -> bool:
        """The file is not there. A removed cgroup answers ENODEV on descriptors that were still open."""
        return self.errno in _GONE

    @property
    def code(self) -> str:
        return errno.errorcode.get(self.errno, str(self.errno)) if self.errno else self.stage

    def __str__(self) -> str:
        said = os.strerror(self.errno) if self.errno else self.detail
        return f"{self.stage} {self.path}: {said}" if self.errno else f"{self.path}: {said}"


def malformed(path: str, detail: str) -> Fault:
    return Fault(path, PARSE, 0, detail)


def lacking(path: str, detail: str) -> Fault:
    return Fault(path, ABSENT, 0, detail)
