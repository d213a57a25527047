"""Files that are read every second keep their descriptors open, as many as a budget allows.

Opening costs more than reading. A file whose group was removed answers ENODEV on its old descriptor and is reopened;
beyond the budget, files are opened for every read.
"""

from __future__ import annotations

import os
import resource

from koord.host.io_error import OPEN, READ, IoError

_FIRST_BUFFER_BYTES = 4096
_RLIMIT_DIVISOR = 4  # one descriptor in so many may be kept open; sockets, counters and watches need the others


class FdBudget:
    __slots__ = ("max_open", "open_count")

    def __init__(self, most: int) -> None:
        self.max_open = most
        self.open_count = 0

    @staticmethod
    def from_rlimit() -> FdBudget:
        """Return a budget of a quarter of RLIMIT_NOFILE."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return FdBudget((1024 if soft < 0 else min(soft, 65_536)) // _RLIMIT_DIVISOR)


class KeepOpenFile:
    __slots__ = ("_budget", "_descriptor", "_room", "path")

    def __init__(self, path: str, budget: FdBudget) -> None:
        self.path = path
        self._budget = budget
        self._descriptor = -1
        self._room = (
            _FIRST_BUFFER_BYTES  # what the text has fitted in so far: the kernel makes the whole text for every read
        )

    def read(self) -> bytes | IoError:
        if self._descriptor >= 0:
            try:
                return self._whole(self._descriptor)
            except OSError:
                self.close()  # the group is gone, or another one has its name now: look at the path again
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return IoError(self.path, OPEN, error.errno or 0)
        try:
            text = self._whole(descriptor)
        except OSError as error:
            os.close(descriptor)
            return IoError(self.path, READ, error.errno or 0)
        if self._budget.open_count < self._budget.max_open:
            self._budget.open_count += 1
            self._descriptor = descriptor
        else:
            os.close(descriptor)
        return text

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._budget.open_count -= 1

    def _whole(self, descriptor: int) -> bytes:
        text = os.pread(descriptor, self._room, 0)
        while len(text) == self._room:  # a file of a group is one record, so a short read is its end
            self._room *= 4
            text = os.pread(descriptor, self._room, 0)
        return text
