"""This module is the lock that keeps a second koordlet of a node from connecting to the runtime."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import msgspec

from koord.host.io_error import OPEN, IoError


class LockHeld(msgspec.Struct, frozen=True):
    """LockHeld says that another process has the lock."""

    path: str
    pid: str  # as that process wrote it; empty when it wrote none

    def __str__(self) -> str:
        return f"another koordlet of this node (pid {self.pid or 'unknown'}) holds {self.path}"


class NodeLock:
    """NodeLock is a file lock, which the kernel frees however its process ends. The file stays."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> LockHeld | IoError | None:
        """Take the lock without waiting; returns why it was not taken."""
        if self._fd is not None:
            return None
        try:
            Path(self._path).parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            return IoError(self._path, OPEN, error.errno or 0, str(error))
        refusal = self._lock(fd)
        if refusal is None:
            self._fd = fd
        else:
            os.close(fd)
        return refusal

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _lock(self, fd: int) -> LockHeld | IoError | None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return LockHeld(self._path, os.read(fd, 32).decode(errors="replace").strip())
        except OSError as error:
            return IoError(self._path, OPEN, error.errno or 0, str(error))
        with contextlib.suppress(OSError):  # a full disk: the lock counts, and the pid is for people alone
            os.ftruncate(fd, 0)
            os.pwrite(fd, str(os.getpid()).encode(), 0)
        return None
