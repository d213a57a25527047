"""System calls that Python has no function for, through the C library. Errors are returned as IoError values."""

from __future__ import annotations

import ctypes
import functools
import platform

from koord.host.io_error import OPEN, IoError, unsupported

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "ppc64le": 355, "s390x": 345, "riscv64": 274}
_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275, "ppc64le": 356, "s390x": 346, "riscv64": 275}
_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "s390x": 331, "riscv64": 241}


@functools.cache
def load_libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def perf_event_open(attributes: bytes, target: int, cpu: int, group: int, flags: int) -> int | IoError:
    """Return a descriptor. `target` is a process, or a cgroup's descriptor with the flag for it."""
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        return unsupported("perf_event_open", f"its number is not known on {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    arguments = (ctypes.c_long(number), buffer, target, cpu, group, ctypes.c_ulong(flags))
    return _checked(load_libc().syscall(*arguments), "perf_event_open")


def sched_getattr(thread: int, size: int) -> bytes | IoError:
    """Return the scheduling attributes of a thread, `size` bytes of the kernel's struct sched_attr."""
    number = _SCHED_GETATTR.get(platform.machine())
    if number is None:
        return unsupported("sched_getattr", f"its number is not known on {platform.machine()}")
    buffer = ctypes.create_string_buffer(size)
    answer = load_libc().syscall(ctypes.c_long(number), thread, buffer, ctypes.c_uint(size), ctypes.c_uint(0))
    found = _checked(answer, f"sched_getattr {thread}")
    return found if isinstance(found, IoError) else buffer.raw


def sched_setattr(thread: int, attributes: bytes) -> IoError | None:
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return unsupported("sched_setattr", f"its number is not known on {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    found = _checked(
        load_libc().syscall(ctypes.c_long(number), thread, buffer, ctypes.c_uint(0)), f"sched_setattr {thread}"
    )
    return found if isinstance(found, IoError) else None


def mount(source: str, target: str, kind: str) -> IoError | None:
    answer = load_libc().mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(0), None)
    found = _checked(answer, target)
    return found if isinstance(found, IoError) else None


def inotify_open(flags: int) -> int | IoError:
    return _checked(load_libc().inotify_init1(flags), "inotify")


def inotify_watch(descriptor: int, path: str, mask: int) -> int | IoError:
    answer = load_libc().inotify_add_watch(descriptor, path.encode(), ctypes.c_uint32(mask))
    return _checked(answer, path)


def inotify_unwatch(descriptor: int, watch: int) -> IoError | None:
    answer = _checked(load_libc().inotify_rm_watch(descriptor, watch), "inotify")
    return answer if isinstance(answer, IoError) else None


# linux/prctl.h
_PR_SCHED_CORE = 62
_SCHED_CORE_GET = 0


def sched_core(command: int, process: int, scope: int) -> IoError | None:
    """Run a command of prctl's PR_SCHED_CORE that has no answer. Process 0 is the calling thread."""
    arguments = map(ctypes.c_ulong, (command, process, scope, 0))
    answer = load_libc().prctl(_PR_SCHED_CORE, *arguments)
    found = _checked(answer, f"sched_core {process}")
    return found if isinstance(found, IoError) else None


def sched_core_cookie(process: int) -> int | IoError:
    """Return the core scheduling cookie of the process' main thread; 0 for none."""
    cookie = ctypes.c_uint64(0)
    arguments = map(ctypes.c_ulong, (_SCHED_CORE_GET, process, 0))
    answer = load_libc().prctl(_PR_SCHED_CORE, *arguments, ctypes.byref(cookie))
    found = _checked(answer, f"sched_core {process}")
    return found if isinstance(found, IoError) else cookie.value


def _checked(answer: int, name: str) -> int | IoError:
    return IoError(name, OPEN, ctypes.get_errno()) if answer < 0 else answer
