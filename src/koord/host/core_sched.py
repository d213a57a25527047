"""Scheduling of processes: core scheduling cookies, which decide whose threads may share a physical core at the same
time, and how long the kernel's fair scheduler lets a thread run before others have their turn.

A cookie travels through a thread: it takes the cookie of one process and gives it to others. Here that thread is made
for the purpose and ends afterwards, so that no thread of the agent keeps a cookie, nor hands it on to what it starts.

Kernels since 6.12 let each thread have its own, by sched_setattr; earlier ones take the call and do nothing, and say so
by a slice of zero. Threads and processes that a thread starts inherit it.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Sequence
from typing import Protocol

from koord.host import libc
from koord.host.filesystem import Host
from koord.host.io_error import OPEN, IoError, unsupported

NO_COOKIE = 0
_CREATE, _SHARE_TO, _SHARE_FROM = 1, 2, 3
_THREAD, _THREAD_GROUP = 0, 1
_FEATURE = "CORE_SCHED"


class CookieSystem(Protocol):
    """The system calls of core scheduling. Processes are named by their id, and errors are by process."""

    def supported(self) -> IoError | None:
        """Return why there is no core scheduling here; None when there is."""

    def cookie(self, process: int) -> int | IoError:
        """Return the cookie of a process; 0 for none."""

    def create(self, process: int) -> IoError | None:
        """Give all threads of a process a cookie that nobody has."""

    def assign(self, source: int, targets: Sequence[int]) -> dict[int, IoError]:
        """Give the cookie of one process to others; return those that did not take it, the source for all of them."""

    def clear(self, targets: Sequence[int]) -> dict[int, IoError]:
        """Take the cookie from processes; return those that kept it."""


class PrctlCookies:
    """The kernel's own cookies, by prctl. The agent itself must have none: a thread that clears hands on its own."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def supported(self) -> IoError | None:
        return check_supported(self._host)

    def cookie(self, process: int) -> int | IoError:
        return libc.sched_core_cookie(process)

    def create(self, process: int) -> IoError | None:
        return libc.sched_core(_CREATE, process, _THREAD_GROUP)

    def assign(self, source: int, targets: Sequence[int]) -> dict[int, IoError]:
        return _in_fresh_thread(source, targets)

    def clear(self, targets: Sequence[int]) -> dict[int, IoError]:
        return _in_fresh_thread(None, targets)


def check_supported(host: Host) -> IoError | None:
    """Return None when the kernel has core scheduling: a vendor's switch for it, or an answer to a question."""
    if host.exists(switch_path(host)) or has_feature(host):
        return None
    answer = libc.sched_core_cookie(0)
    if not isinstance(answer, IoError):
        return None
    return unsupported("prctl PR_SCHED_CORE", f"this kernel has no core scheduling, or no SMT ({answer.code})")


def switch_path(host: Host) -> str:
    return f"{host.paths.proc}/sys/kernel/sched_core"


def has_feature(host: Host) -> bool:
    """Return whether core scheduling is one of the scheduler's features, as in some vendors' kernels."""
    text = host.read(f"{host.paths.sys}/kernel/debug/sched_features")
    return isinstance(text, str) and any(word in (_FEATURE, f"NO_{_FEATURE}") for word in text.split())


def _in_fresh_thread(source: int | None, targets: Sequence[int]) -> dict[int, IoError]:
    refused: dict[int, IoError] = {}
    thread = threading.Thread(target=_share, args=(source, targets, refused), name="core-sched")
    thread.start()
    thread.join()
    return refused


def _share(source: int | None, targets: Sequence[int], refused: dict[int, IoError]) -> None:
    ready = _check_own_cookie() if source is None else libc.sched_core(_SHARE_FROM, source, _THREAD)
    if ready is not None:
        refused.update(dict.fromkeys(targets if source is None else (source,), ready))
        return
    for target in targets:
        problem = libc.sched_core(_SHARE_TO, target, _THREAD_GROUP)
        if problem is not None:
            refused[target] = problem


def _check_own_cookie() -> IoError | None:
    """Return why this thread cannot clear others: it inherited a cookie, which it would hand on."""
    own = libc.sched_core_cookie(0)
    if isinstance(own, IoError):
        return own
    return None if own == NO_COOKIE else IoError("sched_core 0", OPEN, 0, f"the agent has the cookie {own} itself")


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


def check_time_slices(host: Host) -> IoError | None:
    """Return None when the kernel has a time slice of each thread (Linux 6.12)."""
    own = KernelTimeSlices(host).slice_ns(0)
    if isinstance(own, IoError):
        return own
    return None if own else unsupported("sched_getattr", "this kernel has no time slices to set, or this is another's")


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
