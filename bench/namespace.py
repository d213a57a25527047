"""Commands in namespaces: in a network of their own or another process's, or with another /proc/meminfo.

    python -m bench.namespace new-network COMMAND...
    python -m bench.namespace network-of PID COMMAND...
    python -m bench.namespace meminfo FILE COMMAND...    finds FILE at /proc/meminfo

The command takes the place of this program and is killed when the process that started it ends in any way, so that
nothing of a namespace is left. Python 3.11 has no unshare and setns: they are called in the C library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
_PROGRAM = (sys.executable, "-m", "bench.namespace")


def with_meminfo(path: str) -> tuple[str, ...]:
    """Return the words before a command that finds this file at /proc/meminfo."""
    return (*_PROGRAM, "meminfo", path)


def in_network_of(pid: int) -> tuple[str, ...]:
    return (*_PROGRAM, "network-of", str(pid))


def in_new_network() -> tuple[str, ...]:
    return (*_PROGRAM, "new-network")


def enter_new_network() -> None:
    """Give this process, and those that it starts from now on, a network without devices. Raises OSError."""
    _check(_LIBC.unshare(_CLONE_NEWNET), "unshare")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when the one that started it has ended."""
    _check(_LIBC.prctl(_PR_SET_PDEATHSIG, number), "prctl")


def _enter_network(pid: str) -> None:
    descriptor = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    _check(_LIBC.setns(descriptor, _CLONE_NEWNET), "setns")


def enter_private_mounts() -> None:
    """Give this process, and those that it starts from now on, mounts of their own, which end with them."""
    none = ctypes.c_char_p(None)
    _check(_LIBC.unshare(_CLONE_NEWNS), "unshare")
    _check(_LIBC.mount(b"none", b"/", none, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), none), "/")


def unmount(path: str) -> None:
    """Take a mount away at once, whoever still has files of it open."""
    _check(_LIBC.umount2(path.encode(), _MNT_DETACH), path)


def _replace_meminfo(path: str) -> None:
    none = ctypes.c_char_p(None)
    enter_private_mounts()
    _check(_LIBC.mount(path.encode(), b"/proc/meminfo", none, ctypes.c_ulong(_MS_BIND), none), "/proc/meminfo")


def _check(answer: int, what: str) -> None:
    if answer < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), what)


def main(words: Sequence[str]) -> None:
    die_with_parent()
    match words:
        case ["new-network", *command]:
            enter_new_network()
        case ["network-of", pid, *command]:
            _enter_network(pid)
        case ["meminfo", path, *command]:
            _replace_meminfo(path)
        case _:
            sys.exit(str(__doc__))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
