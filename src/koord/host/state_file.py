"""Files of the agent's own that outlive it: append a line, replace a file whole, remove it."""

from __future__ import annotations

import os

from koord.host.fault import WRITE, Fault


def append(path: str, text: str) -> Fault | None:
    """Add text at the end, making the file and its folder when they are not there."""
    return _put(path, text, os.O_APPEND, path)


def replace(path: str, text: str) -> Fault | None:
    """Readers see the old file or the new one, never half of it."""
    beside = f"{path}.new"
    fault = _put(beside, text, os.O_TRUNC, path)
    if fault is not None:
        return fault
    try:
        os.replace(beside, path)
    except OSError as error:
        return Fault(path, WRITE, error.errno or 0, str(error))
    return None


def remove(path: str) -> Fault | None:
    """One that is gone already is no fault."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Fault(path, WRITE, error.errno or 0, str(error))
    return None


def _put(path: str, text: str, flags: int, named: str) -> Fault | None:
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
        return Fault(named, WRITE, error.errno or 0, str(error))
    return None
