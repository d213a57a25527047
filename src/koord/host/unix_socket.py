"""Unix sockets and folders that one server of a machine has for itself.

The kernel gives a lock back when its holder ends, however it ends. A socket file without a server behind it is removed
before the next server binds; one that a server answers on is not taken from it, whoever that server is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket

import msgspec

_MAX_PATH_BYTES = 107  # sockaddr_un has 108, with the final zero


class NotExclusive(msgspec.Struct, frozen=True):
    """NotExclusive says why a socket or folder cannot be had alone, as a whole sentence."""

    reason: str

    def __str__(self) -> str:
        return self.reason


class FileLock:
    """FileLock is a lock on a file, held until `release` or the end of the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @staticmethod
    def acquire(path: str) -> FileLock | NotExclusive:
        """Lock the file, making it and its folder. It holds the process id of its holder for those who read it."""
        try:
            os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            return NotExclusive(f"cannot lock {path}: {error.strerror}")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            os.close(descriptor)
            return NotExclusive(f"{path} is locked by another process{f' (pid {holder})' if holder else ''}")
        with contextlib.suppress(OSError):  # a full disk: the lock holds without the number in it
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
        return FileLock(descriptor)

    def release(self) -> None:
        os.close(self._descriptor)


class SocketClaim:
    """SocketClaim is the right to bind a socket, kept by a lock on the file beside it."""

    def __init__(self, path: str, lock: FileLock) -> None:
        self.path = path
        self._lock = lock

    def release(self) -> None:
        """Remove the socket and let another server have it."""
        _unlink(self.path)
        self._lock.release()


def claim_socket(path: str) -> SocketClaim | NotExclusive:
    """Claim a socket for a server that is about to bind it: nothing lies at the path afterwards."""
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        return NotExclusive(f"the socket {path} has a path of more than {_MAX_PATH_BYTES} bytes")
    lock = FileLock.acquire(f"{path}.lock")
    if isinstance(lock, NotExclusive):
        return NotExclusive(f"another server has the socket {path}: {lock}")
    refused = "another server answers on it" if has_listener(path) else _unlink(path)
    if refused:
        lock.release()
        return NotExclusive(f"cannot take the socket {path}: {refused}")
    return SocketClaim(path, lock)


def has_listener(path: str) -> bool:
    """Return whether a server accepts connections at the path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except BlockingIOError:  # its queue is full, so there is a server
            return True
        except OSError:
            return False
    return True


def _unlink(path: str) -> str:
    """Remove the file and return why that failed; one that is gone already is no failure."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    return ""
