"""The journal keeps on disk what every file held before the agent first wrote it, so that a later process can undo it.

A line is added before a write, never after: a crash between the two costs a harmless line, not an original value.
Entries belong to one boot and one inode; a group that was recreated starts without history.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from koord.api.model import decode_text
from koord.host import filesystem
from koord.host.filesystem import Host
from koord.host.io_error import IoError
from koord.host.procfs import boot_id
from koord.koordlet.cgroup_writer.effects import FileKey
from koord.values.json_text import MalformedText

_SLACK = 256  # lines more than twice the entries before the file is written anew


class JournalEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """The original value of one file and the last two values written. Values are as they stand in the file."""

    knob: str
    dir: str
    part: str
    owner: str
    original: str
    last: str  # what we wrote last, or were about to write
    prior: str  # what was there before that: a process may have been killed before its write
    inode: int = 0
    gone: bool = False

    @property
    def key(self) -> FileKey:
        return (self.knob, self.dir, self.part)


class _Head(msgspec.Struct, frozen=True):
    boot: str


class WriteJournal:
    """The journal; it is kept in memory alone when `path` is None."""

    def __init__(self, host: Host, path: str | None = None) -> None:
        self._host = host
        self._path = path
        self._origins: dict[FileKey, JournalEntry] = {}
        self._lines = 0
        self.io_error: IoError | None = None  # the last write of the journal itself that failed
        found = boot_id(host)
        self._boot = "" if isinstance(found, IoError) else found
        if path is not None:
            self._load(path)

    def __len__(self) -> int:
        return len(self._origins)

    def __iter__(self) -> Iterator[JournalEntry]:
        return iter(list(self._origins.values()))

    def get(self, key: FileKey) -> JournalEntry | None:
        return self._origins.get(key)

    def entries_of(self, owner: str) -> list[JournalEntry]:
        return [origin for origin in self._origins.values() if origin.owner == owner]

    def record_write(self, key: FileKey, owner: str, before: str, after: str, inode: int) -> None:
        """Record a write that is about to happen. The first write's `before` stays the original."""
        known = self._origins.get(key)
        original = before
        if known is not None and known.inode == inode:
            if known.last == after and known.owner == owner:
                return
            original = known.original
        self._add(JournalEntry(*key, owner, original, after, before, inode))

    def forget(self, key: FileKey) -> None:
        known = self._origins.pop(key, None)
        if known is not None:
            self._append(msgspec.structs.replace(known, gone=True))

    def _add(self, origin: JournalEntry) -> None:
        self._origins[origin.key] = origin
        self._append(origin)

    def _append(self, origin: JournalEntry) -> None:
        if self._path is None:
            return
        if self._lines > 2 * len(self._origins) + _SLACK or self._lines == 0:
            self._rewrite(self._path)
            return
        self._lines += 1
        self.io_error = filesystem.append_file(self._path, msgspec.json.encode(origin).decode() + "\n")

    def _rewrite(self, path: str) -> None:
        lines: list[msgspec.Struct] = [_Head(self._boot), *self._origins.values()]
        self.io_error = filesystem.replace_file(
            path, "".join(msgspec.json.encode(line).decode() + "\n" for line in lines)
        )
        if self.io_error is None:
            self._lines = len(lines)

    def _load(self, path: str) -> None:
        text = self._host.read(path)
        if isinstance(text, IoError):
            self.io_error = None if text.vanished else text
            return
        head, *lines = text.splitlines() or [""]
        first = decode_text(head, _Head)
        if isinstance(first, MalformedText):
            return  # not ours or torn: nothing in it can be trusted
        if first.boot != self._boot:
            return  # the machine was started since, and with it every cgroup was made anew
        self._lines = 1
        for line in lines:
            origin = decode_text(line, JournalEntry)
            if isinstance(origin, MalformedText):
                continue  # the last line of a process that was killed while it wrote
            self._lines += 1
            if origin.gone:
                self._origins.pop(origin.key, None)
            else:
                self._origins[origin.key] = origin
