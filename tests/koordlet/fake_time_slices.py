"""The time slices of a kernel in memory, by thread."""

from __future__ import annotations

import errno

from koord.host.io_error import OPEN, IoError

OWN_NS = 2_800_000  # of threads without a setting


class FakeTimeSlices:
    """`slices` has the slice of every living thread. `stubborn` threads refuse every change."""

    def __init__(self, own_ns: int = OWN_NS) -> None:
        self.own_ns = own_ns
        self.slices: dict[int, int] = {}
        self.stubborn: set[int] = set()
        self.reads = 0  # of threads, not of the kernel's own slice

    def slice_ns(self, thread: int) -> int | IoError:
        if thread == 0:
            return self.own_ns
        self.reads += 1
        return self.slices.get(thread, IoError(f"sched_getattr {thread}", OPEN, errno.ESRCH))

    def set_slice(self, thread: int, slice_ns: int) -> IoError | None:
        if thread not in self.slices:
            return IoError(f"sched_setattr {thread}", OPEN, errno.ESRCH)
        if thread in self.stubborn:
            return IoError(f"sched_setattr {thread}", OPEN, errno.EPERM)
        self.slices[thread] = slice_ns or self.own_ns
        return None
