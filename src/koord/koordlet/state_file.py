"""A value that the agent keeps over restarts: JSON in a file of its own, read once and replaced as a whole."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from koord.api.model import decode_text
from koord.host.filesystem import Host
from koord.host.io_error import IoError, malformed
from koord.values.json_text import MalformedText

T = TypeVar("T")


class StateFile(Generic[T]):
    """The value of a type in a file. Without the file the value is `empty`."""

    def __init__(self, host: Host, path: str, type: type[T], empty: T) -> None:
        self._host = host
        self._path = path
        self._type = type
        self._empty = empty
        self._value: T | None = None  # None until the file was read or written

    @property
    def exists(self) -> bool:
        return self._host.exists(self._path)

    def load(self) -> T | IoError:
        """Return the value. A file that cannot be read is read again the next time."""
        if self._value is not None:
            return self._value
        text = self._host.read(self._path)
        if isinstance(text, IoError):
            if not text.vanished:
                return text
            self._value = self._empty
            return self._empty
        found = decode_text(text, self._type)
        if isinstance(found, MalformedText):
            return malformed(self._path, str(found))
        self._value = found
        return found

    def save(self, value: T) -> IoError | None:
        """Write another value than the file has; sets are written in order."""
        if value == self._value:
            return None
        refused = self._host.replace_file(self._path, msgspec.json.encode(value, order="deterministic").decode())
        if refused is None:
            self._value = value
        return refused

    def remove(self) -> IoError | None:
        """Remove the file; nothing is left to be kept."""
        if self._value == self._empty:
            return None
        refused = self._host.remove_file(self._path)
        if refused is None:
            self._value = self._empty
        return refused
