"""The journal keeps on disk what every file held before the agent first wrote it, so that a later process can undo it.

A line is added before a write, never after: a crash between the two costs a harmless line, not an original value. What
cannot be added must not be written. Entries belong to one boot and one inode; a group that was recreated starts without
history. An entry lives from the first write until its file is restored.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from koord.api.model import decode_text
from koord.host.filesystem import Host
from koord.host.io_error import JOURNAL, OPEN, READ, IoError, malformed
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
    along: str = ""  # the knob of the group whose write changes this file, too: both are restored together
    gone: bool = False

    @property
    def key(self) -> FileKey:
        return (self.knob, self.dir, self.part)


class _Head(msgspec.Struct, frozen=True):
    boot: str


class WriteJournal:
    """The journal; it is kept in memory alone when `path` is None.

    `io_error` is why it could not be read or written last. After a failure nothing is recorded until `retry`, so that a
    full disk costs one failed write per batch and not one per file.
    """

    def __init__(self, host: Host, path: str | None = None) -> None:
        self._host = host
        self._path = path
        self._origins: dict[FileKey, JournalEntry] = {}
        self._lines = 0
        self._torn = False  # the file ends in half a line
        self._behind: dict[FileKey, JournalEntry] = {}  # restored, but the file still has them
        self._waits = False
        self._damaged = False
        self.io_error: IoError | None = None
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

    def record_write(
        self,
        key: FileKey,
        owner: str,
        before: str,
        after: str,
        inode: int,
        along: str = "",
        original: str | None = None,
    ) -> IoError | None:
        """Record a write that is about to happen; when this fails, it must not. The original is the one that is given,
        else the first `before`.

        Writing the original needs no line: whatever becomes of it, the entry's original is right.
        """
        known = self._origins.get(key)
        if known is not None and known.inode != inode:
            known = None
        if original is None:
            original = before if known is None else known.original
        if (
            known is not None
            and (known.owner, known.along, known.original) == (owner, along, original)
            and after in (known.last, original)
        ):
            return None
        return self._add(JournalEntry(*key, owner, original, after, before, inode, along))

    def follow(self, origin: JournalEntry, owner: str, along: str) -> None:
        """Let another knob's restore bring this file back: while that knob is set, this file cannot be written."""
        self._add(msgspec.structs.replace(origin, owner=owner, along=along))

    def forget(self, key: FileKey) -> None:
        known = self._origins.pop(key, None)
        if known is not None and self._append(msgspec.structs.replace(known, gone=True)) is not None:
            self._behind[key] = known

    def retry(self) -> None:
        """Let the journal be read or written again after a failure, and drop from it what could not be dropped then."""
        self._waits = False
        if self._path is not None and self.io_error is not None and self.io_error.stage in (OPEN, READ):
            self._load(self._path)
        for key, known in list(self._behind.items()):
            if self._append(msgspec.structs.replace(known, gone=True)) is not None:
                return
            del self._behind[key]

    def _add(self, origin: JournalEntry) -> IoError | None:
        known = self._origins.get(origin.key)
        self._origins[origin.key] = origin
        io_error = self._append(origin)
        if io_error is None:
            self._behind.pop(origin.key, None)
            return None
        if known is None:
            del self._origins[origin.key]
        else:
            self._origins[origin.key] = known
        return io_error

    def _append(self, origin: JournalEntry) -> IoError | None:
        if self._path is None:
            return None
        if self._waits:
            return self.io_error
        if self._damaged:  # its originals are lost; people may still want to look at it
            self._note(self._host.rename_file(self._path, f"{self._path}.damaged"))
            self._damaged = self.io_error is not None
            if self._damaged:
                return self.io_error
        # Without room for a second file there may still be room for a line.
        full = self._lines > 2 * len(self._origins) + _SLACK
        if (full or not self._lines) and (self._rewrite(self._path) is None or not self._lines):
            return self.io_error
        line = msgspec.json.encode(origin).decode() + "\n"
        failed = self._host.append_file(self._path, f"\n{line}" if self._torn else line)
        self._note(failed)
        if failed is None:
            self._lines += 1
            self._torn = False
        return self.io_error

    def _rewrite(self, path: str) -> IoError | None:
        lines: list[msgspec.Struct] = [_Head(self._boot), *self._origins.values()]
        text = "".join(msgspec.json.encode(line).decode() + "\n" for line in lines)
        self._note(self._host.replace_file(path, text))
        if self.io_error is None:
            self._lines = len(lines)
            self._torn = False
            self._behind.clear()
        return self.io_error

    def _note(self, failed: IoError | None) -> None:
        self.io_error = None if failed is None else IoError(failed.path, JOURNAL, failed.errno, failed.detail)
        self._waits = failed is not None

    def _load(self, path: str) -> None:
        text = self._host.read(path)
        if isinstance(text, IoError):
            # What cannot be read must not be replaced: it holds the originals of an earlier process.
            self.io_error = None if text.vanished else text
            self._waits = self.io_error is not None
            return
        self.io_error = None
        head, *lines = text.splitlines() or [""]
        first = decode_text(head, _Head)
        if isinstance(first, MalformedText):
            # The head is written with the whole file at once, so this is no file of ours, or one that was damaged.
            self._damaged = bool(text)
            self.io_error = malformed(path, f"no journal, but {text[:40]!r}") if text else None
            return
        if first.boot != self._boot:
            return  # the machine was started since, and with it every cgroup was made anew
        self._torn = not text.endswith("\n")
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
