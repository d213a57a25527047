"""The time slices of threads: how long the kernel's fair scheduler lets a thread run before others have their turn.

Kernels since 6.12 let each thread have its own, by sched_setattr; earlier ones take the call and do nothing, and say so
by a slice of zero. Threads and processes that a thread starts inherit it.
"""

from __future__ import annotations

import os
import struct
from typing import Protocol

from koord.host import libc
from koord.host.filesystem import Host
from koord.host.io_error import IoError, unsupported

# struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period, util_min, util_max
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")
_RUNTIME = 5
_FAIR_POLICIES = (0, 3, 5)  # SCHED_OTHER, SCHED_BATCH, SCHED_IDLE


class TimeSliceSystem(Protocol):
    """The system calls of time slices. Threads are named by their id; 0 is the calling one."""

    def slice_ns(self, thread: int) -> int | IoError:
        """Return the thread's slice; 0 when its scheduling class has none."""
        ...

    def set_slice(self, thread: int, slice_ns: int) -> IoError | None:
        """Set the thread's slice; 0 gives it the scheduler's own."""
        ...


class KernelTimeSlices:
    """The slices that this machine's kernel keeps. Thread ids of another machine, or another pid namespace, name other
    threads here, so that such a host has no slices.
    """

    def __init__(self, host: Host) -> None:
        self._is_ours = os.path.realpath(f"{host.paths.proc}/self") == f"{host.paths.proc}/{os.getpid()}"

    def slice_ns(self, thread: int) -> int | IoError:
        if not self._is_ours:
            return 0
        found = _attributes(thread)
        return found if isinstance(found, IoError) else found[_RUNTIME] if found[1] in _FAIR_POLICIES else 0

    def set_slice(self, thread: int, slice_ns: int) -> IoError | None:
        """Change the slice and nothing else: the kernel takes all attributes of a thread at once."""
        if not self._is_ours:
            return unsupported(f"sched_setattr {thread}", "it is a thread of another pid namespace")
        found = _attributes(thread)
        if isinstance(found, IoError):
            return found
        if found[1] not in _FAIR_POLICIES:
            return unsupported(f"sched_setattr {thread}", f"threads of policy {found[1]} have no time slice")
        return libc.sched_setattr(thread, _ATTRIBUTES.pack(*found[:_RUNTIME], slice_ns, *found[_RUNTIME + 1 :]))


def _attributes(thread: int) -> tuple[int, ...] | IoError:
    found = libc.sched_getattr(thread, _ATTRIBUTES.size)
    return found if isinstance(found, IoError) else _ATTRIBUTES.unpack(found)
