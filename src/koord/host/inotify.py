"""Notice cgroups that come and go, which are directories made and removed directly below the watched ones, and
configuration files that change.

A watcher starts blind: its user lists the directories after `watch`, and again when events were lost.
"""

from __future__ import annotations

import os
import struct

import msgspec

from koord.host import libc
from koord.host.io_error import READ, IoError

_CREATE, _DELETE, _FOLDER, _IGNORED, _OVERFLOW = 0x100, 0x200, 0x4000_0000, 0x8000, 0x4000
_CLOSE_WRITE, _MOVED_FROM, _MOVED_TO = 0x8, 0x40, 0x80
_HEAD = struct.Struct("iIII")
_ROOM = 65_536


class DirectoryChange(msgspec.Struct, frozen=True):
    """A directory that was made or removed. `overflowed`: the kernel's queue was full, list everything again."""

    folder: str = ""
    name: str = ""
    created: bool = False
    overflowed: bool = False


class InotifyWatcher:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._by_watch: dict[int, str] = {}
        self._by_folder: dict[str, int] = {}

    @staticmethod
    def open() -> InotifyWatcher | IoError:
        descriptor = libc.inotify_open(os.O_NONBLOCK | os.O_CLOEXEC)
        return descriptor if isinstance(descriptor, IoError) else InotifyWatcher(descriptor)

    def fileno(self) -> int:
        """Return the descriptor for the event loop's reader callback."""
        return self._descriptor

    @property
    def folders(self) -> list[str]:
        return sorted(self._by_folder)

    def watch(self, folder: str) -> IoError | None:
        watch = libc.inotify_watch(self._descriptor, folder, _CREATE | _DELETE)
        if isinstance(watch, IoError):
            return watch
        self._by_watch[watch] = folder
        self._by_folder[folder] = watch
        return None

    def unwatch(self, folder: str) -> None:
        """Stop watching. The kernel does so itself when the directory is removed, so an error says nothing new."""
        watch = self._by_folder.pop(folder, None)
        if watch is not None:
            self._by_watch.pop(watch, None)
            libc.inotify_unwatch(self._descriptor, watch)

    def read(self) -> list[DirectoryChange] | IoError:
        """Return all changes since the last call, without waiting."""
        found: list[DirectoryChange] = []
        while True:
            try:
                data = os.read(self._descriptor, _ROOM)
            except BlockingIOError:
                return found
            except OSError as error:
                return IoError("inotify", READ, error.errno or 0)
            found += self._changes(data)

    def close(self) -> None:
        os.close(self._descriptor)

    def _changes(self, data: bytes) -> list[DirectoryChange]:
        found: list[DirectoryChange] = []
        start = 0
        while start + _HEAD.size <= len(data):
            watch, mask, _, length = _HEAD.unpack_from(data, start)
            start += _HEAD.size
            name = data[start : start + length].rstrip(b"\0").decode("utf-8", "replace")
            start += length
            folder = self._by_watch.get(watch)
            if mask & _OVERFLOW:
                found.append(DirectoryChange(overflowed=True))
            elif mask & _IGNORED:
                gone = self._by_watch.pop(watch, None)
                if gone is not None and self._by_folder.get(gone) == watch:
                    del self._by_folder[gone]
            elif folder is not None and mask & _FOLDER:
                found.append(DirectoryChange(folder, name, bool(mask & _CREATE)))
        return found


class FileChangeWatcher:
    """FileChangeWatcher notices that files directly below one folder were written, made, renamed or removed. It does
    not tell which: its user reads the folder again.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @staticmethod
    def open(folder: str) -> FileChangeWatcher | IoError:
        descriptor = libc.inotify_open(os.O_NONBLOCK | os.O_CLOEXEC)
        if isinstance(descriptor, IoError):
            return descriptor
        mask = _CREATE | _DELETE | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO
        watch = libc.inotify_watch(descriptor, folder, mask)
        if isinstance(watch, IoError):
            os.close(descriptor)
            return watch
        return FileChangeWatcher(descriptor)

    def fileno(self) -> int:
        """Return the descriptor for the event loop's reader callback."""
        return self._descriptor

    def drain(self) -> bool:
        """Take all events without waiting; return whether the folder is still watched, which ends with its removal."""
        alive = True
        while True:
            try:
                data = os.read(self._descriptor, _ROOM)
            except BlockingIOError:
                return alive
            start = 0
            while start + _HEAD.size <= len(data):
                _, mask, _, length = _HEAD.unpack_from(data, start)
                start += _HEAD.size + length
                alive = alive and not mask & _IGNORED

    def close(self) -> None:
        os.close(self._descriptor)
