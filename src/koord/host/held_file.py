"""Files that are read every second keep their descriptors open, as many as a budget allows.

Opening costs more than reading. A file whose group was removed answers ENODEV on its old descriptor and is reopened;
beyond the budget, files are opened for every read.
"""

from __future__ import annotations

import os
import resource

from koord.host.fault import OPEN, READ, Fault

_ROOM = 4096
_SHARE = 4  # one descriptor in so many may be kept open; sockets, counters and watches need the others


class Descriptors:
    """The budget of descriptors that may be kept open."""

    __slots__ = ("held", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    @staticmethod
    def allowed() -> Descriptors:
        """Return a budget of a quarter of RLIMIT_NOFILE."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return Descriptors((1024 if soft < 0 else min(soft, 65_536)) // _SHARE)


class HeldFile:
    """A file that is read again and again."""
    __slots__ = ("_budget", "_descriptor", "_room", "path")

    def __init__(self, path: str, budget: Descriptors) -> None:
        self.path = path
        self._budget = budget
        self._descriptor = -1
        self._room = _ROOM  # what the text has fitted in so far: the kernel makes the whole text for every read

    def read(self) -> bytes | Fault:
        if self._descriptor >= 0:
            try:
                return self._whole(self._descriptor)
            except OSError:
                self.close()  # the group is gone, or another one has its name now: look at the path again
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return Fault(self.path, OPEN, error.errno or 0)
        try:
            text = self._whole(descriptor)
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

    def _whole(self, descriptor: int) -> bytes:
        text = os.pread(descriptor, self._room, 0)
        while len(text) == self._room:  # a file of a group is one record, so a short read is its end
            self._room *= 4
            text = os.pread(descriptor, self._room, 0)
        return text
