"""The audit log's files: one JSON object per line, bounded on disk, read back newest first and page by page.

What deserves an event, and the HTTP endpoint over the pages, are left to others.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Generator
from datetime import datetime

import msgspec

from koord.host.io_error import READ, WRITE, IoError
from koord.telemetry.clock import Clock

NODE, POD, GROUP, UNKNOWN = "node", "pod", "group", "unknown"
DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 256, 2048
_CURRENT = "audit.log"
_ROTATED = re.compile(r"audit-\d{4}(-\d{2}){5}-[0-8]\.log")
_ROTATE_BYTES = 2 << 20
_BUFFER_BYTES = 1 << 20
_FLUSH_S = 5.0
_BLOCK = 4096
_READER_TTL_S = 600.0


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One event. The first eight fields are upstream's; the others are omitted where they are empty."""

    created_at: str = ""
    type: str = ""
    level: str = ""
    namespace: str = ""
    name: str = ""
    container: str = ""
    reason: str = ""
    message: str = ""
    owner: str = ""
    before: str = ""
    after: str = ""
    why: str = ""
    refused: str = ""


class AuditPage(msgspec.Struct, frozen=True):
    lines: list[bytes]
    token: str  # "" when there is nothing older


class AuditPageRefused(msgspec.Struct, frozen=True):
    """AuditPageRefused says why there is no page: an unknown or too old (`expired`) token, or an invalid size."""

    message: str
    expired: bool = False


class AuditLog:
    """The log. `verbose` 0 keeps every event; otherwise those whose own verbosity is not higher."""

    def __init__(
        self,
        folder: str,
        clock: Clock,
        *,
        max_mb: int = 16,
        verbose: int = 3,
        readers: int = 4,
        page_limit: int = MAX_PAGE_SIZE,
    ) -> None:
        self._folder = folder
        self._clock = clock
        self._files = max(max_mb * (1 << 20) // _ROTATE_BYTES, 1)
        self._verbose = verbose
        self._page_limit = page_limit
        self._most_readers = readers
        self._buffer = bytearray()
        self._flushed_at = clock.monotonic()
        self._readers: dict[str, _Reader] = {}

    def append(self, event: AuditEvent, verbose: int = 0) -> IoError | None:
        """Append an event. It waits in memory for up to five seconds of further events; `flush` writes at once."""
        if 0 < self._verbose < verbose:
            return None
        stamped = msgspec.structs.replace(event, created_at=event.created_at or _local(self._clock.time()))
        self._buffer += msgspec.json.encode(stamped) + b"\n"
        due = self._clock.monotonic() - self._flushed_at >= _FLUSH_S
        return self.flush() if due or len(self._buffer) >= _BUFFER_BYTES else None

    def flush(self) -> IoError | None:
        """Write the buffered events, and rotate the file when it is full."""
        self._flushed_at = self._clock.monotonic()
        if not self._buffer:
            return None
        path = os.path.join(self._folder, _CURRENT)
        try:
            os.makedirs(self._folder, mode=0o755, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            try:
                while self._buffer:
                    del self._buffer[: os.write(descriptor, self._buffer)]
                size = os.fstat(descriptor).st_size
            finally:
                os.close(descriptor)
            if size >= _ROTATE_BYTES:
                self._rotate(path)
        except OSError as error:
            if len(self._buffer) > _BUFFER_BYTES:  # a full disk must not fill the memory as well
                del self._buffer[: len(self._buffer) - _BUFFER_BYTES]
            return IoError(path, WRITE, error.errno or 0, str(error))
        return None

    def page(self, size: int | None = None, token: str = "") -> AuditPage | AuditPageRefused | IoError:
        """Return the next events, newest first. Without a token a new reader starts at the newest."""
        size = min(DEFAULT_PAGE_SIZE, self._page_limit) if size is None else size
        if not 0 <= size <= self._page_limit:
            return AuditPageRefused(f"size must be in 0..{self._page_limit}, got {size}")
        now = self._clock.monotonic()
        for name in [name for name, reader in self._readers.items() if now - reader.used_at > _READER_TTL_S]:
            self._readers.pop(name).close()
        if not token:
            opened = self._open(now)
            if isinstance(opened, IoError):
                return opened
            token = opened
        reader = self._readers.get(token)
        if reader is None:
            return AuditPageRefused("unknown or expired page token", expired=True)
        reader.used_at = now
        lines, more = reader.take(size)
        if not more:
            self._readers.pop(token).close()
        return AuditPage(lines, token if more else "")

    def close(self) -> IoError | None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
        return self.flush()

    def _open(self, now: float) -> str | IoError:
        io_error = self.flush()
        if io_error is not None:
            return io_error
        while len(self._readers) >= self._most_readers:
            oldest = min(self._readers, key=lambda name: self._readers[name].used_at)
            self._readers.pop(oldest).close()
        token = str(uuid.uuid4())
        try:
            self._readers[token] = _Reader([os.path.join(self._folder, name) for name in self._newest_first()], now)
        except OSError as error:
            return IoError(self._folder, READ, error.errno or 0, str(error))
        return token

    def _newest_first(self) -> list[str]:
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        current = [_CURRENT] if _CURRENT in names else []
        return current + sorted((name for name in names if _ROTATED.fullmatch(name)), reverse=True)

    def _rotate(self, path: str) -> None:
        moment = datetime.fromtimestamp(self._clock.time()).strftime("%Y-%m-%d-%H-%M-%S")
        for number in range(9):
            rotated = os.path.join(self._folder, f"audit-{moment}-{number}.log")
            if not os.path.exists(rotated):
                os.rename(path, rotated)
                break
        old = [name for name in self._newest_first() if name != _CURRENT]
        for name in old[self._files - 1 :]:
            os.unlink(os.path.join(self._folder, name))


class _Reader:
    """Reads what was there when it was opened, however files are rotated meanwhile."""

    def __init__(self, paths: list[str], used_at: float) -> None:
        self.used_at = used_at
        self._descriptors: list[int] = []
        for path in paths:
            try:
                self._descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            except FileNotFoundError:
                continue  # rotated away between listing and opening
        self._lines = self._all()
        self._next: bytes | None = next(self._lines, None)

    def take(self, size: int) -> tuple[list[bytes], bool]:
        found: list[bytes] = []
        while self._next is not None and len(found) < size:
            found.append(self._next)
            self._next = next(self._lines, None)
        return found, self._next is not None

    def close(self) -> None:
        self._lines.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def _all(self) -> Generator[bytes, None, None]:
        for descriptor in self._descriptors:
            yield from _reversed_lines(descriptor, os.fstat(descriptor).st_size)


def _reversed_lines(descriptor: int, end: int) -> Generator[bytes, None, None]:
    tail = b""
    while end > 0:
        start = (end - 1) // _BLOCK * _BLOCK
        block = os.pread(descriptor, end - start, start) + tail
        end = start
        tail, *lines = block.split(b"\n") if start else [b"", *block.split(b"\n")]
        yield from (line for line in reversed(lines) if line)


def _local(moment: float) -> str:
    return datetime.fromtimestamp(moment).astimezone().isoformat(timespec="seconds").replace("+00:00", "Z")
