"""Files that are read every second: their descriptors stay open, as many as a budget allows.

Opening costs more than reading. A file whose group was removed answers ENODEV on its old descriptor and is opened anew;
past the budget, files are opened for every read.
"""

from __future__ import annotations

import os
import resource

from koord.host.fault import OPEN, READ, Fault

_ROOM = 4096
_SHARE = 4  # one descriptor in so many may be held for reading; sockets, counters and watches need the others


class Descriptors:
    """How many files may be held open."""

    __slots__ = ("held", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    @staticmethod
    def allowed() -> Descriptors:
        """A part of what this process may have open."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return Descriptors((1024 if soft < 0 else min(soft, 65_536)) // _SHARE)


class HeldFile:
    __slots__ = ("_budget", "_descriptor", "path")

    def __init__(self, path: str, budget: Descriptors) -> None:
        self.path = path
        self._budget = budget
        self._descriptor = -1

    def read(self) -> bytes | Fault:
        if self._descriptor >= 0:
            try:
                return _whole(self._descriptor)
            except OSError:
                self.close()  # the group is gone, or another one has its name now: look at the path again
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return Fault(self.path, OPEN, error.errno or 0)
        try:
            text = _whole(descriptor)
        except OSError as error:
            os.close(descriptor)
            return Fault(self.path, READ, error.errno or 0)
        if self._budget.held < self._budget.most:
            self._budget.held += 1
            self._descriptor = descriptor
        else:
            os.close(descriptor)
        return text

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._budget.held -= 1


def _whole(descriptor: int) -> bytes:
    text = os.pread(descriptor, _ROOM, 0)
    size = _ROOM
    while len(text) == size:  # a file of a group is one record, so a short read is its end
        size *= 4
        text = os.pread(descriptor, size, 0)
    return text
