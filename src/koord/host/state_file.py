"""The agent's own files that outlive it: append a line, replace a file atomically, remove it."""

from __future__ import annotations

import os

from koord.host.io_error import WRITE, IoError


def append(path: str, text: str) -> IoError | None:
    """Append text, making the file and its directory when they do not exist."""
    return _put(path, text, os.O_APPEND, path)


def replace(path: str, text: str) -> IoError | None:
    """Replace the file atomically: readers see the old file or the new one, never half of it."""
    beside = f"{path}.new"
    io_error = _put(beside, text, os.O_TRUNC, path)
    if io_error is not None:
        return io_error
    try:
        os.replace(beside, path)
    except OSError as error:
        return IoError(path, WRITE, error.errno or 0, str(error))
    return None


def remove(path: str) -> IoError | None:
    """Remove the file; one that is gone already is no error."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return IoError(path, WRITE, error.errno or 0, str(error))
    return None


def _put(path: str, text: str, flags: int, named: str) -> IoError | None:
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o755, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | flags, 0o644)
        try:
            data = text.encode()
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)
    except OSError as error:
        return IoError(named, WRITE, error.errno or 0, str(error))
    return None
